//! What is trained on what: the model, its data, and how both are kept in a checkpoint.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use distribute_core::checkpoint::{CheckpointError, Metadata};
use distribute_core::optim::Optimizer;
use distribute_core::{Configuration, Device, TrainState};
use distribute_data::KerasMetric;
use distribute_keras::{Compiled, FoundWeights, Model, ModelError, ModelSpec, Plan, compiled};
use distribute_readers::{CsvColumns, Examples, ImageColor, LabelPlace, TrainTest};
use serde_json::{Value, json};

use crate::checks;
use crate::class_weights;
use crate::dataset_name::DatasetName;
use crate::error::TaskError;
use crate::identity::{Identity, listed};
use crate::inputs::{self, Inputs, Scale};
use crate::loss;
use crate::loss_name::LossName;
use crate::measured::{Measured, MeasuredOutput};
use crate::model_source::{Source, named_model, stored_model};
use crate::names::{ScaleName, TargetsName};
use crate::optimizer::{self, OptimizerOptions};
use crate::output_options::OutputOptions;
use crate::reading::Reading;
use crate::reading_options::{EXTRA_KEY, ReadingOptions};
use crate::several::{self, Asked, Named, NamedData, NamedInput, Several};
use crate::split::{Parts, SplitRecord};
use crate::start_weights::{StartWeights, start};
use crate::stored::{
    stored_dataset, stored_l2, stored_list, stored_loss, stored_metrics, stored_targets,
};
use crate::targets::{self, Hints};
use crate::texts::Texts;

/// A model and the data that it is trained on. The defaults match `distribute-cli train`: a small
/// convolutional network on the embedded digits.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskOptions {
    /// The data set.
    pub dataset: DatasetName,
    /// A built-in model's name, or the path of a model file of Keras; by default the data set's
    /// [`default_model`](DatasetName::default_model).
    pub model: Option<String>,
    /// How the files of the data set are read.
    pub reading: ReadingOptions,
    /// What bytes are divided by.
    pub scale: Option<ScaleName>,
    /// What the labels are; by default what data, model and loss say.
    pub targets: Option<TargetsName>,
    /// By default what the model was compiled with, or what belongs to its last layer and the
    /// targets: cross-entropy, or for values mse.
    pub loss: Option<LossName>,
    /// What is measured beside the loss; by default what the model was compiled with, or the
    /// accuracy, for values the mean absolute error.
    pub metrics: Option<Vec<KerasMetric>>,
    /// Losses and metrics of outputs by their names.
    pub outputs: OutputOptions,
    /// How much the training examples of a class count, by the number or the name of the class.
    pub class_weights: Vec<(String, f32)>,
    /// The L2 factor of all kernels; by default what the model says.
    pub l2: Option<f64>,
    /// The weights to start with.
    pub weights: StartWeights,
    /// Layers that are not trained, see [`ModelSpec::freeze`].
    pub freeze: Vec<String>,
    /// The part of the examples to validate with; by default a fifth, or the data's own test
    /// examples.
    pub validation_split: Option<f64>,
}

impl Default for TaskOptions {
    fn default() -> Self {
        Self {
            dataset: DatasetName::Digits,
            model: None,
            reading: ReadingOptions::default(),
            scale: None,
            targets: None,
            loss: None,
            metrics: None,
            outputs: OutputOptions::default(),
            class_weights: Vec::new(),
            l2: None,
            weights: StartWeights::default(),
            freeze: Vec::new(),
            validation_split: None,
        }
    }
}

