//! Training of models with several inputs and outputs equals Keras', on any number of replicas.

use std::path::{Path, PathBuf};

use distribute_classifier::{
    Batch, Classified, OptimizerOptions, OutputOptions, ReadingOptions, ScaleName, Task, TaskError,
    TaskOptions, objective,
};
use distribute_core::{MirroredStrategy, Policy, StrategyExt};
use distribute_data::{Batching, StrategyDataExt};
use distribute_fit::{Fit, StepContext, predict};
use distribute_keras::{Mode, Model};
use distribute_readers::{Array, Values, parse_text_csv, write_npz};
use rstest::rstest;
use serde_json::Value;

/// The batch of the runs that Keras recorded.
const BATCH: usize = 5;
const TOLERANCE: f64 = 2e-5;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/keras")
        .join(name)
}

fn options(name: &str) -> TaskOptions {
    let model = file(&format!("{name}.keras"));
    TaskOptions {
        dataset: format!("npz:{}", file(&format!("{name}.npz")).display())
            .parse()
            .unwrap(),
        model: Some(model.display().to_string()),
        ..TaskOptions::default()
    }
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(file(&format!("{name}.expected.json")));
    serde_json::from_str(&text.unwrap()).unwrap()
}

fn close(found: f64, expected: f64, what: &str) {
    let error = (found - expected).abs() / expected.abs().max(1.0);
    assert!(error < TOLERANCE, "{what}: {found}, Keras: {expected}");
}

/// Trains as the recorded run, and compares every value that Keras logged, the weights and what
/// the model returns.
fn compare(name: &str, replicas: usize) {
    let expected = expected(name);
    let (mut task, data) = Task::open(&options(name), None).unwrap();
    let mut optimizer = OptimizerOptions::default();
    task.complete(&mut optimizer);
    let strategy = MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap();
    let batching = || Batching::global(BATCH);
    let first = data.train.subset(&[0]).unwrap();
    let train = strategy.distribute_dataset(Classified::weighted(data.train), batching());
    let test = strategy.distribute_dataset(Classified::weighted(data.test), batching());
    let (train, test) = (train.unwrap(), test.unwrap());
    let mut state = strategy
        .try_scope(|device| {
            let state = task.state(optimizer.build()?, 1, device)?;
            Ok(optimizer.clipped(state))
        })
        .unwrap();
    let one = strategy.distribute_dataset(Classified::weighted(first), batching());
    let history = Fit::new(&strategy)
        .epochs(2)
        .run_with_validation(
            &mut state,
            &train,
            &test,
            objective(Policy::float32(), task.measured()),
        )
        .unwrap();
    let logged = expected["history"].as_object().unwrap();
    for (name, values) in logged {
        for (epoch, value) in values.as_array().unwrap().iter().enumerate() {
            let logs = &history.epochs[epoch].logs;
            let found = logs.get(name);
            let found = found.unwrap_or_else(|| panic!("{name} is not in {logs}"));
            close(
                found,
                value.as_f64().unwrap(),
                &format!("{name} of epoch {epoch}"),
            );
        }
    }
    let own = history.epochs[0].logs.iter().map(|(name, _)| name);
    let others: Vec<&str> = own.filter(|name| !logged.contains_key(*name)).collect();
    assert_eq!(others, Vec::<&str>::new(), "Keras does not log these");
    let forward = |_: &StepContext<'_>, model: &Model, ((input, _), _): Batch| {
        let inputs = model.split_inputs(input)?;
        let outputs = model.forward_all(inputs, &mut Mode::Inference)?;
        Ok(distribute_core::Tensor::cat(outputs, 1))
    };
    if replicas > 1 {
        return;
    }
    let rows = predict(&strategy, &state, &one.unwrap(), forward).unwrap();
    let found = rows.into_data().try_to_vec::<f32>().unwrap();
    let outputs = expected["first"].as_object().unwrap();
    let names = task.plan.outputs.iter().map(|output| output.name.as_str());
    let all = names.flat_map(|name| outputs[name].as_array().unwrap());
    for (place, (found, expected)) in found.iter().zip(all).enumerate() {
        let what = format!("value {place} of what is predicted");
        close(f64::from(*found), expected.as_f64().unwrap(), &what);
    }
}

