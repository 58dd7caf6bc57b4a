//! What is trained on what: the model, its data, and how both are kept in a checkpoint.

use std::path::Path;

use distribute_cli::model::{
    BUILT_IN, LayerSpec, ModelError, ModelSpec, Plan, Sequential, Shape, built_in, parse_keras_json,
};
use distribute_core::checkpoint::{CheckpointError, Metadata};
use distribute_core::{Adam, AdamW, Device, Sgd, TrainState, optim::Optimizer};
use distribute_data::readers::{Examples, TrainTest};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::args::{OptimizerName, TrainArgs, TrainingArgs};
use crate::data::DatasetName;
use crate::failure::Failure;
use crate::text::Vocabulary;

/// Where a checkpoint's metadata keeps what is in here.
const EXTRA_KEY: &str = "distribute-cli";

/// A model and what it is made for.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) dataset: DatasetName,
    pub(crate) plan: Plan,
    pub(crate) class_names: Vec<String>,
    spec: ModelSpec,
    source: Source,
    classes: usize,
    features: Vec<usize>,
    vocabulary: Option<Vocabulary>,
    l2: Option<f64>,
}

/// Where the model comes from.
#[derive(Debug, Clone)]
enum Source {
    BuiltIn,
    /// The text of a model file.
    Keras(String),
}

impl Task {
    /// The task that `train` is asked for, and its data, ready for the model.
    pub(crate) fn asked(args: &TrainArgs) -> Result<(Self, TrainTest), Failure> {
        let dataset = args.data.dataset.clone().unwrap_or(DatasetName::Digits);
        Self::new(
            dataset,
            args.data.data_dir.as_deref(),
            args.data.model.as_deref(),
            args.training.l2,
        )
    }

    /// The task of a training run, and its data, ready for the model.
    pub(crate) fn new(
        dataset: DatasetName,
        data_dir: Option<&Path>,
        model: Option<&str>,
        l2: Option<f64>,
    ) -> Result<(Self, TrainTest), Failure> {
        let model = model.unwrap_or(dataset.default_model());
        // Before the data: a wrong name is found at once.
        let file = model_file(model)?;
        let mut data = dataset.read(data_dir, model == "text")?;
        let vocabulary = match data.train.is_text() {
            true => Some(Vocabulary::of(&data.train)?),
            false => None,
        };
        if let Some(vocabulary) = &vocabulary {
            data.train = vocabulary.encode(&data.train)?;
            data.test = vocabulary.encode(&data.test)?;
        }
        let source = match file {
            Some(text) => Source::Keras(text),
            None => Source::BuiltIn,
        };
        let task = Self::build(
            (dataset, model, source),
            (
                data.train.feature_shape(),
                data.train.classes().unwrap_or(1),
            ),
            vocabulary,
            l2,
        )?;
        for examples in [&data.train, &data.test] {
            task.check_tokens(examples)?;
        }
        let class_names = data.train.class_names().to_vec();
        Ok((
            Self {
                class_names,
                ..task
            },
            data,
        ))
    }

    fn build(
        (dataset, model, source): (DatasetName, &str, Source),
        (features, classes): (&[usize], usize),
        vocabulary: Option<Vocabulary>,
        l2: Option<f64>,
    ) -> Result<Self, Failure> {
        let tokens = vocabulary.as_ref().map_or(1, Vocabulary::tokens);
        let spec = match &source {
            Source::BuiltIn => built_in(model, classes, tokens).ok_or_else(|| unknown(model))?,
            Source::Keras(text) => parse_keras_json(text, model)?,
        };
        let spec = match l2 {
            Some(l2) => spec.with_l2(l2),
            None => spec,
        };
        let plan = spec.plan(features)?;
        check_outputs(&plan, classes, &dataset)?;
        Ok(Self {
            dataset,
            plan,
            class_names: Vec::new(),
            spec,
            source,
            classes,
            features: features.to_vec(),
            vocabulary,
            l2,
        })
    }

    /// The model's name or file.
    pub(crate) fn model_name(&self) -> &str {
        &self.spec.name
    }

    /// A training state with the initial weights of `seed`.
    pub(crate) fn state(
        &self,
        optimizer: Arc<dyn Optimizer>,
        seed: u64,
        device: &Device,
    ) -> Result<TrainState<Sequential>, ModelError> {
        let model = Sequential::initialized(&self.plan, seed, device)?;
        Ok(TrainState::with_optimizer(model, optimizer))
    }

    /// The examples as the model wants them; texts become tokens.
    pub(crate) fn prepare(&self, examples: Examples) -> Result<Examples, Failure> {
        let examples = match (&self.vocabulary, examples.is_text()) {
            (Some(vocabulary), true) => vocabulary.encode(&examples)?,
            _ => examples,
        };
        let plan = self.spec.plan(examples.feature_shape())?;
        if plan.parameters() != self.plan.parameters() || plan.input != self.plan.input {
            return Err(Failure::failed(ModelError::Input {
                model: self.spec.name.clone(),
                expected: self.plan.input.to_string(),
                found: plan.input.to_string(),
            }));
        }
        check_outputs(&plan, examples.classes().unwrap_or(1), &self.dataset)?;
        self.check_tokens(&examples)?;
        Ok(examples)
    }

