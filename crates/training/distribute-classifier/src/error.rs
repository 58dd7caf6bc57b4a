//! The one error type of the crate.

use std::path::PathBuf;

use distribute_core::checkpoint::CheckpointError;
use distribute_keras::{BUILT_IN, ModelError};
use distribute_readers::ReadError;

/// Why a model cannot be trained on a data set, or used on it: what does not fit, and what to do.
///
/// Arrives inside `Error::Input` where `?` makes a [`distribute_core::Error`] of it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The data cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The model cannot be read or built, or does not take such inputs.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint is not one of such a task.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no such model file.
    #[error(
        "there is no model file {path}; check the path, or name a built-in model: {}",
        names()
    )]
    NoModelFile {
        /// What was named.
        path: String,
    },
    /// There is no such model.
    #[error(
        "unknown model `{model}`: {}Use {} or a file that Keras' `model.to_json()` wrote",
        nearest(model),
        names()
    )]
    UnknownModel {
        /// What was named.
        model: String,
    },
    /// The model's output is not one axis.
    #[error(
        "{model}: the output has the shape {shape}, a classifier needs one axis; end with Dense"
    )]
    OutputShape {
        /// The model.
        model: String,
        /// Its output.
        shape: String,
    },
    /// The model has no trainable parameter.
    #[error("{model}: there is nothing to train; {advice}")]
    NothingToTrain {
        /// The model.
        model: String,
        /// What to change.
        advice: &'static str,
    },
    /// The model's file says that it was compiled with a loss that is not among
    /// [`LossName`](crate::LossName).
    #[error(
        "{model}: it was compiled with the loss {loss}, which is not trained with here on \
         {outputs} outputs of this kind; choose another by `TaskOptions::loss`: cross-entropy, mse \
         or mae"
    )]
    OtherLoss {
        /// The model.
        model: String,
        /// Its loss, with arguments.
        loss: String,
        /// Its number of outputs.
        outputs: usize,
    },
    /// A difference between one linear output and a class is no loss of a classifier.
    #[error(
        "{model}: one output without a sigmoid, compared by this loss, is a regression, and the \
         labels are classes; leave out `TargetsName::Classes`, end with a sigmoid, or choose \
         `LossName::CrossEntropy`"
    )]
    Regression {
        /// The model.
        model: String,
    },
    /// An option about the first line of a table, and no table.
    #[error("`DatasetName::with_header` is for csv:FILE, {dataset} has no header")]
    NoHeader {
        /// The data set.
        dataset: String,
    },
    /// A folder for a data set that names its own.
    #[error(
        "`ReadingOptions::data_dir` is for mnist, fashion-mnist and images, {dataset} does not need \
         it"
    )]
    DataDirectory {
        /// The data set.
        dataset: String,
    },
    /// An option about another kind of data set.
    #[error("`ReadingOptions::{option}` is for {kind}, not for {dataset}")]
    OtherKind {
        /// The field of [`ReadingOptions`](crate::ReadingOptions).
        option: &'static str,
        /// The data sets that it is for.
        kind: &'static str,
        /// The data set.
        dataset: String,
    },
    /// Texts have no labels to train on.
    #[error(
        "{dataset}: lines of text have no labels, so they are for `predict`; use csv:FILE with the \
         columns text and label"
    )]
    TextLines {
        /// The data set.
        dataset: String,
    },
    /// A table of texts without a header.
    #[error(
        "the model `text` finds its columns by their names; `CsvHeader::Absent` is for tables of \
         numbers"
    )]
    TextWithoutHeader,
    /// Numbers where the model `text` needs texts.
    #[error(
        "the model `text` needs texts, {dataset} has numbers; use csv:FILE with the columns text \
         and label"
    )]
    NotTexts {
        /// The data set.
        dataset: String,
    },
    /// Images without their folder.
    #[error(
        "the data set images needs the folder of the images, one folder per class: \
         `DatasetName::ImagesAt`, or `ReadingOptions::data_dir`"
    )]
    NoImageFolder,
    /// The folder of a data set of four files is not there.
    #[error(
        "{} does not exist; put {files} there (.gz or not), or name their folder with \
         `ReadingOptions::data_dir`",
        folder.display()
    )]
    NoFolder {
        /// Where it was looked for.
        folder: PathBuf,
        /// The files it should hold.
        files: String,
    },
    /// Inputs or outputs of a model, and the data by their names, that do not fit each other.
    #[error("{model}: {what}")]
    NamedData {
        /// The model.
        model: String,
        /// What does not fit, and what to do.
        what: String,
    },
    /// Names where values are asked for.
    #[error(
        "{dataset}: the labels are names of classes, such as {name}, and no values; leave out \
         `TargetsName::Values`"
    )]
    NamesAsValues {
        /// The file or set.
        dataset: String,
        /// One of the names.
        name: String,
    },
    /// Another number of target values than outputs.
    #[error(
        "{dataset}: there are {found} target values for each example, and {model} has {outputs} \
         outputs; name as many columns as outputs, or end with Dense({found})"
    )]
    TargetWidth {
        /// The file or set.
        dataset: String,
        /// How many values an example has.
        found: usize,
        /// The model.
        model: String,
        /// Its number of outputs.
        outputs: usize,
    },
    /// A target value that is no probability, for a cross-entropy.
    #[error(
        "{dataset}: example {row} (counted from 0) has the target {value}, and {loss} of {model} \
         wants targets from 0 to 1; choose a loss of values such as `LossName::Mse`"
    )]
    NotProbability {
        /// The file or set.
        dataset: String,
        /// The example's row there.
        row: usize,
        /// The value.
        value: f32,
        /// The model.
        model: String,
        /// The loss.
        loss: String,
    },
    /// A loss of one choice among several outputs where there is none.
    #[error(
        "{model}: {loss} is of one choice among several outputs, given by a class, and does not fit \
         {outputs} outputs and data with {targets}; choose another loss, such as \
         `LossName::CrossEntropy` or `LossName::Mse`"
    )]
    LossOfClasses {
        /// The model.
        model: String,
        /// The loss.
        loss: String,
        /// The number of outputs.
        outputs: usize,
        /// What the labels are: `classes` or `values`.
        targets: &'static str,
    },
    /// A name for each example.
    #[error(
        "{dataset}: each of the {examples} examples has a label of its own, so these are no \
         classes; name the column of the label by `ReadingOptions::label_column`"
    )]
    NameForEach {
        /// The data set.
        dataset: String,
        /// How many examples there are.
        examples: usize,
    },
    /// Weights for classes that are not there.
    #[error("{dataset}: {what}; class weights are CLASS=WEIGHT, of classes that the data has")]
    ClassWeights {
        /// The data set.
        dataset: String,
        /// What is wrong.
        what: String,
    },
    /// The labels are values, no classes.
    #[error(
        "{0}; for a model that returns values say its loss, such as `LossName::Mse`, or \
         `TargetsName::Values`"
    )]
    NotClasses(#[source] ReadError),
    /// A label that is no class of the model.
    #[error(
        "{dataset} ({set}): example {row} (counted from 0) has the label {label}, but {model} \
         tells {classes} classes apart, 0 to {}; correct the label, or choose another model or \
         data set",
        classes - 1
    )]
    UnknownClass {
        /// The data set.
        dataset: String,
        /// The file or set of the example.
        set: String,
        /// The example's row there.
        row: usize,
        /// Its label.
        label: i64,
        /// The model.
        model: String,
        /// How many classes the model tells apart.
        classes: usize,
    },
    /// One label makes many classes that never occur.
    #[error(
        "{dataset} ({set}): the label {label} of example {row} (counted from 0) makes {classes} \
         classes, but only {used} labels occur in {examples} examples; correct it, or number the \
         classes from 0 on without gaps"
    )]
    ManyClasses {
        /// The data set.
        dataset: String,
        /// The file or set of the example.
        set: String,
        /// The example's row there.
        row: usize,
        /// The largest label.
        label: i64,
        /// How many classes there would be.
        classes: usize,
        /// How many different labels occur.
        used: usize,
        /// How many examples there are.
        examples: usize,
    },
    /// A value where the model's embedding needs a token number.
    #[error(
        "{set}: example {index} has {value} where {model} wants a token number from 0 to {}; \
         choose another model or correct the data",
        tokens - 1
    )]
    NotToken {
        /// The file or set of the example.
        set: String,
        /// Which example it is, from 0.
        index: usize,
        /// The value.
        value: f32,
        /// The model.
        model: String,
        /// How many tokens the model has.
        tokens: usize,
    },
    /// Too few examples to hold a fifth out.
    #[error(
        "{dataset} has {examples} examples, too few to hold a fifth out for testing; at least \
         {least} are needed"
    )]
    TooFewExamples {
        /// The data set.
        dataset: String,
        /// How many it has.
        examples: usize,
        /// How many are needed.
        least: usize,
    },
    /// A part that holds out all examples or none.
    #[error(
        "`TaskOptions::validation_split` {part} leaves none of the {examples} examples of {dataset} \
         to train on or to validate with; choose another part"
    )]
    EmptySplit {
        /// The data set.
        dataset: String,
        /// How many examples it has.
        examples: usize,
        /// The part that was asked for.
        part: f64,
    },
    /// The data set is not the one that the checkpoint was trained on, by the examples it begins
    /// with.
    #[error(
        "{dataset} does not begin with the {before} examples that the checkpoint's split was made \
         of (it has {examples} now), so which of them were trained on is not known; use \
         `SplitName::All` if it is other data, or bring it back as it was"
    )]
    OtherExamples {
        /// The data set.
        dataset: String,
        /// How many examples the split was made of.
        before: usize,
        /// How many it has now.
        examples: usize,
    },
    /// The model is larger than any memory.
    #[error(
        "the model {model} has more than {most} parameters; with gradients and optimizer state that \
         is over 32 GiB a replica: make its layers smaller"
    )]
    TooLarge {
        /// The model.
        model: String,
        /// How many parameters are allowed.
        most: usize,
    },
    /// Training and test examples of different shapes.
    #[error(
        "{dataset}: the training examples have the shape {train:?}, the test examples {test:?}; \
         both must be alike"
    )]
    OtherShape {
        /// The data set.
        dataset: String,
        /// The shape of a training example.
        train: Vec<usize>,
        /// The shape of a test example.
        test: Vec<usize>,
    },
}

distribute_error::debug_as_message!(TaskError);

distribute_core::wrap_errors!(Input: TaskError);

impl TaskError {
    /// Whether the same call would fail again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Read(error) => error.is_permanent(),
            Self::Model(error) => error.is_permanent(),
            Self::Checkpoint(error) => error.is_permanent(),
            _ => true,
        }
    }
}

/// The built-in models.
fn names() -> String {
    let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// The question whether another one was meant, if one has nearly this name.
fn nearest(model: &str) -> String {
    let nearest = distribute_error::nearest(model, BUILT_IN.iter().map(|(name, _)| *name));
    nearest.map_or_else(String::new, |name| format!("did you mean `{name}`? "))
}