#[rstest]
fn outputs_train_as_in_keras_on_any_number_of_replicas(
    #[values("towers", "lists", "pixels")] name: &str,
    #[values(1, 2, 3)] replicas: usize,
) {
    compare(name, replicas);
}

#[test]
fn an_output_that_is_not_there_is_named_with_those_that_are() {
    let outputs = OutputOptions {
        losses: vec![("chioce".to_string(), "mse".parse().unwrap())],
        ..OutputOptions::default()
    };
    let options = TaskOptions {
        outputs,
        ..options("towers")
    };
    let error = Task::open(&options, None).unwrap_err();
    assert!(matches!(error, TaskError::NamedData { .. }));
    assert!(
        error
            .to_string()
            .contains("no output chioce, but choice, flag, score, pixels"),
        "{error}"
    );
}

#[test]
fn data_without_an_input_or_output_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("a.csv");
    let lines: String = (0..9)
        .map(|line| format!("{line},0.5,1,{line}\n"))
        .collect();
    std::fs::write(&table, format!("x_0,x_1,kind,other\n{lines}")).unwrap();
    let with = |columns: &[(&str, &[&str])]| {
        let mut options = options("lists");
        options.dataset = format!("csv:{}", table.display()).parse().unwrap();
        options.reading.columns = columns
            .iter()
            .map(|(name, columns)| {
                let columns = columns.iter().map(ToString::to_string);
                (name.to_string(), columns.collect())
            })
            .collect();
        Task::open(&options, None).map_err(Box::new)
    };
    let error = with(&[]).unwrap_err().to_string();
    assert!(error.contains("no column belongs to size"), "{error}");
    let error = with(&[("size", &["gone"])]).unwrap_err().to_string();
    assert!(error.contains("no column gone"), "{error}");
    let error = with(&[("size", &["other"])]).unwrap_err().to_string();
    assert!(
        error.contains("input x") || error.contains("(3)"),
        "{error}"
    );
    let x: &[&str] = &["x_0", "x_1", "x_0"];
    let error = with(&[("size", &["other"]), ("x", x)]);
    let (task, data) = error.unwrap();
    assert_eq!(data.train.feature_shape(), [3]);
    assert_eq!(task.loss_text().matches('=').count(), 2);
}