/// A model and what it is made for.
#[derive(Debug)]
pub struct Task {
    /// The data set.
    pub dataset: DatasetName,
    /// The model's layers with their shapes.
    pub plan: Plan,
    /// What the classes are called; empty if they are numbers.
    pub class_names: Vec<String>,
    spec: ModelSpec,
    source: Source,
    classes: usize,
    features: Vec<usize>,
    texts: Option<Texts>,
    l2: Option<f64>,
    /// The data set that the checkpoint names.
    pub trained_on: String,
    /// What the split into training and test examples was made of.
    pub split: Option<SplitRecord>,
    /// What the labels are taken for: classes or values.
    pub targets: TargetsName,
    /// What the outputs are compared with the targets by.
    pub loss: LossName,
    /// What is measured beside the loss.
    pub metrics: Vec<KerasMetric>,
    /// Metrics that count by the weights of the examples (Keras: `weighted_metrics`).
    pub weighted_metrics: Vec<KerasMetric>,
    /// The factor of the loss (Keras: `loss_weights`).
    loss_weight: Option<f64>,
    /// The inputs and outputs, of a model with several, or with outputs of several axes.
    pub several: Option<Several>,
    /// What identifies the inputs; older checkpoints do not say it.
    pub inputs: Option<Inputs>,
    /// How the files were read.
    reading: ReadingOptions,
    compiled: Option<Compiled>,
    /// The weights to start with; they are drawn without.
    weights: Option<FoundWeights>,
    /// What is to be said of the data and the model before the first step.
    remarks: Vec<String>,
    /// The identity of the examples, computed on first use.
    identity: OnceLock<Identity>,
}

/// What a task is made of: of data, or of a checkpoint.
struct TaskParts {
    dataset: DatasetName,
    source: Source,
    /// The shape of one example.
    features: Vec<usize>,
    /// The shapes of its inputs, of a model with several.
    shapes: Option<Vec<Vec<usize>>>,
    classes: usize,
    texts: Option<Texts>,
    l2: Option<f64>,
    /// Patterns of layers that are not trained.
    freeze: Vec<String>,
}

impl TaskParts {
    fn build(self) -> Result<Task, TaskError> {
        let tokens = self.texts.as_ref().map_or(1, Texts::tokens);
        let mut spec = self.source.spec(self.classes, tokens)?;
        if let Some(l2) = self.l2 {
            spec = spec.with_l2(l2);
        }
        let frozen = spec.freeze(&self.freeze)?;
        let plan = match &self.shapes {
            Some(shapes) => {
                let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
                spec.plan_all(&shapes)?
            }
            None => {
                let plan = spec.plan(&self.features)?;
                checks::outputs(&plan)?;
                plan
            }
        };
        checks::trained(&plan)?;
        Ok(Task {
            targets: TargetsName::Classes,
            loss: LossName::CrossEntropy,
            metrics: vec![KerasMetric::accuracy()],
            weighted_metrics: Vec::new(),
            loss_weight: None,
            several: None,
            inputs: None,
            reading: ReadingOptions::default(),
            compiled: self.source.file.as_deref().and_then(compiled),
            weights: None,
            remarks: frozen_remark(&frozen),
            trained_on: self.dataset.to_string(),
            dataset: self.dataset,
            plan,
            class_names: Vec::new(),
            spec,
            source: self.source,
            classes: self.classes,
            features: self.features,
            texts: self.texts,
            l2: self.l2,
            split: None,
            identity: OnceLock::new(),
        })
    }
}

/// The data with labels as classes or as values, which they are, and the loss that is asked for or
/// that the model was compiled with.
fn decided(
    options: &TaskOptions,
    source: &Source,
    spec: &ModelSpec,
    parts: Parts,
) -> Result<(Parts, TargetsName, Option<LossName>), TaskError> {
    let ending = source.ending(spec, parts.first());
    let outputs = ending.map_or(1, |(_, outputs)| outputs);
    let named = options.outputs.losses.first().map(|(_, loss)| *loss);
    let loss = match named.or(options.loss) {
        Some(asked) => Some(asked),
        None => source.compiled_loss(outputs)?,
    };
    let hints = Hints {
        asked: options.targets.unwrap_or_default(),
        loss,
        ending,
    };
    let (parts, targets) = targets::decided(parts, hints)?;
    Ok((parts, targets, loss))
}

