//! Whatever is wrong: the documented exit code, and one or two lines on standard error that say
//! what, where and what to do.

use std::fs;
use std::path::Path;

use rstest::rstest;

use crate::common::{self, QUICK, run, succeed};

/// Starting it again would not help: wrong usage, and data, models and checkpoints that are not
/// there or do not fit.
const REFUSED: i32 = 2;

/// Checks code and length, and freezes the text.
fn refused(name: &str, folder: &Path, arguments: &str) {
    let finished = run(folder, arguments);
    let stderr = finished
        .stderr
        .replace(&folder.display().to_string(), "[DIR]");
    assert_eq!(finished.code, Some(REFUSED), "{stderr}");
    assert!((1..=2).contains(&stderr.lines().count()), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    insta::with_settings!({ filters => vec![
        (r"\.tmp-distribute-[0-9a-f]+", ".tmp-distribute-[RANDOM]"),
    ] }, {
        insta::assert_snapshot!(name, stderr);
    });
}

#[rstest]
#[case("no_command", "")]
#[case("unknown_command", "tarin")]
#[case("unknown_flag", "train --epoch 3")]
#[case("unknown_strategy", "train --strategy mirored")]
#[case("unknown_model", "train --model resnet")]
#[case("unknown_dataset", "train --dataset cifar10")]
#[case("dataset_without_path", "train --dataset csv:")]
#[case("unknown_device", "train --devices xpu:0")]
#[case("device_twice", "train --devices cpu:0,cpu:0")]
#[case("batch_size_0", "train --batch-size 0")]
#[case("replicas_0", "train --replicas 0")]
#[case("not_a_number", "train --epochs many")]
#[case("learning_rate", "train --learning-rate -1")]
#[case("epochs_negative", "train --epochs -1")]
#[case("replicas_negative", "train --replicas -1")]
#[case("seed_negative", "train --seed -1")]
#[case("no_bench_command", "bench")]
#[case("images_without_folder", "train --dataset images")]
#[case("predict_output", "predict --output p.csv")]
#[case("one_device_two_replicas", "train --strategy one-device --replicas 2")]
#[case("gpu_without_cuda", "train --devices cuda:0")]
#[case("replicas_and_devices", "train --devices cpu:0 --replicas 2")]
#[case("data_dir_not_needed", "train --data-dir somewhere")]
#[case("resume_without_directory", "train --resume")]
#[case("evaluate_what", "evaluate")]
#[case("config_missing", "train --config none.toml")]
fn wrong_usage(#[case] name: &str, #[case] arguments: &str) {
    let folder = tempfile::tempdir().unwrap();
    refused(name, folder.path(), arguments);
}

#[rstest]
#[case("config_key", "# comment\nepochs = 2\nlerning-rate = 0.1\n")]
#[case("config_key_like_nothing", "zzz = 1\n")]
#[case("config_value", "strategy = \"mirored\"\n")]
#[case("config_zero", "batch-size = 0\n")]
#[case("config_flag", "resume = 3\n")]
#[case("config_empty_list", "epochs = 2\ndevices = []\n")]
#[case("config_list", "epochs = [1]\n")]
#[case("config_nested_list", "devices = [[\"cpu:0\"]]\n")]
#[case("config_boolean", "learning-rate = true\n")]
#[case("config_text_list", "strategy = [\"mirrored\"]\n")]
#[case("config_table", "[training]\nepochs = 3\n")]
#[case("config_not_toml", "epochs = 2\nseed: 3\n")]
fn wrong_configuration(#[case] name: &str, #[case] text: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.toml"), text).unwrap();
    refused(name, folder.path(), "train --config run.toml");
}

/// An IDX file: magic, sizes, then `bytes` zeros.
fn idx(path: &Path, sizes: &[u32], bytes: usize) {
    let mut data = vec![0, 0, 8, u8::try_from(sizes.len()).unwrap()];
    data.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
    data.resize(data.len() + bytes, 0);
    fs::write(path, data).unwrap();
}

/// A folder like MNIST's, with 12 training and 4 test images of 4x4 pixels.
fn mnist(folder: &Path) {
    idx(&folder.join("train-images-idx3-ubyte"), &[12, 4, 4], 192);
    idx(&folder.join("train-labels-idx1-ubyte"), &[12], 12);
    idx(&folder.join("t10k-images-idx3-ubyte"), &[4, 4, 4], 64);
    idx(&folder.join("t10k-labels-idx1-ubyte"), &[4], 4);
}

const MNIST: &str = "train --dataset mnist --data-dir . --model mlp --replicas 1 --epochs 1";

#[test]
fn the_small_mnist_folder_itself_is_fine() {
    let folder = tempfile::tempdir().unwrap();
    mnist(folder.path());
    succeed(folder.path(), MNIST);
}

#[rstest]
#[case("data_dir_missing")]
#[case("data_dir_empty")]
#[case("idx_truncated")]
#[case("idx_wrong_magic")]
#[case("idx_label_out_of_range")]
#[case("idx_no_examples")]
#[case("idx_counts_differ")]
#[case("idx_labels_for_images")]
fn bad_data_folders(#[case] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    mnist(path);
    let images = path.join("train-images-idx3-ubyte");
    let labels = path.join("train-labels-idx1-ubyte");
    match name {
        "data_dir_missing" => return refused(name, path, "train --dataset mnist"),
        "data_dir_empty" => fs::remove_file(&labels).unwrap(),
        "idx_labels_for_images" => {
            fs::copy(&labels, &images).unwrap();
        }
        "idx_truncated" => idx(&images, &[12, 4, 4], 100),
        "idx_wrong_magic" => fs::write(&images, "<html>not found</html>").unwrap(),
        "idx_label_out_of_range" => {
            let mut bytes = fs::read(&labels).unwrap();
            bytes[10] = 200;
            fs::write(&labels, bytes).unwrap();
        }
        "idx_no_examples" => {
            idx(&images, &[0, 4, 4], 0);
            idx(&labels, &[0], 0);
        }
        _ => idx(&labels, &[11], 11),
    }
    refused(name, path, MNIST);
}

#[rstest]
#[case("csv_ragged", "a,b,label\n1,2,0\n1,2,3,1\n")]
#[case("csv_not_a_number", "a,b,label\n1,2,0\n1,two,1\n")]
#[case("csv_nan", "a,b,label\n1,2,0\n1,NaN,1\n")]
#[case("csv_bad_label", "a,b,label\n1,2,0\n1,2,-1\n")]
#[case("csv_empty", "a,b,label\n")]
#[case("csv_nothing", "")]
#[case("csv_one_row", "a,b,label\n1,2,0\n")]
#[case("more_replicas_than_examples", "a,b,label\n1,2,0\n2,1,1\n1,1,1\n")]
fn bad_tables(#[case] name: &str, #[case] text: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("table.csv"), text).unwrap();
    let arguments = "train --dataset csv:table.csv --replicas 4 --epochs 1";
    refused(name, folder.path(), arguments);
}

#[rstest]
#[case("csv_missing", "train --dataset csv:none.csv")]
#[case("npz_missing", "train --dataset npz:none.npz")]
#[case("text_model_without_texts", "train --model text")]
#[case(
    "model_too_large_for_images",
    "train --model mnist-cnn --dataset csv:t.csv"
)]
#[case("model_file_is_no_model", "train --model t.csv")]
#[case("text_without_columns", "train --model text --dataset csv:t.csv")]
#[case("log_dir_is_a_file", "train --model mlp --output json --log-dir t.csv")]
#[case("checkpoint_dir_is_a_file", "train --model mlp --checkpoint-dir t.csv")]
fn bad_combinations(#[case] name: &str, #[case] arguments: &str) {
    let folder = tempfile::tempdir().unwrap();
    let rows = "1,2,0\n2,1,1\n".repeat(10);
    fs::write(folder.path().join("t.csv"), format!("a,b,label\n{rows}")).unwrap();
    refused(name, folder.path(), arguments);
}

