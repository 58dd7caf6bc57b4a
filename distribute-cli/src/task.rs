//! What is trained on what: the model, its data, and how both are kept in a checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use burn::module::Module;
use clap::ValueEnum;
use distribute_core::checkpoint::{CheckpointError, Metadata};
use distribute_core::optim::{Optimizer, from_config};
use distribute_core::{Clip, Configuration, Device, Difference, Error, TrainState};
use distribute_data::readers::{CsvColumns, Examples, ImageColor, LabelPlace, TrainTest};
use distribute_keras::{Compiled, Model, ModelError, ModelSpec, Plan, Shape, compiled};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};

use crate::compiled;
use crate::data::Reading;
use crate::failure::Failure;
use crate::flags::{
    CsvHeaderName, DataArgs, DatasetName, LossName, ScaleName, TrainArgs, TrainingArgs, named,
};
use crate::identity::{Identity, listed};
use crate::inputs::{self, Inputs, Scale};
use crate::model_source::{Source, model_file_settings, named_model, stored_model};
use crate::split::SplitRecord;
use crate::stored_reading::{EXTRA_KEY, StoredReading};
use crate::text::Vocabulary;

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
    /// The data set that the checkpoint names.
    pub(crate) trained_on: String,
    /// What the split into training and test examples was made of.
    pub(crate) split: Option<SplitRecord>,
    /// What the outputs are compared with the classes by.
    pub(crate) loss: LossName,
    /// What identifies the inputs; older checkpoints do not say it.
    pub(crate) inputs: Option<Inputs>,
    /// How the files were read.
    reading: StoredReading,
    compiled: Option<Compiled>,
    /// What is to be said of the data and the model before the first step.
    remarks: Vec<String>,
    /// Which examples they are, once somebody has asked.
    identity: OnceLock<Identity>,
}

impl Task {
    /// The task that `train` is asked for, and its data, ready for the model. A model that is not
    /// asked for is that of the checkpoint that training goes on with.
    pub(crate) fn from_args(
        args: &TrainArgs,
        continued: Option<&Metadata>,
    ) -> Result<(Self, TrainTest), Failure> {
        let dataset = args.data.dataset.clone().unwrap_or(DatasetName::Digits);
        let dataset = dataset.with_header(args.data.csv_header)?;
        let stored = continued.and_then(|metadata| stored_model(metadata.extra.get(EXTRA_KEY)?));
        // Before the data: a wrong name is found at once.
        let model = match (&args.data.model, stored) {
            (None, Some(stored)) => stored,
            (named, _) => named_model(named.as_deref().unwrap_or(dataset.default_model()))?,
        };
        let mut how = Reading::new(&args.data, &dataset, model.0 == "text")?;
        let trained = continued.and_then(Inputs::of_checkpoint);
        if let (Some((inputs, values)), false) = (&trained, how.as_text) {
            how.columns = inputs.columns(*values);
        }
        let sizes = (args.training.l2, args.validation.validation_split);
        let old = continued.is_some() && trained.is_none();
        let scale = match (args.data.scale, old) {
            // As all checkpoints before had it.
            (None, true) => Scale::as_before(),
            (asked, _) => Scale::new(asked, trained.map(|(inputs, _)| inputs)),
        };
        let (mut task, data) = Self::read(dataset, &how, model, (sizes, &scale))?;
        task.check_excluded(&args.training)?;
        let compiled = task.compiled.as_ref();
        // A run goes on with its own, whatever its model file says.
        let asked = args.training.loss.or(continued.map(stored_loss));
        task.loss = compiled::loss(asked, compiled, &task.plan)?;
        task.reading = StoredReading::from_args(&args.data);
        Ok((task, data))
    }

    /// Refuses exclusions from weight decay where there is none, or no parameter of such a name.
    fn check_excluded(&self, args: &TrainingArgs) -> Result<(), Failure> {
        let excluded = &args.weight_decay_exclude;
        if excluded.is_empty() {
            return Ok(());
        }
        let optimizer = optimizer(args).map_err(Failure::usage)?;
        let state = self.state(optimizer, args.seed, &Device::flex().autodiff())?;
        let names = state.parameter_names();
        let unknown = |text: &&String| !names.iter().any(|name| name.contains(*text));
        match excluded.iter().find(unknown) {
            None => Ok(()),
            Some(text) => Err(Failure::usage(format!(
                "--weight-decay-exclude: no parameter has `{text}` in its name; there are {}",
                listed(names)
            ))),
        }
    }