impl Task {
    /// The task that the options name, and its data, ready for the model. Without a model it is the
    /// model of the checkpoint that training goes on with, or else that of the data set; such a run
    /// keeps its inputs, their scale and its loss, too, unless the options say others.
    ///
    /// # Errors
    /// What cannot be read, and what does not fit the model: see [`TaskError`].
    pub fn open(
        options: &TaskOptions,
        continued: Option<&Metadata>,
    ) -> Result<(Self, TrainTest), TaskError> {
        let dataset = &options.dataset;
        let stored = continued.and_then(|metadata| stored_model(metadata.extra.get(EXTRA_KEY)?));
        // Before the data: a wrong name is found at once.
        let source = match (&options.model, stored) {
            (None, Some(stored)) => stored,
            (named, _) => named_model(named.as_deref().unwrap_or(dataset.default_model()))?,
        };
        let mut how = Reading::new(&options.reading, dataset, source.reads_texts()?)?;
        let trained = continued.and_then(Inputs::of_checkpoint);
        if let (Some((inputs, values)), false) = (&trained, how.as_text) {
            how.columns = inputs.columns(*values);
        }
        let old = continued.is_some() && trained.is_none();
        let scale = match (options.scale, old) {
            // As all checkpoints before had it.
            (None, true) => Scale::as_before(),
            (asked, _) => Scale::new(asked, trained.map(|(inputs, _)| inputs)),
        };
        // A run goes on with its own, whatever its model file says.
        let stored = continued.and_then(|metadata| metadata.extra.get(EXTRA_KEY));
        let asked = continued_options(options, continued, stored);
        let trained = stored.and_then(|stored| NamedInput::stored(&stored["several"]["inputs"]));
        let trained = trained.unwrap_or_default();
        let (mut task, mut data) = Self::read(&asked, &how, source, &scale, &trained)?;
        // A run that goes on has the weights of its checkpoint.
        if continued.is_none() {
            let of_model = task.source.weights.clone();
            let found = start(&options.weights, of_model.as_deref(), &task.plan)?;
            if let Some((weights, remarks)) = found {
                task.weights = Some(weights);
                task.remarks.extend(remarks);
            }
        }
        task.reading = options.reading.clone();
        task.measure(&asked, stored.and_then(stored_loss_weight));
        data.train = class_weights::applied(
            data.train,
            &asked.class_weights,
            &task.class_names,
            &task.dataset,
        )?;
        task.remark_targets(&data.train);
        Ok((task, data))
    }

    /// Decides on the metrics and the factor of the loss; a run that goes on keeps its own.
    fn measure(&mut self, asked: &TaskOptions, trained_weight: Option<f64>) {
        if self.several.is_some() {
            return;
        }
        let compiled = self.compiled.as_ref();
        let known = compiled.map(loss::compiled_metrics);
        let outputs = &asked.outputs;
        let name = self.plan.outputs.first().map_or("", |output| &output.name);
        let own = Some(outputs.metrics_of(name)).filter(|own| !own.is_empty());
        let metrics = own.or(asked.metrics.clone());
        let metrics = metrics.or(known.map(|(known, _)| known));
        self.metrics = metrics
            .filter(|metrics| !metrics.is_empty())
            .unwrap_or_else(|| {
                vec![loss::usual_metric(
                    &self.loss,
                    self.plan.head(),
                    self.targets,
                )]
            });
        self.weighted_metrics = match (outputs.weighted_metrics.is_empty(), compiled) {
            (true, Some(compiled)) => loss::known_metrics(&compiled.weighted_metrics).0,
            _ => outputs.weighted_of(name),
        };
        let own = outputs.loss_weights.iter().find(|(it, _)| it == name);
        let compiled = compiled.and_then(|compiled| compiled.loss_weights.first());
        let weight = own.map(|(_, weight)| *weight).or(trained_weight);
        let weight = weight.or(compiled.map(|(_, weight)| *weight));
        self.loss_weight = weight.filter(|weight| *weight != 1.0);
    }

    /// What is computed of outputs and targets.
    #[must_use]
    pub fn measured(&self) -> Measured {
        if let Some(several) = &self.several {
            return several.measured();
        }
        Measured::of(vec![MeasuredOutput {
            name: None,
            loss: self.loss,
            weight: self.loss_weight,
            metrics: self.metrics.clone(),
            weighted_metrics: self.weighted_metrics.clone(),
            outputs: self.plan.output().elements(),
            target: None,
        }])
    }

