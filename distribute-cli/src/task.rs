//! The task that the flags name.

use std::sync::Arc;

use distribute_classifier::{
    LossName, OptimizerOptions, OutputOptions, ReadingOptions, Task, TaskOptions, listed,
};
use distribute_core::checkpoint::Metadata;
use distribute_core::optim::Optimizer;
use distribute_core::{Device, Error};
use distribute_readers::TrainTest;

use crate::failure::Failure;
use crate::flags::{DataArgs, MetricList, OptimizerName, TrainArgs, TrainingArgs};
use crate::option_names::in_flags;

/// The task that `train` is asked for, and its data, ready for the model. A model that is not
/// asked for is that of the checkpoint that training goes on with.
pub(crate) fn opened(
    args: &TrainArgs,
    continued: Option<&Metadata>,
) -> Result<(Task, TrainTest), Failure> {
    let defaults = TaskOptions::default();
    let dataset = args.data.dataset.clone().unwrap_or(defaults.dataset);
    let options = TaskOptions {
        dataset: dataset.with_header(args.data.csv_header)?,
        model: args.data.model.clone(),
        reading: args.data.reading(),
        scale: args.data.scale,
        targets: args.training.targets,
        loss: args.training.loss_of_all(),
        metrics: args.training.metrics.as_ref().and_then(MetricList::of_all),
        outputs: args.training.outputs(),
        class_weights: args.training.class_weight.clone(),
        l2: args.training.l2,
        weights: args.weights.start(),
        freeze: args.weights.freeze.clone(),
        validation_split: args.validation.validation_split,
    };
    let (task, data) = Task::open(&options, continued)?;
    check_excluded(&task, &args.training)?;
    Ok((task, data))
}

/// Refuses exclusions from weight decay where there is none, or no parameter of such a name.
fn check_excluded(task: &Task, args: &TrainingArgs) -> Result<(), Failure> {
    let excluded = &args.weight_decay_exclude;
    if excluded.is_empty() {
        return Ok(());
    }
    let optimizer = optimizer(args).map_err(Failure::usage)?;
    let state = task.state(optimizer, args.seed, &Device::flex().autodiff())?;
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

/// Takes what the flags do not say from what the model was compiled with.
pub(crate) fn complete(task: &mut Task, args: &mut TrainingArgs) {
    let mut options = args.optimizer_options();
    task.complete(&mut options);
    args.optimizer = options.name.map(|name| OptimizerName {
        name,
        settings: options.settings.clone(),
    });
    args.learning_rate = options.learning_rate;
    args.weight_decay = options.weight_decay;
    args.clip_norm = options.clip_norm;
    args.ema = options.ema;
    args.compiled_optimizer = options.compiled;
}

/// What is said before the first step.
pub(crate) fn start_notes(task: &Task) -> impl Iterator<Item = String> {
    task.start_notes().into_iter().map(|text| in_flags(&text))
}

/// The optimizer that was asked for, with Keras' defaults.
pub(crate) fn optimizer(args: &TrainingArgs) -> Result<Arc<dyn Optimizer>, Error> {
    args.optimizer_options().build()
}

impl TrainingArgs {
    /// The loss of the model, or of all outputs.
    pub(crate) fn loss_of_all(&self) -> Option<LossName> {
        let mut all = self.loss.iter().filter(|flag| flag.output.is_none());
        all.next_back().map(|flag| flag.loss)
    }

    /// What the flags say of outputs by their names.
    pub(crate) fn outputs(&self) -> OutputOptions {
        let losses = self.loss.iter();
        let losses = losses.filter_map(|flag| Some((flag.output.clone()?, flag.loss)));
        let metrics = self.metrics.as_ref();
        let weighted = self.weighted_metrics.as_ref();
        OutputOptions {
            losses: losses.collect(),
            loss_weights: self.loss_weights.clone(),
            metrics: metrics.map_or_else(Vec::new, MetricList::of_outputs),
            weighted_metrics: weighted.map_or_else(Vec::new, |list| list.0.clone()),
        }
    }

    /// What the flags, and the model's file once it has been read, say of the optimizer.
    pub(crate) fn optimizer_options(&self) -> OptimizerOptions {
        OptimizerOptions {
            name: self.optimizer.as_ref().map(|named| named.name),
            learning_rate: self.learning_rate,
            weight_decay: self.weight_decay,
            weight_decay_exclude: self.weight_decay_exclude.clone(),
            clip_norm: self.clip_norm,
            settings: self
                .optimizer
                .as_ref()
                .map(|named| named.settings.clone())
                .unwrap_or_default(),
            ema: self.ema,
            compiled: self.compiled_optimizer.clone(),
        }
    }

    /// The optimizer that is trained with.
    pub(crate) fn optimizer_name(&self) -> &'static str {
        self.optimizer_options().name()
    }
}

impl DataArgs {
    /// What the flags say of how files are read.
    pub(crate) fn reading(&self) -> ReadingOptions {
        ReadingOptions {
            data_dir: self.data_dir.clone(),
            csv_delimiter: self.csv_delimiter,
            label_column: self.label_column.clone(),
            sample_weight_column: self.sample_weight_column.clone(),
            color_mode: self.color_mode,
            columns: self.columns.clone(),
        }
    }

    /// Replaces them.
    pub(crate) fn set_reading(&mut self, options: ReadingOptions) {
        self.data_dir = options.data_dir;
        self.csv_delimiter = options.csv_delimiter;
        self.label_column = options.label_column;
        self.sample_weight_column = options.sample_weight_column;
        self.color_mode = options.color_mode;
        self.columns = options.columns;
    }
}
