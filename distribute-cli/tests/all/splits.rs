//! Which examples `evaluate` and `predict` use, and what a table's first line is.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rstest::rstest;

use crate::common::{self, last_event, run, succeed};

/// A table whose first column is the number of the row.
fn table(rows: std::ops::Range<usize>) -> String {
    rows.map(|i| format!("{i}.5,{},{}\n", i * i % 7, i % 3))
        .collect()
}

const HEADER: &str = "a,b,label\n";

fn write(folder: &Path, rows: std::ops::Range<usize>) {
    fs::write(folder.join("t.csv"), format!("{HEADER}{}", table(rows))).unwrap();
}

fn train(folder: &Path, more: &str) {
    let train = "train --replicas 1 --steps 2 --checkpoint-dir saved --output json --dataset";
    succeed(folder, &format!("{train} {more}"));
}

/// The rows that `predict` names, and the label it gives each.
fn predicted(folder: &Path, more: &str) -> BTreeMap<usize, String> {
    let csv = succeed(folder, &format!("predict --checkpoint-dir saved {more}"));
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("index,label,probability"));
    let rows = lines.map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        (fields[0].parse().unwrap(), fields[1..].join(","))
    });
    let list: Vec<(usize, String)> = rows.collect();
    let map: BTreeMap<_, _> = list.iter().cloned().collect();
    assert_eq!(map.len(), list.len(), "a row twice");
    map
}

fn evaluated(folder: &Path, more: &str) -> (u64, String) {
    let evaluate = format!("evaluate --checkpoint-dir saved --output json {more}");
    let event = last_event(&succeed(folder, &evaluate));
    let split = event["split"].as_str().unwrap().to_string();
    (event["examples"].as_u64().unwrap(), split)
}

#[test]
fn an_index_is_the_row_of_the_file_in_every_split() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..30);
    train(folder.path(), "csv:t.csv");
    let [all, train, test] =
        ["all", "train", "test"].map(|split| predicted(folder.path(), &format!("--split {split}")));
    assert!(all.keys().copied().eq(0..30));
    assert_eq!((train.len(), test.len()), (24, 6));
    // What is said of a row does not depend on the split, and every row is in one of the two.
    let mut both = train;
    both.extend(test.clone());
    assert_eq!(both, all);
    assert_eq!(predicted(folder.path(), ""), test);
    assert_eq!(evaluated(folder.path(), ""), (6, "test".to_string()));
    assert_eq!(
        evaluated(folder.path(), "--split all"),
        (30, "all".to_string())
    );
}

#[test]
fn rows_that_were_trained_on_never_become_a_test() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..30);
    train(folder.path(), "csv:t.csv");
    let rows = |split: &str| {
        let map = predicted(folder.path(), &format!("--split {split}"));
        map.into_keys().collect::<Vec<_>>()
    };
    let (trained, held_out) = (rows("train"), rows("test"));
    write(folder.path(), 0..40);
    assert_eq!(rows("train"), trained);
    assert_eq!(rows("test"), [held_out, (30..40).collect()].concat());
    // The same file under another name is still the same data.
    fs::copy(folder.path().join("t.csv"), folder.path().join("u.csv")).unwrap();
    let moved = predicted(folder.path(), "--dataset csv:u.csv --split train");
    assert!(moved.into_keys().eq(trained));
}

#[rstest]
#[case::shorter(0..29)]
#[case::other_rows(1..31)]
#[case::other_rows_and_more(1..41)]
fn data_that_was_changed_is_refused_unless_all_of_it_is_wanted(
    #[case] rows: std::ops::Range<usize>,
) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..30);
    train(folder.path(), "csv:t.csv");
    write(folder.path(), rows.clone());
    for command in ["evaluate", "predict", "evaluate --split train"] {
        let refused = run(folder.path(), &format!("{command} --checkpoint-dir saved"));
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("--split all"), "{}", refused.stderr);
    }
    assert_eq!(evaluated(folder.path(), "--split all").0, rows.len() as u64);
    // Data of another name was not trained on, and is used as a whole.
    fs::rename(folder.path().join("t.csv"), folder.path().join("u.csv")).unwrap();
    let other = evaluated(folder.path(), "--dataset csv:u.csv");
    assert_eq!(other, (rows.len() as u64, "all".to_string()));
}