    /// Measures this in place of what was measured in training: metrics of all outputs, and of
    /// outputs by their names.
    ///
    /// # Errors
    /// [`TaskError::NamedData`] for a name of no output.
    pub fn measure_others(
        &mut self,
        all: &[KerasMetric],
        of_outputs: &[(String, KerasMetric)],
    ) -> Result<(), TaskError> {
        let known = |name: &str| self.plan.outputs.iter().any(|output| output.name == name);
        if let Some((name, _)) = of_outputs.iter().find(|(name, _)| !known(name)) {
            return Err(TaskError::NamedData {
                model: self.plan.name.clone(),
                what: format!("there is no output {name}"),
            });
        }
        let of = |name: &str| -> Vec<KerasMetric> {
            let own = of_outputs.iter().filter(|(output, _)| output == name);
            let own = own.map(|(_, metric)| *metric);
            all.iter().copied().chain(own).collect()
        };
        for output in self.several.iter_mut().flat_map(|it| &mut it.outputs) {
            output.measured.metrics = of(&output.name);
            output.measured.weighted_metrics.clear();
        }
        let name = self.plan.outputs.first().map_or("", |output| &output.name);
        self.metrics = of(name);
        self.weighted_metrics.clear();
        Ok(())
    }

    /// The losses as one text: the same for runs with the same losses.
    #[must_use]
    pub fn loss_text(&self) -> String {
        match (&self.several, self.loss_weight) {
            (Some(several), _) => several.loss_text(),
            (None, Some(weight)) => format!("{}*{weight}", self.loss.name()),
            (None, None) => self.loss.name(),
        }
    }