#[test]
fn an_output_compiled_without_a_loss_wants_one() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(file("lists.keras")).unwrap();
    let model = distribute_keras::model_file(bytes, "lists").unwrap();
    let path = folder.path().join("lists.json");
    assert!(model.text.contains(r#", "mae"]"#), "{}", model.text);
    let text = model.text.replace(r#", "mae"]"#, ", null]");
    std::fs::write(&path, text).unwrap();
    let mut options = options("lists");
    options.model = Some(path.display().to_string());
    let error = Task::open(&options, None).unwrap_err().to_string();
    assert!(
        error.contains("output size was compiled without a loss"),
        "{error}"
    );
    options.outputs.losses = vec![("size".to_string(), "mse".parse().unwrap())];
    let (task, _) = Task::open(&options, None).unwrap();
    assert!(
        task.loss_text().contains("size=mse"),
        "{}",
        task.loss_text()
    );
}

#[test]
fn names_of_no_output_are_refused_for_a_model_with_one() {
    let outputs = OutputOptions {
        loss_weights: vec![("typo".to_string(), 3.0)],
        ..OutputOptions::default()
    };
    let mut options = TaskOptions {
        outputs,
        ..TaskOptions::default()
    };
    let error = Task::open(&options, None).unwrap_err().to_string();
    assert!(error.contains("there is no output typo"), "{error}");
    options.outputs = OutputOptions::default();
    options.reading.columns = vec![("x".to_string(), vec!["a".to_string()])];
    let error = Task::open(&options, None).unwrap_err().to_string();
    assert!(error.contains("names the data of x"), "{error}");
}

#[test]
fn an_output_of_one_is_measured_by_its_name() {
    let (plain, _) = Task::open(&TaskOptions::default(), None).unwrap();
    let name = plain.plan.outputs[0].name.clone();
    let outputs = OutputOptions {
        losses: vec![(name.clone(), "mse".parse().unwrap())],
        metrics: vec![(name, "mae".parse().unwrap())],
        ..OutputOptions::default()
    };
    let options = TaskOptions {
        outputs,
        ..TaskOptions::default()
    };
    let (task, _) = Task::open(&options, None).unwrap();
    assert_eq!(
        (task.loss_text(), task.metrics_text()),
        ("mse".into(), "mae".into())
    );
}

#[test]
fn a_scale_that_is_asked_for_divides_once() {
    let first = |scale| {
        let options = TaskOptions {
            scale,
            ..options("towers")
        };
        let (_, data) = Task::open(&options, None).unwrap();
        data.train.features_f32(&[0]).unwrap()
    };
    let plain = first(None);
    assert_eq!(first(Some(ScaleName::None)), plain);
    let divided = first(Some(ScaleName::By255));
    for (plain, divided) in plain.iter().zip(divided) {
        assert!((plain / 255.0 - divided).abs() < 1e-7, "{plain} {divided}");
    }
}

/// Bytes are divided as in training, or by the scale that other data is read with: never by both.
#[test]
fn other_data_is_divided_once_by_the_scale_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes.npz");
    let floats = |count| Values::F32(vec![0.5; count]);
    let bytes: Vec<u8> = (0..30).map(|byte| byte * 8).collect();
    let arrays = [
        ("x", Array::new(vec![10, 3], Values::U8(bytes.clone()))),
        ("kind", Array::new(vec![10, 4], floats(40))),
        ("size", Array::new(vec![10, 1], floats(10))),
    ]
    .map(|(name, array)| (name, array.unwrap()));
    let arrays = arrays.each_ref().map(|(name, array)| (*name, array));
    std::fs::write(&path, write_npz(&arrays).unwrap()).unwrap();
    let options = TaskOptions {
        dataset: format!("npz:{}", path.display()).parse().unwrap(),
        ..options("lists")
    };
    let (task, data) = Task::open(&options, None).unwrap();
    let all: Vec<usize> = (0..10).collect();
    let trained = data.train.features_f32(&[0]).unwrap();
    assert!(trained.iter().all(|value| *value <= 1.0), "{trained:?}");
    let read = |scale| {
        let how = task.how(&ReadingOptions::default(), scale).unwrap();
        let examples = task.dataset.read_unlabelled(&how).unwrap();
        task.scaled(examples, scale).features_f32(&all).unwrap()
    };
    let by = |divisor: f32| -> Vec<f32> {
        bytes
            .iter()
            .map(|byte| f32::from(*byte) / divisor)
            .collect()
    };
    assert_eq!(read(None), by(255.0));
    assert_eq!(read(Some(ScaleName::By255)), by(255.0));
    assert_eq!(read(Some(ScaleName::None)), by(1.0));
}

/// A model of Keras with these layers behind an input of three numbers.
fn sequential(folder: &Path, layers: &str) -> String {
    let path = folder.join("m.json");
    let text = format!(
        r#"{{"class_name": "Sequential", "config": {{"name": "m", "layers": [{{"class_name":
           "InputLayer", "config": {{"batch_shape": [null, 3], "name": "x"}}}}, {layers}]}}}}"#
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Four examples of three numbers.
fn rows(folder: &Path) -> String {
    let path = folder.join("rows.csv");
    std::fs::write(&path, "label,a,b,c\n0,1,2,0\n1,2,1,1\n1,0,1,2\n0,2,2,0\n").unwrap();
    format!("csv:{}", path.display())
}