    /// What a model that begins with an embedding reads must be token numbers that it has.
    fn check_tokens(&self, examples: &Examples) -> Result<(), Failure> {
        let Some(LayerSpec::Embedding { input_dim, .. }) = self.spec.layers.first() else {
            return Ok(());
        };
        for index in 0..examples.len() {
            let values = examples.features_f32(&[index])?;
            let is_token = |x: &f32| x.fract() == 0.0 && (0.0..*input_dim as f32).contains(x);
            if let Some(value) = values.iter().find(|value| !is_token(value)) {
                return Err(Failure::failed(format!(
                    "{}: example {index} has {value} where {} wants a token number from 0 to {}; \
                     choose another model or correct the data",
                    examples.name(),
                    self.spec.name,
                    input_dim - 1
                )));
            }
        }
        Ok(())
    }

    /// Whether the data is read as texts.
    pub(crate) fn is_text(&self) -> bool {
        self.vocabulary.is_some()
    }

    /// What a checkpoint keeps, so that it can be used without naming model and data again.
    pub(crate) fn to_extra(&self) -> (&'static str, Value) {
        let file = match &self.source {
            Source::BuiltIn => None,
            Source::Keras(text) => Some(text),
        };
        let value = json!({
            "dataset": self.dataset.to_string(),
            "model": self.spec.name,
            "model_file": file,
            "classes": self.classes,
            "class_names": self.class_names,
            "features": self.features,
            "vocabulary": self.vocabulary.as_ref().map(Vocabulary::to_json),
            "l2": self.l2,
        });
        (EXTRA_KEY, value)
    }

    /// The task of a checkpoint; `dataset` and `model` replace what it says.
    pub(crate) fn from_checkpoint(
        metadata: &Metadata,
        path: &Path,
        dataset: Option<DatasetName>,
        model: Option<&str>,
    ) -> Result<Self, Failure> {
        let not_ours = || {
            Failure::from(CheckpointError::Corrupt {
                path: path.to_path_buf(),
                what: "it was not written by `distribute-cli train`".to_string(),
            })
        };
        let extra = metadata.extra.get(EXTRA_KEY).ok_or_else(not_ours)?;
        let text = |key: &str| extra[key].as_str();
        let stored: Option<DatasetName> = text("dataset").and_then(|name| name.parse().ok());
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let features: Option<Vec<usize>> = extra["features"]
            .as_array()
            .and_then(|list| list.iter().map(number).collect());
        let (Some(stored), Some(stored_model), Some(classes), Some(features)) =
            (stored, text("model"), number(&extra["classes"]), features)
        else {
            return Err(not_ours());
        };
        let vocabulary = match &extra["vocabulary"] {
            Value::Null => None,
            value => Some(Vocabulary::from_json(value).ok_or_else(not_ours)?),
        };
        let (name, source) = match (model, text("model_file")) {
            (Some(model), _) => match model_file(model)? {
                Some(text) => (model, Source::Keras(text)),
                None => (model, Source::BuiltIn),
            },
            (None, Some(file)) => (stored_model, Source::Keras(file.to_string())),
            (None, None) => (stored_model, Source::BuiltIn),
        };
        let dataset = dataset.unwrap_or(stored);
        let l2 = stored_l2(metadata);
        let mut task = Self::build(
            (dataset, name, source),
            (&features, classes),
            vocabulary,
            l2,
        )?;
        let names = extra["class_names"].as_array().into_iter().flatten();
        task.class_names = names
            .filter_map(|name| Some(name.as_str()?.to_string()))
            .collect();
        Ok(task)
    }
}

/// The `--l2` that a checkpoint was trained with; nothing if the model decided.
pub(crate) fn stored_l2(metadata: &Metadata) -> Option<f64> {
    metadata.extra.get(EXTRA_KEY)?["l2"].as_f64()
}

/// The text of a model file; nothing for the name of a built-in model.
fn model_file(model: &str) -> Result<Option<String>, Failure> {
    if BUILT_IN.iter().any(|(name, _)| *name == model) {
        return Ok(None);
    }
    if !Path::new(model).exists() {
        return Err(unknown(model));
    }
    match std::fs::read_to_string(model) {
        Ok(text) => Ok(Some(text)),
        Err(source) => Err(ModelError::Io {
            path: model.into(),
            source,
        }
        .into()),
    }
}

fn unknown(model: &str) -> Failure {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    Failure::usage(format!(
        "unknown model `{model}`: use {} or a file that Keras' `model.to_json()` wrote",
        names.join(", ")
    ))
}

/// One output is for two classes, more outputs are for as many classes.
fn check_outputs(plan: &Plan, classes: usize, dataset: &DatasetName) -> Result<(), Failure> {
    let Shape::Flat(outputs) = plan.output() else {
        return Err(Failure::failed(format!(
            "{}: the output has the shape {}, a classifier needs one axis; end with Dense",
            plan.name,
            plan.output()
        )));
    };
    let enough = if outputs == 1 { 2 } else { outputs };
    if classes > enough {
        return Err(Failure::failed(format!(
            "{} tells {enough} classes apart, {dataset} has {classes}; choose another model or \
             data set",
            plan.name
        )));
    }
    if plan.parameters() == 0 {
        return Err(Failure::failed(format!(
            "{}: there is nothing to train; add a layer with weights",
            plan.name
        )));
    }
    Ok(())
}

/// The optimizer with Keras' default learning rate.
pub(crate) fn optimizer(args: &TrainingArgs) -> Arc<dyn Optimizer> {
    let rate = |default: f64| args.learning_rate.unwrap_or(default);
    match args.optimizer {
        OptimizerName::Sgd => Arc::new(Sgd::new(rate(0.01))),
        OptimizerName::Adam => Arc::new(Adam::new(rate(0.001))),
        OptimizerName::Adamw => Arc::new(AdamW::new(rate(0.001))),
    }
}