    /// The metrics as one text.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        if let Some(several) = &self.several {
            return several.metrics_text();
        }
        let weighted = self.weighted_metrics.iter();
        let weighted = weighted.map(|metric| format!("weighted {metric}"));
        let names = self.metrics.iter().map(ToString::to_string).chain(weighted);
        names.collect::<Vec<_>>().join(",")
    }

    /// Says what the targets are, unless they are class numbers that all count alike, and what is
    /// measured, unless it is the accuracy.
    fn remark_targets(&mut self, train: &Examples) {
        if let Some(several) = &self.several {
            self.remarks.splice(0..0, several.lines());
            return;
        }
        let is_named = !self.class_names.is_empty() && !self.dataset.is_images();
        if self.targets == TargetsName::Values || is_named || train.is_weighted() {
            let line = targets::line(self.targets, train, &self.class_names);
            self.remarks.insert(0, line);
        }
        if self.metrics != [KerasMetric::accuracy()] {
            let names: Vec<String> = self.metrics.iter().map(ToString::to_string).collect();
            self.remarks
                .insert(0, format!("metrics: {}", names.join(", ")));
        }
        if !self.weighted_metrics.is_empty() {
            let names = self.weighted_metrics.iter().map(ToString::to_string);
            let names: Vec<String> = names.collect();
            let line = format!(
                "metrics by the weights of the examples: {}",
                names.join(", ")
            );
            self.remarks.push(line);
        }
    }

    /// A part of the examples, if one is named, is held out.
    fn read(
        options: &TaskOptions,
        how: &Reading,
        source: Source,
        scale: &Scale,
        trained: &[NamedInput],
    ) -> Result<(Self, TrainTest), TaskError> {
        let (dataset, held_out) = (options.dataset.clone(), options.validation_split);
        // Bytes are scaled as the model wants them, which needs no size to be known.
        let spec = source.spec(1, 1)?;
        if spec.inputs.len() > 1 || spec.outputs.len() > 1 {
            checks::no_texts(&spec)?;
            let named = Named::of(&spec, &options.reading.columns, options.scale);
            let named = named.with_divisors_of(trained);
            let data = dataset.read_named(&named, how, true)?;
            return Self::of_named(options, source, scale, data);
        }
        let parts = dataset.read_raw(how)?;
        if source.needs_several(&spec, parts.first()) {
            let data = NamedData::of_one(&spec, parts)?;
            return Self::of_named(options, source, scale, data);
        }
        let (parts, targets, asked) = decided(options, &source, &spec, parts)?;
        let parts = parts.map(|examples| scale.apply(examples, &spec));
        let (split, identity, mut data) = split(parts, &dataset, held_out)?;
        checks::classes(&data, &dataset)?;
        let inputs = Inputs::of(&data.train, &spec);
        let mut remarks = inputs::remarks(&data, &dataset)?;
        // Tokens have no names.
        let class_names = data.train.class_names().to_vec();
        let is_text = data.train.is_text();
        let texts = is_text.then(|| Texts::of(&data.train, &spec)).transpose()?;
        if let Some(texts) = &texts {
            data.train = texts.encode(&data.train, &spec, &mut remarks)?;
            data.test = texts.encode(&data.test, &spec, &mut remarks)?;
        }
        let parts = TaskParts {
            dataset,
            source,
            features: data.train.feature_shape().to_vec(),
            shapes: None,
            classes: targets::outputs(&data.train),
            texts,
            l2: options.l2,
            freeze: options.freeze.clone(),
        };
        let mut task = parts.build()?;
        task.remarks.extend(remarks);
        let plan = &task.plan;
        several::check_names(&options.outputs, plan)?;
        checks::no_columns(&options.reading.columns, plan)?;
        let model = (plan.name.as_str(), plan.head(), plan.output().elements());
        let loss = loss::resolved(asked, model, targets)?;
        if loss::wants_head(&loss) {
            task.plan.check_head()?;
        }
        for examples in [&data.train, &data.test] {
            task.check_labels(examples)?;
            if targets == TargetsName::Values && loss::wants_probabilities(&loss) {
                targets::check_probabilities(examples, &task.plan, &loss)?;
            }
            task.check_tokens(examples)?;
        }
        Ok((
            Self {
                class_names,
                split,
                identity,
                inputs: Some(inputs),
                targets,
                loss,
                ..task
            },
            data,
        ))
    }

    /// The task of a model with several inputs or outputs, or with an output of several axes.
    fn of_named(
        options: &TaskOptions,
        source: Source,
        scale: &Scale,
        named: NamedData,
    ) -> Result<(Self, TrainTest), TaskError> {
        let dataset = options.dataset.clone();
        let spec = source.spec(1, 1)?;
        let parts = named.parts.map(|examples| scale.apply(examples, &spec));
        let (split, identity, data) = split(parts, &dataset, options.validation_split)?;
        let inputs = Inputs::of(&data.train, &spec);
        let remarks = inputs::remarks(&data, &dataset)?;
        let compiled = source.file.as_deref().and_then(compiled);
        let parts = TaskParts {
            dataset,
            source,
            features: data.train.feature_shape().to_vec(),
            shapes: Some(
                named
                    .inputs
                    .iter()
                    .map(|input| input.shape.clone())
                    .collect(),
            ),
            classes: 1,
            texts: None,
            l2: options.l2,
            freeze: options.freeze.clone(),
        };
        let mut task = parts.build()?;
        task.remarks.extend(remarks);
        let asked = Asked {
            loss: options.loss,
            metrics: options.metrics.as_deref(),
            outputs: &options.outputs,
            compiled: compiled.as_ref(),
        };
        let outputs = several::decided(&asked, &task.plan, &named.widths)?;
        task.set_several(Several {
            inputs: named.inputs,
            outputs,
        });
        task.inputs = Some(inputs);
        task.split = split;
        task.identity = identity;
        for examples in [&data.train, &data.test] {
            task.check_labels(examples)?;
            task.check_tokens(examples)?;
        }
        Ok((task, data))
    }

    /// Takes the inputs and outputs; what single values say of them is of the first output.
    fn set_several(&mut self, several: Several) {
        if let Some(first) = several.outputs.first() {
            self.loss = first.measured.loss;
            self.metrics = first.measured.metrics.clone();
        }
        self.targets = TargetsName::Values;
        self.several = Some(several);
    }

    /// Takes what the options do not say from what the model was compiled with. What is not used of
    /// it is among the [`start_notes`](Self::start_notes).
    pub fn complete(&mut self, options: &mut OptimizerOptions) {
        if let Some(compiled) = &self.compiled {
            self.remarks.extend(optimizer::complete(compiled, options));
        }
    }

    /// What is said before the first step: what identifies the inputs of files, and what is not
    /// used or almost certainly meant otherwise.
    pub fn start_notes(&self) -> Vec<String> {
        let of_files = !self.dataset.knows_classes();
        let inputs = self.inputs.as_ref().filter(|_| of_files);
        let is_usual = self.loss == LossName::CrossEntropy || self.several.is_some();
        let loss = (!is_usual).then(|| format!("loss: {}", self.loss.name()));
        let line = inputs.map(|inputs| inputs.line(&self.dataset));
        let first = line.into_iter().chain(loss);
        first.chain(self.remarks.iter().cloned()).collect()
    }

    /// The name of the scale that the data has.
    pub fn scale(&self) -> Option<&'static str> {
        self.inputs.as_ref().map(Inputs::scale)
    }

    /// What identifies the inputs, for programs.
    pub fn inputs_json(&self) -> Value {
        self.inputs.as_ref().map_or(Value::Null, Inputs::to_json)
    }

    /// The model's name or file.
    pub fn model_name(&self) -> &str {
        &self.spec.name
    }

    /// Which examples its data are; reads them unless that has been done.
    pub fn identity(&self, data: &TrainTest) -> Result<Identity, TaskError> {
        if let Some(known) = self.identity.get() {
            return Ok(known.clone());
        }
        let read = Identity::read(data)?;
        Ok(self.identity.get_or_init(|| read).clone())
    }

    /// A training state with the weights of the options, or the initial ones of `seed`.
    pub fn state(
        &self,
        optimizer: Arc<dyn Optimizer>,
        seed: u64,
        device: &Device,
    ) -> Result<TrainState<Model>, ModelError> {
        let model = match &self.weights {
            None => Model::initialized(&self.plan, seed, device)?,
            Some(found) => {
                let weights = found.clone().or_initial(&self.plan, seed);
                Model::new(&self.plan, weights, device)?
            }
        };
        let optimizer = model.constrained(&self.plan, optimizer)?;
        Ok(TrainState::with_optimizer(model, optimizer))
    }

    /// The examples as the model wants them; texts become tokens, and how many were too long is
    /// added to the remarks. The labels of examples that have some must be classes of the model.
    pub fn prepare(
        &self,
        examples: Examples,
        remarks: &mut Vec<String>,
    ) -> Result<Examples, TaskError> {
        let examples = match (&self.texts, examples.is_text()) {
            (Some(texts), true) => texts.encode(&examples, &self.spec, remarks)?,
            _ => examples,
        };
        if let Some(several) = &self.several {
            let widths = several
                .inputs
                .iter()
                .map(|it| it.shape.iter().product::<usize>());
            let (found, wanted) = (examples.feature_shape(), widths.sum::<usize>());
            if found.iter().product::<usize>() != wanted {
                return Err(TaskError::NamedData {
                    model: self.plan.name.clone(),
                    what: format!(
                        "an example has the shape {found:?}, where the inputs have {wanted} values"
                    ),
                });
            }
            if examples.is_labelled() {
                self.check_labels(&examples)?;
            }
            self.check_tokens(&examples)?;
            return Ok(examples);
        }
        let plan = self.spec.plan(examples.feature_shape())?;
        if plan.parameters() != self.plan.parameters() || plan.input() != self.plan.input() {
            let error = ModelError::Input {
                model: self.spec.name.clone(),
                expected: self.plan.input().to_string(),
                found: plan.input().to_string(),
            };
            return Err(error.into());
        }
        if examples.is_labelled() {
            self.check_labels(&examples)?;
        }
        self.check_tokens(&examples)?;
        Ok(examples)
    }

    /// Refuses labels that are no classes of this model.
    ///
    /// # Errors
    /// [`TaskError::UnknownClass`], and if they cannot be read.
    pub fn check_labels(&self, examples: &Examples) -> Result<(), TaskError> {
        if let Some(several) = &self.several {
            let mut outputs = several.outputs.iter();
            return outputs.try_for_each(|output| {
                checks::targets_of(examples, output, &self.plan.name, &self.dataset)
            });
        }
        if examples.classes().is_none() {
            return targets::check_width(examples, &self.plan);
        }
        checks::labels(examples, &self.plan, &self.dataset)
    }

    /// Refuses what no memory holds, and test examples that do not fit the training examples.
    ///
    /// # Errors
    /// [`TaskError::TooLarge`], [`TaskError::OtherShape`].
    pub fn check_sizes(&self, data: &TrainTest) -> Result<(), TaskError> {
        checks::sizes(data, &self.plan, &self.dataset)
    }

    /// Whether the data is where the data of the checkpoint was.
    pub fn is_of_training(&self, how: &Reading) -> bool {
        let same_folder = self.reading.is_of(how.data_dir.as_deref());
        self.dataset.to_string() == self.trained_on && same_folder
    }

    /// How other data is read for this model, where the options do not say it. `scale` is what
    /// [`scaled`](Self::scaled) is asked for: then nothing is divided before.
    pub fn how(
        &self,
        options: &ReadingOptions,
        scale: Option<ScaleName>,
    ) -> Result<Reading, TaskError> {
        let mut options = options.clone();
        let trained: Option<DatasetName> = self.trained_on.parse().ok();
        let same_kind = trained.is_some_and(|trained| trained.kind() == self.dataset.kind());
        if same_kind {
            let same = self.trained_on == self.dataset.to_string();
            options = options.or(self.reading.clone(), same);
        }
        let mut how = Reading::new(&options, &self.dataset, self.is_text())?;
        how.targets = self.targets;
        how.named = self.named(&options, scale);
        how.class_names = self.class_names.clone();
        if options.color_mode.is_none() && self.dataset.is_images() {
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
    pub fn scaled(&self, examples: Examples, asked: Option<ScaleName>) -> Examples {
        let scale = match (&self.inputs, asked) {
            (None, None) => Scale::as_before(),
            (inputs, asked) => Scale::new(asked, inputs.clone()),
        };
        scale.apply(examples, &self.spec)
    }

    /// What other data is read by, for a model with several inputs or outputs.
    fn named(&self, options: &ReadingOptions, scale: Option<ScaleName>) -> Option<Named> {
        let several = self.several.as_ref()?;
        let is_named = several.inputs.len() > 1 || several.outputs.len() > 1;
        is_named.then(|| Named {
            inputs: several.named_inputs(&self.spec),
            ..Named::of(&self.spec, &options.columns, scale)
        })
    }

    fn check_tokens(&self, examples: &Examples) -> Result<(), TaskError> {
        if let Some(several) = &self.several {
            let widths = several.inputs.iter().map(|it| it.shape.iter().product());
            let widths: Vec<usize> = widths.collect();
            return checks::tokens_of_inputs(examples, &self.spec, &widths);
        }
        checks::tokens(examples, &self.spec)
    }

    /// Whether the data is read as texts.
    pub fn is_text(&self) -> bool {
        self.texts.is_some()
    }

    /// What a checkpoint keeps, so that it can be used without naming model and data again.
    pub fn to_extra(&self) -> (&'static str, Value) {
        let value = json!({
            "dataset": self.dataset.to_string(),
            "model": self.spec.name,
            "model_file": self.model_file(),
            "classes": self.classes,
            "class_names": self.class_names,
            "features": self.features,
            "vocabulary": self.texts.as_ref().map(Texts::to_json),
            "l2": self.l2,
            "csv_header": self.dataset.header(),
            "reading": self.reading.to_json(),
            "inputs": self.inputs_json(),
            "targets": self.targets.name(),
            "loss": self.loss.name(),
            "metrics": texts(&self.metrics),
            "weighted_metrics": texts(&self.weighted_metrics),
            "loss_weight": self.loss_weight,
            "several": self.several.as_ref().map(Several::to_json),
            "split": self.split.as_ref().map(SplitRecord::to_json),
        });
        (EXTRA_KEY, value)
    }

    /// The text of the model's file; nothing for a built-in model, which is its name.
    pub fn model_file(&self) -> Option<&str> {
        self.source.file.as_deref()
    }

    /// What the classes mean, and the words of texts.
    pub fn class_settings(&self) -> Configuration {
        let (_, extra) = self.to_extra();
        Self::stored_class_settings(&extra)
    }

    /// That of a checkpoint.
    pub fn stored_class_settings(extra: &Value) -> Configuration {
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
    pub fn from_checkpoint(
        metadata: &Metadata,
        path: &Path,
        dataset: Option<DatasetName>,
        model: Option<&str>,
    ) -> Result<Self, TaskError> {
        let not_ours = || {
            TaskError::from(CheckpointError::Corrupt {
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
        let texts = match &extra["vocabulary"] {
            Value::Null => None,
            value => Some(Texts::from_json(value).ok_or_else(not_ours)?),
        };
        let source = match model {
            Some(model) => named_model(model)?,
            None => own_model,
        };
        let trained_on = stored.to_string();
        let dataset = dataset.unwrap_or(stored);
        let l2 = stored_l2(metadata);
        let parts = TaskParts {
            dataset,
            source,
            features,
            shapes: several::stored_shapes(extra),
            classes,
            texts,
            l2,
            // Which layers were trained changes nothing of what a trained model gives.
            freeze: Vec::new(),
        };
        let mut task = parts.build()?;
        task.trained_on = trained_on;
        task.inputs = Inputs::from_json(&extra["inputs"]);
        task.reading = ReadingOptions::of(metadata);
        task.targets = stored_targets(extra);
        task.loss = stored_loss(metadata);
        if let Some(metrics) = stored_metrics(extra) {
            task.metrics = metrics;
        }
        task.weighted_metrics = stored_list(&extra["weighted_metrics"]).unwrap_or_default();
        task.loss_weight = extra["loss_weight"].as_f64();
        if !extra["several"].is_null() {
            let outputs = several::restored(&task.plan, &extra["several"]["outputs"]);
            let inputs = NamedInput::stored(&extra["several"]["inputs"]);
            let (Some(inputs), Some(outputs)) = (inputs, outputs) else {
                return Err(not_ours());
            };
            task.set_several(Several { inputs, outputs });
        }
        task.split = SplitRecord::from_json(&extra["split"]);
        let names = extra["class_names"].as_array().into_iter().flatten();
        task.class_names = names
            .filter_map(|name| Some(name.as_str()?.to_string()))
            .collect();
        Ok(task)
    }
}

/// The factor of the loss of a run with one output; older checkpoints do not say it.
fn stored_loss_weight(stored: &Value) -> Option<f64> {
    // One that is not kept is 1.
    let weight = stored.get("loss_weight")?;
    Some(weight.as_f64().unwrap_or(1.0))
}

/// The options with what a run that goes on has, where they do not say it.
fn continued_options(
    options: &TaskOptions,
    continued: Option<&Metadata>,
    stored: Option<&Value>,
) -> TaskOptions {
    let mut asked = options.clone();
    let several = stored.map(|stored| &stored["several"]["outputs"]);
    if let Some(outputs) = several.filter(|outputs| outputs.is_array()) {
        let (loss, metrics) = (options.loss.is_some(), options.metrics.is_some());
        asked.outputs = several::stored_options(outputs, asked.outputs, loss, metrics);
        return asked;
    }
    asked.loss = options.loss.or(continued.map(stored_loss));
    asked.metrics = options.metrics.clone().or(stored.and_then(stored_metrics));
    asked.targets = options.targets.or(stored.map(stored_targets));
    let weighted = stored.and_then(|stored| stored_list(&stored["weighted_metrics"]));
    if asked.outputs.weighted_metrics.is_empty() {
        let weighted = weighted.into_iter().flatten();
        asked.outputs.weighted_metrics = weighted.map(|metric| (None, metric)).collect();
    }
    asked
}

/// The examples to train on and to test with, and what a checkpoint keeps of the split.
fn split(
    parts: Parts,
    dataset: &DatasetName,
    held_out: Option<f64>,
) -> Result<(Option<SplitRecord>, OnceLock<Identity>, TrainTest), TaskError> {
    let record = parts.record(held_out)?;
    let data = parts.train_test(dataset, held_out)?;
    let identity = OnceLock::new();
    let split = record.map(|(split, digests)| {
        let identified = digests.identity(&data.train.rows(), &data.test.rows());
        identity.get_or_init(|| identified);
        split
    });
    Ok((split, identity, data))
}

fn texts(metrics: &[KerasMetric]) -> Vec<String> {
    metrics.iter().map(ToString::to_string).collect()
}

/// Which layers are frozen.
fn frozen_remark(frozen: &[String]) -> Vec<String> {
    match frozen {
        [] => Vec::new(),
        all => vec![format!("frozen layers: {}", listed(all))],
    }
}
