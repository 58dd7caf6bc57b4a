//! Which examples of a data set are trained on, tested on or asked for.
//!
//! A fifth of a data set without test examples is held out, by a fixed seed and the number of
//! examples. A checkpoint keeps that number and a digest of the examples, so that later nothing
//! that was trained on is taken for a test: when examples were added, those that were there are
//! split as they were, and the new ones, which no training has used, are test examples.

use distribute_readers::{Examples, ReadError, TrainTest};
use serde_json::{Value, json};

use crate::dataset_name::DatasetName;
use crate::error::TaskError;
use crate::identity::RowDigests;
use crate::names::SplitName;

/// Held out of a data set that comes without test examples.
const TEST_FRACTION: f64 = 0.2;
/// Fewer examples cannot be split that way.
const MIN_EXAMPLES: usize = 3;
/// The seed of that split: fixed, so that a model is never tested on what it was trained on.
const SPLIT_SEED: u64 = 1998;

/// A data set as it was read.
#[derive(Debug)]
pub enum Parts {
    /// It has test examples of its own.
    Separate(TrainTest),
    /// It has none.
    Whole(Examples),
}

/// The examples that a checkpoint's split was made of, and which part of them was held out.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitRecord {
    examples: usize,
    sha256: String,
    held_out: f64,
}

/// The examples that `evaluate` or `predict` was asked for.
#[derive(Debug)]
pub struct Chosen {
    /// The examples.
    pub examples: Examples,
    /// The row of each example in its file or set, counted from 0.
    pub rows: Vec<usize>,
    /// Where the training examples end, if both sets were asked for.
    pub both: Option<usize>,
    /// Which they are.
    pub split: SplitName,
    /// What is said of the choice once nothing can be refused any more.
    pub note: Option<String>,
}

impl Parts {
    /// The same of other examples.
    #[must_use]
    pub fn map(self, change: impl Fn(Examples) -> Examples) -> Self {
        match self {
            Self::Separate(TrainTest { train, test }) => Self::Separate(TrainTest {
                train: change(train),
                test: change(test),
            }),
            Self::Whole(all) => Self::Whole(change(all)),
        }
    }

    /// The training examples, or all.
    pub fn first(&self) -> &Examples {
        match self {
            Self::Separate(both) => &both.train,
            Self::Whole(all) => all,
        }
    }

    /// What a checkpoint keeps of the split, and the digests of the examples that it is of;
    /// nothing if the data set makes its own. `held_out` is the part that was asked for.
    pub fn record(
        &self,
        held_out: Option<f64>,
    ) -> Result<Option<(SplitRecord, RowDigests)>, ReadError> {
        let (all, held_out) = match (self, held_out) {
            (Self::Whole(all), held_out) => (all, held_out.unwrap_or(TEST_FRACTION)),
            (Self::Separate(both), Some(held_out)) => (&both.train, held_out),
            (Self::Separate(_), None) => return Ok(None),
        };
        let digests = RowDigests::of(all)?;
        let record = SplitRecord::of(all, all.len(), held_out, &digests);
        Ok(Some((record, digests)))
    }

    /// The examples to train on and to test with. A part that is asked for is held out of the
    /// training examples; the data's own test examples are left for `evaluate` then.
    pub fn train_test(
        self,
        name: &DatasetName,
        held_out: Option<f64>,
    ) -> Result<TrainTest, TaskError> {
        match (self, held_out) {
            (Self::Separate(both), None) => Ok(both),
            (Self::Separate(both), Some(part)) => hold_out(&both.train, name, part),
            (Self::Whole(all), part) => hold_out(&all, name, part.unwrap_or(TEST_FRACTION)),
        }
    }

    /// The examples that were asked for, where `trained` says what the checkpoint was trained on.
    /// `same` is whether the data set is the one that the checkpoint names.
    pub fn choose(
        self,
        wanted: Option<SplitName>,
        trained: Option<&SplitRecord>,
        name: &DatasetName,
        same: bool,
    ) -> Result<Chosen, TaskError> {
        let all = match self {
            Self::Separate(mut both) => {
                let record = trained.filter(|_| wanted == Some(SplitName::Train));
                if let Some(record) = record
                    && record.begins(&both.train)?
                {
                    both.train = record.split(&both.train, name)?.train;
                }
                return given(both, wanted.unwrap_or(SplitName::Test));
            }
            Self::Whole(all) => all,
        };
        let whole = |all: Examples| Chosen {
            rows: all.rows(),
            examples: all,
            both: None,
            split: SplitName::All,
            note: None,
        };
        if wanted == Some(SplitName::All) {
            return Ok(whole(all));
        }
        let split = wanted.unwrap_or(SplitName::Test);
        let both = match trained {
            None => hold_out(&all, name, TEST_FRACTION)?,
            Some(record) if record.begins(&all)? => record.split(&all, name)?,
            Some(record) if same => return Err(record.changed(&all, name)),
            Some(_) if wanted.is_none() => {
                let note = format!(
                    "{name} is not what the checkpoint was trained on: all {} examples are used",
                    all.len()
                );
                let note = Some(note);
                return Ok(Chosen { note, ..whole(all) });
            }
            Some(_) => hold_out(&all, name, TEST_FRACTION)?,
        };
        let grown = trained.filter(|record| record.examples < all.len());
        let note = grown
            .filter(|_| same)
            .map(|record| record.grown(&all, name));
        let examples = match split {
            SplitName::Train => both.train,
            SplitName::Test | SplitName::All => both.test,
        };
        Ok(Chosen {
            rows: examples.rows(),
            examples,
            both: None,
            split,
            note,
        })
    }
}