#[test]
fn tokens_that_an_embedding_does_not_have() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/training/distribute-keras/tests/keras/text.keras3.json");
    fs::copy(source, folder.path().join("text.json")).unwrap();
    let rows = "1,2,3,4,5,0\n2,1,7,20,0,1\n".repeat(10);
    fs::write(
        folder.path().join("t.csv"),
        format!("a,b,c,d,e,label\n{rows}"),
    )
    .unwrap();
    let train = "train --model text.json --dataset csv:t.csv";
    refused("tokens_out_of_range", folder.path(), train);
}

/// A run with one checkpoint of step 5.
fn trained(folder: &Path) -> std::path::PathBuf {
    succeed(folder, &format!("{QUICK} --checkpoint-dir saved"));
    folder.join("saved/step-00000005")
}

#[rstest]
#[case("checkpoint_missing_resume", &format!("{QUICK} --resume --checkpoint-dir none"))]
#[case("checkpoint_missing_evaluate", "evaluate --checkpoint-dir none")]
#[case(
    "checkpoint_missing_predict",
    "predict --checkpoint-dir none/step-00000003"
)]
fn checkpoints_that_are_not_there(#[case] name: &str, #[case] arguments: &str) {
    let folder = tempfile::tempdir().unwrap();
    refused(name, folder.path(), arguments);
}

