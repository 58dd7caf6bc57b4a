//! Names as people know them from elsewhere: what is suggested can be typed, and works.

use rstest::rstest;

use crate::common::{run, succeed};

#[rstest]
#[case("train --lr 0.1", "`--learning-rate`")]
#[case("train --lr=0.1", "`--learning-rate`")]
#[case("train --learning_rate 0.1", "`--learning-rate`")]
#[case("train --bs 8", "`--batch-size`")]
#[case("train --gpus 2", "--devices cuda:0")]
#[case("train --nproc_per_node 2", "`launch --workers`")]
#[case("train --nnodes 2", "`launch --hosts`")]
#[case("evaluate --lr 3", "`train --learning-rate`")]
#[case("predict --opt sgd", "`train --optimizer`")]
#[case("launch --nproc_per_node 2 -- true", "`--workers`")]
#[case("train --epoch 3", "'--epochs'")]
fn a_flag_of_elsewhere_has_its_name_here(#[case] command: &str, #[case] advice: &str) {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(folder.path(), command);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(advice), "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
}

#[test]
fn a_key_of_elsewhere_has_its_name_here() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("run.toml"), "lr = 0.1\n").unwrap();
    let refused = run(folder.path(), "train --config run.toml");
    let said = &refused.stderr;
    assert!(said.contains("did you mean `learning-rate`?"), "{said}");
}

#[rstest]
#[case("--optimizer Adam")]
#[case("--optimizer SGD --precision BF16")]
#[case("--optimizer RMSprop --lr-schedule CosineDecay")]
#[case("--strategy Mirrored --dataset Digits --model MLP")]
#[case("--strategy ONE-DEVICE --output Text")]
fn names_are_understood_in_capitals(#[case] flags: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = succeed(folder.path(), &format!("train --dry-run {flags}"));
    assert!(out.contains("updates"), "{out}");
}

#[rstest]
#[case("train --model gone.json", "there is no model file gone.json")]
#[case("train --model models/net", "there is no model file models/net")]
#[case("train --model digit-cnn", "did you mean `digits-cnn`?")]
fn a_missing_file_is_not_an_unknown_name(#[case] command: &str, #[case] said: &str) {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(folder.path(), command);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
}

/// Of too many workers no `--replicas` is the way out.
#[test]
fn too_many_workers_are_told_to_be_fewer() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("few.csv"),
        "a,label\n1,0\n2,1\n3,0\n4,1\n",
    )
    .unwrap();
    let addresses: Vec<String> = (1..=9).map(|port| format!("127.0.0.1:{port}")).collect();
    let spec = format!("{{\"worker\":{addresses:?}}}").replace(' ', "");
    let command = format!(
        "train --dry-run --strategy multi-worker --dataset csv:few.csv --csv-header yes \
         --cluster-spec {spec} --task-type worker --task-id 0"
    );
    let refused = run(folder.path(), &command);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let said = &refused.stderr;
    assert!(said.contains("workers or fewer"), "{said}");
    assert!(!said.contains("--replicas"), "{said}");
}