/// Images of two classes, each with its own shade; the name of a file decides its place.
fn images(folder: &Path, names: impl Iterator<Item = u8>) {
    for (index, class) in names.flat_map(|index| [(index, "a"), (index, "b")]) {
        let directory = folder.join(class);
        fs::create_dir_all(&directory).unwrap();
        let shade = 4 * index + u8::from(class == "b");
        let image = image::GrayImage::from_raw(8, 8, vec![shade; 64]).unwrap();
        image
            .save(directory.join(format!("{index:02}.png")))
            .unwrap();
    }
}

/// What `predict` is refused for, or is told.
fn told(folder: &Path, more: &str) -> (Option<i32>, String) {
    let finished = run(folder, &format!("predict --checkpoint-dir saved {more}"));
    (finished.code, finished.stderr)
}

#[test]
fn another_scale_is_of_the_same_examples() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    images(&folder.join("data"), 0..10);
    train(folder, "images:data --model mlp");
    let own = evaluated(folder, "");
    assert_eq!(evaluated(folder, "--scale none"), own);
    let refused = run(
        folder,
        "train --replicas 1 --steps 3 --checkpoint-dir saved --resume --scale none",
    );
    let said = "--scale is none in this run and 255 in the checkpoint";
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    // Numbers that are no bytes may be divided too.
    write(folder, 0..30);
    fs::remove_dir_all(folder.join("saved")).unwrap();
    train(folder, "csv:t.csv --scale 255");
    assert_eq!(evaluated(folder, "").0, 6);
}

#[test]
fn what_cannot_be_read_without_labels_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = folder.join("data");
    images(&data, 0..10);
    train(folder, "images:data --model mlp");
    fs::create_dir(folder.join("new")).unwrap();
    fs::copy(data.join("a/01.png"), folder.join("new/1.png")).unwrap();
    assert_eq!(told(folder, "--dataset images:new").0, Some(0));
    let (code, said) = told(folder, "--dataset images:new --split test");
    assert_eq!(code, Some(2));
    assert!(said.contains("leave --split out"), "{said}");
    assert!(!said.contains("class"), "{said}");
    fs::write(folder.join("new/broken.png"), "no picture").unwrap();
    let (code, said) = told(folder, "--dataset images:new");
    assert_eq!(code, Some(2));
    assert!(said.contains("broken.png"), "{said}");
    assert!(!said.contains("classes are needed"), "{said}");
    let (_, said) = told(folder, "--dataset images:nofolder");
    assert!(said.contains("nofolder"), "{said}");
    // Folders of other names: classes are not asked for.
    fs::rename(data.join("a"), data.join("x")).unwrap();
    fs::rename(data.join("b"), data.join("y")).unwrap();
    let all = succeed(
        folder,
        "predict --checkpoint-dir saved --dataset images:data",
    );
    assert_eq!(all.lines().count(), 21, "{all}");
    let evaluated = run(folder, "evaluate --checkpoint-dir saved");
    assert_eq!(evaluated.code, Some(2));
}

#[test]
fn a_table_without_labels_names_the_value_that_is_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, 0..30);
    train(folder, "csv:t.csv");
    fs::write(folder.join("u.csv"), "a,b\n1,2\n3,x\n").unwrap();
    let (code, said) = told(folder, "--dataset csv:u.csv");
    assert_eq!(code, Some(2));
    assert!(said.contains("\"x\"") || said.contains("`x`"), "{said}");
    assert!(!said.contains("label"), "{said}");
}

#[test]
fn an_image_in_between_never_makes_a_test_of_what_was_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    images(&data, (10..20).step_by(2));
    train(folder.path(), "images --data-dir data --model mlp");
    let data_dir = "--data-dir data";
    let tested = predicted(folder.path(), data_dir);
    // Behind all others it would be a test; in between it moves the others to other places.
    images(&data, std::iter::once(13));
    for command in ["evaluate", "evaluate --split train", "predict"] {
        let arguments = format!("{command} --checkpoint-dir saved {data_dir}");
        let refused = run(folder.path(), &arguments);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("--split all"), "{}", refused.stderr);
        assert_eq!(refused.stdout, "");
    }
    let all = predicted(folder.path(), &format!("{data_dir} --split all"));
    assert_eq!(all.len(), 12);
    // Without it everything is as before.
    for class in ["a", "b"] {
        fs::remove_file(data.join(class).join("13.png")).unwrap();
    }
    assert_eq!(predicted(folder.path(), data_dir), tested);
}