/// The last batch of one example leaves the second replica none.
#[test]
fn losses_on_outputs_count_on_replicas_without_examples() {
    let folder = tempfile::tempdir().unwrap();
    let losses = [(0.5, 1), (0.5, 2), (0.0, 2)].map(|(l2, replicas)| {
        let dense = format!(
            r#"{{"class_name": "Dense", "config": {{"units": 2, "activation": "softmax",
               "activity_regularizer": {{"class_name": "L2", "config": {{"l2": {l2}}}}},
               "name": "d"}}}}"#
        );
        let options = TaskOptions {
            dataset: rows(folder.path()).parse().unwrap(),
            model: Some(sequential(folder.path(), &dense)),
            validation_split: Some(0.25),
            ..TaskOptions::default()
        };
        let (task, data) = Task::open(&options, None).unwrap();
        let strategy = MirroredStrategy::builder().replicas(replicas);
        let strategy = strategy.build().unwrap();
        let train = Classified::weighted(data.train);
        let train = strategy
            .distribute_dataset(train, Batching::global(2))
            .unwrap();
        let optimizer = OptimizerOptions::default();
        let state = strategy.try_scope(|device| Ok(task.state(optimizer.build()?, 1, device)?));
        let mut state = state.unwrap();
        let of_examples = objective(Policy::float32(), task.measured());
        let history = Fit::new(&strategy).run(&mut state, &train, of_examples);
        history.unwrap().epochs[0].logs.get("loss").unwrap()
    });
    assert!((losses[0] - losses[1]).abs() < 1e-5, "{losses:?}");
    assert!(losses[1] > losses[2] + 0.1, "{losses:?}");
}

#[test]
fn a_masked_output_of_steps_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let layers = r#"{"class_name": "Embedding", "config": {"input_dim": 4, "output_dim": 2,
        "mask_zero": true, "name": "e"}}, {"class_name": "Dense", "config": {"units": 1,
        "name": "d"}}"#;
    let options = TaskOptions {
        dataset: rows(folder.path()).parse().unwrap(),
        model: Some(sequential(folder.path(), layers)),
        ..TaskOptions::default()
    };
    let error = Task::open(&options, None).unwrap_err().to_string();
    assert!(error.contains("the output d is masked"), "{error}");
}

/// Rows are as long as the longest text of training; how many other texts are cut is said.
#[test]
fn texts_that_are_too_long_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("texts.json");
    let layers = r#"{"class_name": "Sequential", "config": {"name": "m", "layers": [
        {"class_name": "InputLayer", "config": {"batch_shape": [null, 1], "dtype": "string",
        "name": "x"}}, {"class_name": "TextVectorization", "config": {"max_tokens": null,
        "vocabulary": ["a", "b"], "name": "v"}}, {"class_name": "Embedding", "config":
        {"input_dim": 4, "output_dim": 2, "name": "e"}}, {"class_name":
        "GlobalAveragePooling1D", "config": {"name": "g"}}, {"class_name": "Dense", "config":
        {"units": 2, "activation": "softmax", "name": "d"}}]}}"#;
    std::fs::write(&model, layers).unwrap();
    let table = folder.path().join("short.csv");
    std::fs::write(
        &table,
        format!("text,label\n{}", "a b,0\nb a,1\n".repeat(10)),
    )
    .unwrap();
    let options = TaskOptions {
        dataset: format!("csv:{}", table.display()).parse().unwrap(),
        model: Some(model.display().to_string()),
        ..TaskOptions::default()
    };
    let (task, data) = Task::open(&options, None).unwrap();
    assert_eq!(data.train.feature_shape(), [2]);
    assert!(!task.start_notes().concat().contains("texts of"));
    let mut remarks = Vec::new();
    let other = parse_text_csv(b"text,label\na b a,0\nb,1\na a a a,1\n", "other").unwrap();
    let rows = task.prepare(other, &mut remarks).unwrap();
    assert_eq!(rows.features_f32(&[0, 1]).unwrap(), [2.0, 3.0, 3.0, 0.0]);
    assert!(
        remarks[0].starts_with("2 of 3 texts of other"),
        "{remarks:?}"
    );
}