/// A part of a data set that has test examples of its own.
fn given(both: TrainTest, split: SplitName) -> Result<Chosen, TaskError> {
    let (examples, rows, ends) = match split {
        SplitName::Train => (both.train.clone(), both.train.rows(), None),
        SplitName::Test => (both.test.clone(), both.test.rows(), None),
        SplitName::All => {
            let rows = [both.train.rows(), both.test.rows()].concat();
            let joined = both.train.joined(&both.test)?;
            (joined, rows, Some(both.train.len()))
        }
    };
    Ok(Chosen {
        examples,
        rows,
        both: ends,
        split,
        note: None,
    })
}

/// Splits data that comes without test examples, or of which a part is to be held out.
fn hold_out(all: &Examples, name: &DatasetName, part: f64) -> Result<TrainTest, TaskError> {
    if part == TEST_FRACTION && all.len() < MIN_EXAMPLES {
        return Err(TaskError::TooFewExamples {
            dataset: name.to_string(),
            examples: all.len(),
            least: MIN_EXAMPLES,
        });
    }
    all.train_test(part, SPLIT_SEED)
        .map_err(|error| match error {
            ReadError::BadSplit { examples, .. } => TaskError::EmptySplit {
                dataset: name.to_string(),
                examples,
                part,
            },
            other => other.into(),
        })
}

impl Chosen {
    /// All of what has no labels.
    pub fn unlabelled(examples: Examples, note: String) -> Self {
        Self {
            rows: examples.rows(),
            examples,
            both: None,
            split: SplitName::All,
            note: Some(note),
        }
    }
}

impl SplitRecord {
    /// Of the first `count` examples, which have these digests.
    fn of(all: &Examples, count: usize, held_out: f64, digests: &RowDigests) -> Self {
        Self {
            examples: count,
            sha256: digests.in_order(all.feature_shape()),
            held_out,
        }
    }

    /// Whether the examples begin with those that the split was made of.
    fn begins(&self, all: &Examples) -> Result<bool, ReadError> {
        if all.len() < self.examples {
            return Ok(false);
        }
        let digests = RowDigests::of_first(all, self.examples)?;
        Ok(Self::of(all, self.examples, self.held_out, &digests) == *self)
    }

    /// The split as it was made; examples that have been added are for testing.
    fn split(&self, all: &Examples, name: &DatasetName) -> Result<TrainTest, TaskError> {
        let old: Vec<usize> = (0..self.examples).collect();
        let mut both = hold_out(&all.subset(&old)?, name, self.held_out)?;
        if all.len() > self.examples {
            let mut test = both.test.rows();
            test.extend(self.examples..all.len());
            both.test = all.subset(&test)?;
        }
        Ok(both)
    }

    fn grown(&self, all: &Examples, name: &DatasetName) -> String {
        format!(
            "{name} has {} examples, {} more than when the checkpoint was trained; those are test \
             examples",
            all.len(),
            all.len() - self.examples
        )
    }

    fn changed(&self, all: &Examples, name: &DatasetName) -> TaskError {
        TaskError::OtherExamples {
            dataset: name.to_string(),
            before: self.examples,
            examples: all.len(),
        }
    }

    /// For a checkpoint.
    pub fn to_json(&self) -> Value {
        json!({
            "examples": self.examples,
            "sha256": self.sha256,
            "held_out": self.held_out,
        })
    }

    /// From a checkpoint.
    pub fn from_json(value: &Value) -> Option<Self> {
        Some(Self {
            examples: usize::try_from(value["examples"].as_u64()?).ok()?,
            sha256: value["sha256"].as_str()?.to_string(),
            // Checkpoints that do not say it had no other.
            held_out: value["held_out"].as_f64().unwrap_or(TEST_FRACTION),
        })
    }
}