#[test]
fn two_sets_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let idx = |name: &str, sizes: &[u32], bytes: usize| {
        let mut data = vec![0, 0, 8, sizes.len() as u8];
        data.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
        data.extend((0..bytes).map(|i| (i % 2) as u8));
        fs::write(folder.path().join(name), data).unwrap();
    };
    idx("train-images-idx3-ubyte", &[12, 4, 4], 192);
    idx("train-labels-idx1-ubyte", &[12], 12);
    idx("t10k-images-idx3-ubyte", &[4, 4, 4], 64);
    idx("t10k-labels-idx1-ubyte", &[4], 4);
    train(folder.path(), "idx:. --model mlp");
    assert!(predicted(folder.path(), "").into_keys().eq(0..4));
    let all = succeed(folder.path(), "predict --checkpoint-dir saved --split all");
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["index", "label", "probability", "set"]);
    let places: Vec<String> = lines[1..]
        .iter()
        .map(|line| format!("{}{}", line[3], line[0]))
        .collect();
    let train = (0..12).map(|i| format!("train{i}"));
    assert!(
        places
            .into_iter()
            .eq(train.chain((0..4).map(|i| format!("test{i}"))))
    );
    assert_eq!(evaluated(folder.path(), "--split all").0, 16);
}

#[test]
fn a_first_line_of_numbers_is_what_the_user_says() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("t.csv"),
        format!("0,1,2\n{}", table(0..20)),
    )
    .unwrap();
    let auto = run(folder.path(), "train --dataset csv:t.csv --steps 1");
    assert_eq!(auto.code, Some(2));
    assert!(
        auto.stderr.contains("--csv-header yes or no"),
        "{}",
        auto.stderr
    );
    for (header, rows) in [("yes", 20), ("no", 21)] {
        let _ = fs::remove_dir_all(folder.path().join("saved"));
        train(folder.path(), &format!("csv:t.csv --csv-header {header}"));
        // The checkpoint knows.
        assert_eq!(evaluated(folder.path(), "--split all").0, rows);
        assert!(
            predicted(folder.path(), "--split all")
                .into_keys()
                .eq(0..rows as usize)
        );
    }
    let other = run(folder.path(), "train --dataset digits --csv-header yes");
    assert_eq!(other.code, Some(2), "{}", other.stderr);
}

#[test]
fn labels_say_where_they_are_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = format!("{HEADER}{}", table(0..30));
    text = text.replace("17.5,2,2\n", "17.5,2,1000000\n");
    fs::write(folder.path().join("bad.csv"), text).unwrap();
    let refused = run(folder.path(), "train --dataset csv:bad.csv --steps 1");
    assert_eq!(refused.code, Some(2));
    insta::assert_snapshot!(refused.stderr, @"error: csv:bad.csv (bad): the label 1000000 of example 17 (counted from 0) makes 1000001 classes, but only 4 labels occur in 30 examples; correct it, or number the classes from 0 on without gaps");
    write(folder.path(), 0..30);
    train(folder.path(), "csv:t.csv");
    let evaluate = "evaluate --checkpoint-dir saved --dataset csv:bad.csv";
    let refused = run(folder.path(), evaluate);
    assert_eq!(refused.code, Some(2));
    let error = refused.stderr.lines().last().unwrap().to_string();
    insta::assert_snapshot!(error, @"error: csv:bad.csv (bad): example 17 (counted from 0) has the label 1000000, but mlp tells 3 classes apart, 0 to 2; correct the label, or choose another model or data set");
}

#[test]
fn the_predictions_need_not_be_read_to_their_end() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), 0..30);
    train(folder.path(), "csv:t.csv");
    let mut child = common::plain(folder.path())
        .args("predict --checkpoint-dir saved --split all".split(' '))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
}
