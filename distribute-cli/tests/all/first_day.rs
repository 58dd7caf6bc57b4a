//! The first use of the program, in a terminal of 80 columns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rstest::rstest;

use crate::common::{self, run, succeed};

/// The lines that are wider than a terminal.
fn wide(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| line.chars().count() > 80)
        .collect()
}

#[test]
fn the_table_and_the_result_are_on_standard_output_and_fit_80_columns() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --replicas 2 --epochs 2 --log-steps 10";
    let finished = run(folder.path(), train);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    let starts: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let expected = [
        "step", "step", "epoch", "1/2", "step", "step", "2/2", "test", "weights",
    ];
    assert_eq!(starts, expected, "{}", finished.stdout);
    assert_eq!(wide(&finished.stdout), [""; 0]);
    assert_eq!(wide(&finished.stderr), [""; 0]);
    let said = "mirrored strategy on cpu:0, cpu:1";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

#[test]
fn a_table_that_is_not_read_to_its_end_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = assert_cmd::cargo::cargo_bin("distribute-cli");
    let line = format!(
        "{} train --model mlp --replicas 2 --epochs 3 --checkpoint-dir saved | head -n 1; \
         exit ${{PIPESTATUS[0]}}",
        program.display()
    );
    let output = std::process::Command::new("timeout")
        .args(["100", "bash", "-c", &line])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let saved = distribute_core::checkpoint::list(folder.path().join("saved")).unwrap();
    assert_eq!(saved.len(), 3);
}

#[test]
fn a_run_that_goes_on_takes_data_and_model_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    common::table(folder.path(), "t.csv", 0..40);
    let net = folder.path().join("net.json");
    let flatten = r#"{"class_name":"Flatten","config":{}},"#;
    std::fs::write(&net, common::NET.replace(flatten, "").replace("10", "2")).unwrap();
    let first = "--dataset csv:t.csv --csv-header yes --model net.json";
    let train = "train --replicas 2 --checkpoint-dir saved --output json";
    succeed(folder.path(), &format!("{train} {first} --epochs 1"));
    // The checkpoint has the file's text.
    std::fs::remove_file(&net).unwrap();
    let goes_on = succeed(folder.path(), &format!("{train} --resume --epochs 2"));
    let start: serde_json::Value = serde_json::from_str(goes_on.lines().next().unwrap()).unwrap();
    assert_eq!(start["dataset"], "csv:t.csv");
    assert_eq!(start["model"], "net.json");
    let whole = format!("train --replicas 2 --output json --epochs 2 {first}");
    std::fs::write(&net, common::NET.replace(flatten, "").replace("10", "2")).unwrap();
    let whole = common::last_event(&succeed(folder.path(), &whole));
    let hash = &common::last_event(&goes_on)["weights_sha256"];
    assert_eq!(*hash, whole["weights_sha256"]);
    let other = run(folder.path(), &format!("{train} --restartable --model mlp"));
    assert_eq!(other.code, Some(2), "{}", other.stderr);
}

#[rstest]
#[case::model("train --model digit-cnn", "did you mean `digits-cnn`?")]
#[case::data("train --dataset minst", "did you mean `mnist`?")]
#[case::no_dashes(
    "launch --workers 2 train",
    "launch --workers 2 -- distribute-cli train;"
)]
#[case::other("launch --workers 2 python a.py", "launch --workers 2 -- python;")]
#[case::nothing(
    "launch --workers 2",
    "-- distribute-cli train --strategy multi-worker;"
)]
#[case::own("launch --workers 1 -- train", "`-- distribute-cli train`")]
#[case::required("certs --out a", "were not provided: --hosts <HOST,HOST,...>;")]
#[case::reader(
    "evaluate --strategy mirrord",
    "[possible values: default, one-device, mirrored, central-storage]"
)]
fn a_mistake_is_answered_with_what_was_meant(#[case] arguments: &str, #[case] answer: &str) {
    let folder = tempfile::tempdir().unwrap();
    let finished = run(folder.path(), arguments);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(finished.stderr.contains(answer), "{}", finished.stderr);
}