    /// A part of the examples, if one is named, is held out.
    fn read(
        dataset: DatasetName,
        how: &Reading,
        (model, source): (String, Source),
        ((l2, held_out), scale): ((Option<f64>, Option<f64>), &Scale),
    ) -> Result<(Self, TrainTest), Failure> {
        let parts = dataset.read(how)?;
        // Bytes are scaled as the model wants them, which needs no size to be known.
        let spec = source.spec(&model, (1, 1))?;
        let parts = parts.map(|examples| scale.apply(examples, &spec));
        let record = parts.record(held_out)?;
        let mut data = parts.train_test(&dataset, held_out)?;
        let identity = OnceLock::new();
        let split = record.map(|(split, digests)| {
            let identified = digests.identity(&data.train.rows(), &data.test.rows());
            identity.get_or_init(|| identified);
            split
        });
        check_classes(&data, &dataset)?;
        let inputs = Inputs::of(&data.train, &spec);
        let remarks = inputs::remarks(&data, &dataset)?;
        let vocabulary = match data.train.is_text() {
            true => Some(Vocabulary::of(&data.train)?),
            false => None,
        };
        if let Some(vocabulary) = &vocabulary {
            data.train = vocabulary.encode(&data.train)?;
            data.test = vocabulary.encode(&data.test)?;
        }
        let task = Self::build(
            (dataset, &model, source),
            (
                data.train.feature_shape(),
                data.train.classes().unwrap_or(1),
            ),
            vocabulary,
            l2,
        )?;
        for examples in [&data.train, &data.test] {
            task.check_labels(examples)?;
            task.check_tokens(examples)?;
        }
        let class_names = data.train.class_names().to_vec();
        Ok((
            Self {
                class_names,
                split,
                identity,
                inputs: Some(inputs),
                remarks,
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
        let spec = source.spec(model, (classes, tokens))?;
        let spec = match l2 {
            Some(l2) => spec.with_l2(l2),
            None => spec,
        };
        let plan = spec.plan(features)?;
        check_outputs(&plan)?;
        let compiled = match &source {
            Source::BuiltIn => None,
            Source::Keras(text) => compiled(text),
        };
        Ok(Self {
            loss: LossName::CrossEntropy,
            inputs: None,
            reading: StoredReading::default(),
            compiled,
            remarks: Vec::new(),
            trained_on: dataset.to_string(),
            dataset,
            plan,
            class_names: Vec::new(),
            spec,
            source,
            classes,
            features: features.to_vec(),
            vocabulary,
            l2,
            split: None,
            identity: OnceLock::new(),
        })
    }

    /// Takes what the flags do not say from what the model was compiled with.
    pub(crate) fn complete(&mut self, args: &mut TrainingArgs) {
        if let Some(compiled) = &self.compiled {
            self.remarks.extend(compiled::complete(compiled, args));
        }
    }

    /// What is said before the first step: what identifies the inputs of files, and what is not
    /// used or almost certainly meant otherwise.
    pub(crate) fn start_notes(&self) -> Vec<String> {
        let of_files = !self.dataset.knows_classes();
        let inputs = self.inputs.as_ref().filter(|_| of_files);
        let loss = (self.loss != LossName::CrossEntropy).then(|| {
            let name = named(self.loss).unwrap_or_default();
            format!("loss: {name}")
        });
        let line = inputs.map(|inputs| inputs.line(&self.dataset));
        let first = line.into_iter().chain(loss);
        first.chain(self.remarks.iter().cloned()).collect()
    }

    /// The `--scale` that the data has.
    pub(crate) fn scale(&self) -> Option<&'static str> {
        self.inputs.as_ref().map(Inputs::scale)
    }

    /// What identifies the inputs, for programs.
    pub(crate) fn inputs_json(&self) -> Value {
        self.inputs.as_ref().map_or(Value::Null, Inputs::to_json)
    }

    /// The model's name or file.
    pub(crate) fn model_name(&self) -> &str {
        &self.spec.name
    }

    /// Which examples its data are; reads them unless that has been done.
    pub(crate) fn identity(&self, data: &TrainTest) -> Result<Identity, Failure> {
        if let Some(known) = self.identity.get() {
            return Ok(known.clone());
        }
        let read = Identity::read(data)?;
        Ok(self.identity.get_or_init(|| read).clone())
    }

    /// A training state with the initial weights of `seed`.
    pub(crate) fn state(
        &self,
        optimizer: Arc<dyn Optimizer>,
        seed: u64,
        device: &Device,
    ) -> Result<TrainState<Model>, ModelError> {
        let model = Model::initialized(&self.plan, seed, device)?;
        Ok(TrainState::with_optimizer(model, optimizer))
    }

    /// The examples as the model wants them; texts become tokens.
    /// The labels of examples that have some must be classes of the model.
    pub(crate) fn prepare(&self, examples: Examples) -> Result<Examples, Failure> {
        let examples = match (&self.vocabulary, examples.is_text()) {
            (Some(vocabulary), true) => vocabulary.encode(&examples)?,
            _ => examples,
        };
        let plan = self.spec.plan(examples.feature_shape())?;
        if plan.parameters() != self.plan.parameters() || plan.input() != self.plan.input() {
            return Err(Failure::refused(ModelError::Input {
                model: self.spec.name.clone(),
                expected: self.plan.input().to_string(),
                found: plan.input().to_string(),
            }));
        }
        if examples.is_labelled() {
            self.check_labels(&examples)?;
        }
        self.check_tokens(&examples)?;
        Ok(examples)
    }

    /// Refuses labels that are no classes of this model.
    pub(crate) fn check_all_labels(&self, examples: &Examples) -> Result<(), Failure> {
        self.check_labels(examples)
    }

    /// Whether the data is where the data of the checkpoint was.
    pub(crate) fn is_of_training(&self, how: &Reading) -> bool {
        let same_folder = self.reading.is_of(how.data_dir.as_deref());
        self.dataset.to_string() == self.trained_on && same_folder
    }

    /// How other data is read for this model, where flags do not say it.
    pub(crate) fn how(&self, args: &DataArgs) -> Result<Reading, Failure> {
        let mut args = args.clone();
        let trained: Option<DatasetName> = self.trained_on.parse().ok();
        let same_kind = trained.is_some_and(|trained| trained.kind() == self.dataset.kind());
        if same_kind {
            let same = self.trained_on == self.dataset.to_string();
            self.reading.clone().complete(&mut args, same);
        }
        let mut how = Reading::new(&args, &self.dataset, self.is_text())?;
        if args.color_mode.is_none() && self.dataset.is_images() {
            // A picture alone does not say what the others were.
            how.color = match self.features.len() {
                3 => ImageColor::Rgb,
                _ => ImageColor::Grayscale,
            };
        }
        if !self.is_text()
            && let [values] = self.features[..]
        {
            let inputs = self.inputs.as_ref();
            how.columns = inputs.map_or(CsvColumns::Count(values), |it| it.columns(values));
            how.label_place = inputs.map_or_else(LabelPlace::default, Inputs::label_place);
        }
        Ok(how)
    }

    /// Examples whose bytes are scaled as the model was trained.
    pub(crate) fn scaled(&self, examples: Examples, asked: Option<ScaleName>) -> Examples {
        let scale = match (&self.inputs, asked) {
            (None, None) => Scale::as_before(),
            (inputs, asked) => Scale::new(asked, inputs.clone()),
        };
        scale.apply(examples, &self.spec)
    }

    /// One output is for two classes, more outputs are for as many classes.
    fn check_labels(&self, examples: &Examples) -> Result<(), Failure> {
        let outputs = self.plan.output().elements();
        let classes = if outputs == 1 { 2 } else { outputs };
        let all: Vec<usize> = (0..examples.len()).collect();
        let labels = examples.labels_i64(&all)?;
        let known = |label: &i64| usize::try_from(*label).is_ok_and(|label| label < classes);
        match labels.iter().position(|label| !known(label)) {
            None => Ok(()),
            Some(index) => Err(Failure::refused(format!(
                "{} ({}): example {} (counted from 0) has the label {}, but {} tells {classes} classes \
                 apart, 0 to {}; correct the label, or choose another model or data set",
                self.dataset,
                examples.name(),
                examples.rows()[index],
                labels[index],
                self.spec.name,
                classes - 1
            ))),
        }
    }

    /// What a model reads by an embedding must be token numbers that it has.
    fn check_tokens(&self, examples: &Examples) -> Result<(), Failure> {
        let Some(tokens) = self.spec.tokens() else {
            return Ok(());
        };
        for index in 0..examples.len() {
            let values = examples.features_f32(&[index])?;
            let is_token = |x: &f32| x.fract() == 0.0 && (0.0..tokens as f32).contains(x);
            if let Some(value) = values.iter().find(|value| !is_token(value)) {
                return Err(Failure::refused(format!(
                    "{}: example {index} has {value} where {} wants a token number from 0 to {}; \
                     choose another model or correct the data",
                    examples.name(),
                    self.spec.name,
                    tokens - 1
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
            "csv_header": self.dataset.header(),
            "reading": self.reading.to_json(),
            "inputs": self.inputs_json(),
            "loss": named(self.loss),
            "split": self.split.as_ref().map(SplitRecord::to_json),
        });
        (EXTRA_KEY, value)
    }

    /// The model, for the comparison with other processes: a built-in one is its name, a file what
    /// it says.
    pub(crate) fn model_settings(&self) -> Configuration {
        let settings = Configuration::new();
        match &self.source {
            Source::BuiltIn => settings.with("--model", Some(&self.spec.name)),
            Source::Keras(text) => {
                let mut settings = settings.with("--model", Some("a model file"));
                settings.extend(&model_file_settings(text));
                settings
            }
        }
    }

    /// What is different in the model file of a checkpoint.
    pub(crate) fn model_file_difference(&self, stored: &str) -> Option<Difference> {
        match &self.source {
            Source::BuiltIn => None,
            Source::Keras(text) => {
                model_file_settings(text).difference(&model_file_settings(stored))
            }
        }
    }

    /// What the classes mean, and the words of texts.
    pub(crate) fn class_settings(&self) -> Configuration {
        let (_, extra) = self.to_extra();
        Self::stored_class_settings(&extra)
    }

    /// That of a checkpoint.
    pub(crate) fn stored_class_settings(extra: &Value) -> Configuration {
        let texts = |list: &Value| -> Option<Vec<String>> {
            let texts = list.as_array()?.iter().filter_map(Value::as_str);
            Some(texts.map(str::to_string).collect())
        };
        let names = texts(&extra["class_names"]).filter(|names| !names.is_empty());
        let words = texts(&extra["vocabulary"]["words"]);
        Configuration::new()
            .with("the list of classes", names.map(|names| listed(&names)))
            .with("the number of classes", extra["classes"].as_u64())
            .with("the vocabulary", words.map(|words| listed(&words)))
            .with("the words of a text", extra["vocabulary"]["steps"].as_u64())
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
        let stored = stored_dataset(extra)?;
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let features: Option<Vec<usize>> = extra["features"]
            .as_array()
            .and_then(|list| list.iter().map(number).collect());
        let (Some(stored), Some(own_model), Some(classes), Some(features)) = (
            stored,
            stored_model(extra),
            number(&extra["classes"]),
            features,
        ) else {
            return Err(not_ours());
        };
        let vocabulary = match &extra["vocabulary"] {
            Value::Null => None,
            value => Some(Vocabulary::from_json(value).ok_or_else(not_ours)?),
        };
        let (name, source) = match model {
            Some(model) => named_model(model)?,
            None => own_model,
        };
        let trained_on = stored.to_string();
        let dataset = dataset.unwrap_or(stored);
        let l2 = stored_l2(metadata);
        let mut task = Self::build(
            (dataset, &name, source),
            (&features, classes),
            vocabulary,
            l2,
        )?;
        task.trained_on = trained_on;
        task.inputs = Inputs::from_json(&extra["inputs"]);
        task.reading = StoredReading::of(metadata);
        task.loss = stored_loss(metadata);
        task.split = SplitRecord::from_json(&extra["split"]);
        let names = extra["class_names"].as_array().into_iter().flatten();
        task.class_names = names
            .filter_map(|name| Some(name.as_str()?.to_string()))
            .collect();
        Ok(task)
    }
}

/// The data set that a checkpoint names.
fn stored_dataset(extra: &Value) -> Result<Option<DatasetName>, Failure> {
    let name = extra["dataset"].as_str();
    let Some(dataset) = name.and_then(|name| name.parse::<DatasetName>().ok()) else {
        return Ok(None);
    };
    let header = match extra["csv_header"].as_str() {
        Some("yes") => Some(CsvHeaderName::Yes),
        Some("no") => Some(CsvHeaderName::No),
        _ => None,
    };
    dataset.with_header(header).map(Some)
}

/// The data set of a checkpoint that this program has written.
pub(crate) fn trained_on(metadata: &Metadata) -> Result<Option<DatasetName>, Failure> {
    let extra = metadata.extra.get(EXTRA_KEY);
    extra.map_or(Ok(None), stored_dataset)
}

/// The `--l2` that a checkpoint was trained with; nothing if the model decided.
pub(crate) fn stored_l2(metadata: &Metadata) -> Option<f64> {
    metadata.extra.get(EXTRA_KEY)?["l2"].as_f64()
}

/// What a checkpoint was trained with; one that does not say it was trained when there was only one
/// loss.
pub(crate) fn stored_loss(metadata: &Metadata) -> LossName {
    let extra = metadata.extra.get(EXTRA_KEY);
    let name = extra.and_then(|extra| extra["loss"].as_str());
    let loss = name.and_then(|name| LossName::from_str(name, true).ok());
    loss.unwrap_or(LossName::CrossEntropy)
}

/// How many times as many classes there may be as labels that occur.
const CLASSES_PER_LABEL: usize = 16;

/// Refuses a number of classes that one wrong label has made: it is the largest label plus one
/// where nothing else says it.
fn check_classes(data: &TrainTest, dataset: &DatasetName) -> Result<(), Failure> {
    let classes = data.train.classes().unwrap_or(1);
    let sets = [&data.train, &data.test];
    if dataset.knows_classes() || !data.train.class_names().is_empty() {
        return Ok(());
    }
    let mut largest = (-1, 0, &data.train);
    let mut used = BTreeSet::new();
    for examples in sets {
        let all: Vec<usize> = (0..examples.len()).collect();
        for (index, label) in examples.labels_i64(&all)?.into_iter().enumerate() {
            used.insert(label);
            if label > largest.0 {
                largest = (label, index, examples);
            }
        }
    }
    let examples = data.train.len() + data.test.len();
    if classes <= examples && classes <= CLASSES_PER_LABEL * used.len() {
        return Ok(());
    }
    let (label, index, set) = largest;
    Err(Failure::refused(format!(
        "{dataset} ({}): the label {label} of example {} (counted from 0) makes {classes} classes, but only \
         {} labels occur in {examples} examples; correct it, or number the classes from 0 on \
         without gaps",
        set.name(),
        set.rows()[index],
        used.len()
    )))
}

fn check_outputs(plan: &Plan) -> Result<(), Failure> {
    plan.check_head()?;
    if !matches!(plan.output(), Shape::Flat(_)) {
        return Err(Failure::refused(format!(
            "{}: the output has the shape {}, a classifier needs one axis; end with Dense",
            plan.name,
            plan.output()
        )));
    }
    if plan.trained_parameters() == 0 {
        let what = match plan.parameters() {
            0 => "add a layer with weights",
            _ => "set `trainable` of a layer with weights, and of the models around it, to true",
        };
        return Err(Failure::refused(format!(
            "{}: there is nothing to train; {what}",
            plan.name
        )));
    }
    Ok(())
}

/// The optimizer that was asked for, with Keras' defaults.
pub(crate) fn optimizer(args: &TrainingArgs) -> Result<Arc<dyn Optimizer>, Error> {
    let mut config = args.compiled_optimizer.clone().unwrap_or(json!({}));
    let numbers = [
        ("learning_rate", args.learning_rate),
        ("weight_decay", args.weight_decay),
        ("ema_momentum", args.ema),
    ];
    for (key, number) in numbers {
        if let Some(number) = number {
            config[key] = json!(number);
        }
    }
    config["use_ema"] = json!(args.ema.is_some());
    config["exclude_from_weight_decay"] = json!(args.weight_decay_exclude);
    from_config(args.optimizer_name(), &config)
}

/// A state that clips its gradients to this norm, if there is one.
pub(crate) fn clipped<M: Module + 'static>(
    state: TrainState<M>,
    norm: Option<f64>,
) -> TrainState<M> {
    match norm {
        Some(norm) => state.clip(Clip::GlobalNorm(norm)),
        None => state,
    }
}