#[rstest]
#[case("checkpoint_truncated")]
#[case("checkpoint_bit_flipped")]
#[case("checkpoint_incomplete")]
fn damaged_checkpoints(#[case] name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = trained(folder.path());
    let tensors = checkpoint.join("tensors.safetensors");
    let mut bytes = fs::read(&tensors).unwrap();
    let middle = bytes.len() / 2;
    match name {
        "checkpoint_truncated" => bytes.truncate(middle),
        "checkpoint_bit_flipped" => bytes[middle] ^= 0x10,
        _ => fs::remove_file(checkpoint.join("COMPLETE")).unwrap(),
    }
    fs::write(&tensors, bytes).unwrap();
    refused(name, folder.path(), "evaluate --checkpoint-dir saved");
    let resume = format!("{QUICK} --resume --checkpoint-dir saved");
    refused(&format!("{name}_resume"), folder.path(), &resume);
}

#[test]
fn an_older_checkpoint_is_used_when_the_newest_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let more = "train --model mlp --replicas 2 --output json --checkpoint-dir saved --resume";
    succeed(folder.path(), &format!("{more} --steps 7"));
    let newest = folder
        .path()
        .join("saved/step-00000007/tensors.safetensors");
    fs::write(newest, "gone").unwrap();
    let finished = run(
        folder.path(),
        "evaluate --checkpoint-dir saved --output json",
    );
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(common::last_event(&finished.stdout)["step"], 5);
    assert!(
        finished.stderr.starts_with("warning: "),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("step-00000007"),
        "{}",
        finished.stderr
    );
}

#[rstest]
#[case(
    "another_model_resume",
    "train --model digits-cnn --replicas 2 --resume"
)]
#[case("another_model_evaluate", "evaluate --model digits-cnn")]
#[case("another_data_evaluate", "evaluate --dataset csv:t.csv")]
#[case("another_optimizer_resume", &format!("{QUICK} --optimizer sgd --resume"))]
#[case("another_seed_resume", &format!("{QUICK} --seed 3 --resume"))]
fn checkpoints_of_something_else(#[case] name: &str, #[case] arguments: &str) {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let rows = "1,2,0\n2,1,1\n".repeat(10);
    fs::write(folder.path().join("t.csv"), format!("a,b,label\n{rows}")).unwrap();
    let arguments = format!("{arguments} --checkpoint-dir saved");
    let finished = run(folder.path(), &arguments);
    assert_eq!(finished.code, Some(REFUSED), "{}", finished.stderr);
    // It fails before it says that it begins, in text and in JSON.
    assert_eq!(finished.stdout, "");
    insta::assert_snapshot!(name, finished.stderr);
    let text = arguments.replace(" --output json", "");
    assert_eq!(run(folder.path(), &text).stderr, finished.stderr);
}

#[test]
fn a_directory_with_checkpoints_needs_resume() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let again = format!("{QUICK} --checkpoint-dir saved");
    refused("checkpoints_without_resume", folder.path(), &again);
}