/// No answer hangs on the name of the program's file.
#[test]
fn a_program_of_another_name_answers_alike() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_distribute-cli"), &other).unwrap();
    for arguments in ["launch --workers 2 train", "bench", ""] {
        let answered = Command::new(&other)
            .args(arguments.split_whitespace())
            .output();
        let stderr = String::from_utf8(answered.unwrap().stderr).unwrap();
        assert_eq!(stderr, run(folder.path(), arguments).stderr);
    }
}

#[test]
fn no_strategy_is_offered_that_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    succeed(
        folder.path(),
        &format!("{} --checkpoint-dir saved", common::QUICK),
    );
    for command in ["evaluate", "predict"] {
        let help = succeed(folder.path(), &format!("{command} --help"));
        let (_, strategies) = help.split_once("--strategy <NAME>").unwrap();
        let (strategies, _) = strategies.split_once("[default:").unwrap();
        let names = strategies
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- "));
        let names: Vec<&str> = names.filter_map(|line| line.split(':').next()).collect();
        assert_eq!(names.len(), 4, "{strategies}");
        for name in names {
            succeed(
                folder.path(),
                &format!("{command} --checkpoint-dir saved --strategy {name}"),
            );
        }
    }
}

#[test]
fn a_device_beyond_the_cores_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    let train = "train --model mlp --steps 2 --batch-size 8";
    let finished = run(
        folder.path(),
        &format!("{train} --devices cpu:{}", cores + 5),
    );
    let said = format!("cpu:{} is a thread of its own", cores + 5);
    assert!(finished.stderr.contains(&said), "{}", finished.stderr);
    let finished = run(folder.path(), &format!("{train} --replicas {}", cores + 1));
    let said = format!("{} replicas share {cores} core", cores + 1);
    assert!(finished.stderr.contains(&said), "{}", finished.stderr);
    let finished = run(folder.path(), &format!("{train} --replicas 1"));
    assert_eq!(finished.code, Some(0));
    assert!(!finished.stderr.contains("core"), "{}", finished.stderr);
}

#[test]
fn the_variable_of_the_cluster_is_not_printed_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let variable = r#"{"cluster":{"worker":["127.0.0.1:1"]},"task":{"type":"worker","index":0}}"#;
    let said = |arguments: &str| {
        let mut command = common::program(folder.path());
        let command = command.args(arguments.split_whitespace());
        let output = command.env("TF_CONFIG", variable).output().unwrap();
        let both = [output.stdout, output.stderr].concat();
        String::from_utf8(both).unwrap()
    };
    let train = said("train --strategy multi-worker --model mlp --steps 2");
    assert!(train.contains("cluster from TF_CONFIG"), "{train}");
    assert!(!train.contains(r#"{"cluster""#), "{train}");
    let doctor = said("doctor");
    assert_eq!(doctor.matches(r#"{"cluster""#).count(), 1, "{doctor}");
    assert!(doctor.contains("this process is worker 0"), "{doctor}");
}

/// The Markdown files of the repository that show commands.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let docs = docs.map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|it| it == "md"));
    let readmes = ["README.md", "distribute-cli/README.md"].map(|name| root.join(name));
    readmes.into_iter().chain(docs).collect()
}

/// The commands in the blocks of a page, each on one line.
fn commands(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap().replace("\\\n", " ");
    let blocks = text.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(|block| block.lines().skip(1).map(str::to_string));
    lines
        .map(|line| line.split("  # ").next().unwrap().to_string())
        .filter(|line| line.contains("distribute-cli train "))
        .collect()
}

/// A reader who follows the pages in any order meets no directory that holds another page's run.
#[test]
fn the_pages_save_into_different_directories() {
    let mut owners: BTreeMap<String, PathBuf> = BTreeMap::new();
    for page in pages() {
        for command in commands(&page) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let flag = words.iter().position(|word| *word == "--checkpoint-dir");
            let Some(flag) = flag else {
                continue;
            };
            let owner = owners.insert(words[flag + 1].to_string(), page.clone());
            let goes_on = words.contains(&"--restartable") || words.contains(&"--resume");
            let free = owner.as_ref().is_none_or(|owner| *owner == page && goes_on);
            assert!(free, "{}: {command}: also in {owner:?}", page.display());
        }
    }
    assert!(owners.len() >= 4, "{owners:?}");
}
