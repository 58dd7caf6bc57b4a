//! A program of one's own that trains what `train` trains, by `distribute-classifier`.

use std::fs;

use distribute_classifier::{Classified, OptimizerOptions, Task, TaskError, TaskOptions};
use distribute_classifier::{default_batch_size, objective};
use distribute_core::checkpoint::weights_sha256;
use distribute_core::{MirroredStrategy, Policy, Strategy, StrategyExt};
use distribute_data::{Batching, StrategyDataExt};
use distribute_fit::Fit;
use rstest::rstest;

use crate::common::{last_event, run, succeed, table};

/// A model file, compiled with what differs from every default.
const MODEL: &str = r#"{"class_name":"Sequential","config":{"name":"net","layers":[
    {"class_name":"Flatten","config":{}},
    {"class_name":"Dense","config":{"units":8,"activation":"relu"}},
    {"class_name":"Dropout","config":{"rate":0.2}},
    {"class_name":"Dense","config":{"units":2,"activation":"softmax"}}]}
    ,"compile_config":{"loss":"mse","optimizer":{"class_name":"SGD","config":{"momentum":0.9,
        "learning_rate":0.05,"global_clipnorm":0.5,"use_ema":false}}}}"#;

/// The hash of the weights that a program of one's own ends with, after two epochs.
fn trained(options: &TaskOptions) -> String {
    let (mut task, data) = Task::open(options, None).unwrap();
    let mut optimizer = OptimizerOptions::default();
    task.complete(&mut optimizer);
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let batch = 2 * default_batch_size(data.train.len(), strategy.num_replicas_in_sync());
    let batches = |examples, batching| {
        let examples = Classified::weighted(examples);
        strategy.distribute_dataset(examples, batching).unwrap()
    };
    let train = batches(data.train, Batching::global(batch).shuffle(1));
    let test = batches(data.test, Batching::global(batch));
    let state = strategy
        .try_scope(|device| Ok(optimizer.clipped(task.state(optimizer.build()?, 1, device)?)));
    let (mut state, fit) = (state.unwrap(), Fit::new(&strategy).epochs(2).seed(1));
    let objective = objective(Policy::float32(), task.loss);
    fit.run_with_validation(&mut state, &train, &test, objective)
        .unwrap();
    let tensors = state.primary().unwrap().to_tensors().unwrap();
    let weights = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("model/"));
    weights_sha256(weights).unwrap()
}

#[rstest]
#[case::a_model_file_on_a_table("net.json", "csv:table.csv")]
#[case::a_model_by_its_name("mlp", "digits")]
fn a_program_of_ones_own_ends_with_the_same_weights(#[case] model: &str, #[case] dataset: &str) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("net.json"), MODEL).unwrap();
    table(folder.path(), "table.csv", 0..90);
    let train = "train --replicas 2 --epochs 2 --output json";
    let train = format!("{train} --model {model} --dataset {dataset}");
    let done = last_event(&succeed(folder.path(), &train));
    let here = |name: &str| folder.path().join(name).display().to_string();
    let model = match model {
        "mlp" => model.to_string(),
        file => here(file),
    };
    let dataset = dataset.replace("table.csv", &here("table.csv"));
    let own = trained(&TaskOptions {
        dataset: dataset.parse().unwrap(),
        model: Some(model),
        ..TaskOptions::default()
    });
    assert_eq!(own, done["weights_sha256"]);
}

/// The library names options where the program names flags.
#[test]
fn errors_name_options_and_the_program_flags() {
    let folder = tempfile::tempdir().unwrap();
    table(folder.path(), "table.csv", 0..9);
    let path = folder.path().join("table.csv").display().to_string();
    let open = |options: TaskOptions| Task::open(&options, None).unwrap_err();
    let mut options = TaskOptions {
        dataset: format!("csv:{path}").parse().unwrap(),
        ..TaskOptions::default()
    };
    options.reading.data_dir = Some(folder.path().to_path_buf());
    let error = open(options);
    assert!(matches!(error, TaskError::DataDirectory { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("`ReadingOptions::data_dir` is for mnist"),
        "{text}"
    );
    for (flags, told) in [
        (
            "--dataset csv:table.csv --data-dir .",
            "--data-dir is for mnist, fashion-mnist and images, csv:table.csv does not need it",
        ),
        (
            "--dataset csv:table.csv --color-mode rgb",
            "--color-mode is for images, not for csv:table.csv",
        ),
        (
            "--dataset digits --csv-header YES",
            "--csv-header is for csv:FILE, digits has no header",
        ),
        (
            "--dataset digits --csv-delimiter ;",
            "--csv-delimiter is for csv:FILE, not for digits",
        ),
        (
            "--dataset csv:table.csv --model text --csv-header no",
            "the model `text` finds its columns by their names; --csv-header no is for tables of \
             numbers",
        ),
        (
            "--dataset images",
            "--dataset images needs the folder of the images, one folder per class: --dataset \
             images:DIR, or --data-dir DIR",
        ),
        (
            "--dataset csv:table.csv --validation-split 0.01",
            "--validation-split 0.01 leaves none of the 9 examples of csv:table.csv to train on or \
             to validate with; choose another part",
        ),
        (
            "--model mlpp",
            "unknown model `mlpp`: did you mean `mlp`? Use",
        ),
    ] {
        let finished = run(folder.path(), &format!("train --steps 1 {flags}"));
        assert_eq!(finished.code, Some(2), "{flags}: {}", finished.stderr);
        let stderr = finished.stderr.replace("error: ", "");
        assert!(stderr.starts_with(told), "{flags}: {stderr}");
    }
}
