//! What clients and parameter servers say to each other.
//!
//! A call is one message to the server, a [`Request`] and the run that it belongs to, and one back:
//! the reply, or why there is none. A payload may follow each of them, raw bytes in the order that
//! the message gives; numbers in it are little-endian.
//!
//! | request | payload | reply | payload |
//! |---|---|---|---|
//! | `Create` | | the numbers of the shards on the server | |
//! | `Catalog` | | [`ShardSpec`]s | |
//! | `Join` | | [`RunOptions`] | |
//! | `Pull` | | [`Pulled`] | values |
//! | `PullRows` | row numbers | [`Pulled`] | values |
//! | `Prepare` | | whether some of its shards have had it: it may come everywhere | |
//! | `Push` | gradients | an [`Outcome`] for each part | |
//! | `Assign` | values | an [`Outcome`] for each part | |
//! | `Snapshot` | | [`State`] | values and slots |
//! | `Restore` | values and slots | nothing | |
//! | all others | | nothing | |

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use crate::error::{PsError, Result};
use crate::update::{RunOptions, UpdateKey};
use crate::variable::VariableSpec;

/// What a client asks of a server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The coordinator begins a run with these rules.
    Attach(RunOptions),
    /// A process takes part in the run.
    Join {
        /// The coordinator that began the run is here again, over a new connection.
        is_coordinator: bool,
    },
    Create(Vec<ShardSpec>),
    Catalog,
    Pull(Pull),
    PullRows(PullRows),
    Prepare(Prepare),
    Push(Push),
    Assign(Assign),
    /// All closures below are finished.
    FinishedBelow(u64),
    /// Closures below are cancelled: what they still ask for is refused, what waits is let go.
    CancelledBelow(u64),
    /// The push of this closure will not come.
    Abandon(u64),
    /// A prepared update will not come.
    Withdraw(UpdateKey),
    LearningRate(f64),
    ShutDown,
    Snapshot,
    Restore(State),
}

impl Request {
    /// Whether a repetition does what one call does.
    pub(crate) fn may_repeat(&self) -> bool {
        !matches!(self, Self::Create(_))
    }
}

/// One shard of a variable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ShardSpec {
    pub(crate) variable: VariableSpec,
    /// The number of the shard within its variable, and how many there are.
    pub(crate) number: u32,
    pub(crate) num_shards: u32,
    /// The first row, and how many there are.
    pub(crate) offset: usize,
    pub(crate) rows: usize,
    /// The number of the variable in creation order.
    pub(crate) order: u64,
    /// The number of the shard on its server.
    pub(crate) id: u32,
}

impl ShardSpec {
    /// The only shard of a variable without an optimizer.
    #[cfg(test)]
    pub(crate) fn whole(name: &str, dtype: DType, shape: &[usize]) -> Self {
        Self {
            variable: VariableSpec {
                name: name.to_string(),
                shape: shape.to_vec(),
                dtype,
                optimizer: None,
            },
            number: 0,
            num_shards: 1,
            offset: 0,
            rows: shape.first().copied().unwrap_or(1),
            order: 0,
            id: 0,
        }
    }

    /// Bytes of the shard, and of one of its rows (of the only element of a scalar).
    ///
    /// # Errors
    /// [`PsError::InvalidArgument`] if the variable cannot have such rows.
    pub(crate) fn sizes(&self) -> Result<(usize, usize)> {
        let VariableSpec { shape, dtype, .. } = &self.variable;
        let whole = shape.first().copied().unwrap_or(1);
        let end = self.offset.checked_add(self.rows);
        // In whatever order they are multiplied.
        let mut sizes = shape.iter().map(|size| *size.max(&1));
        let can_be_counted = sizes.try_fold(dtype.size(), usize::checked_mul).is_some();
        if !can_be_counted || end.is_none_or(|end| end > whole) {
            return Err(PsError::invalid(format!(
                "variable `{}`: its shard has rows that it cannot have",
                self.variable.name
            )));
        }
        let others = shape.get(1..).unwrap_or_default();
        let row = others.iter().product::<usize>() * dtype.size();
        Ok((row * self.rows, row))
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pull {
    /// The closure that computes a gradient with these values.
    pub(crate) closure: Option<u64>,
    /// Whether `f32` travels as bf16.
    pub(crate) bf16: bool,
    pub(crate) wants: Vec<PullItem>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct PullItem {
    pub(crate) id: u32,
    /// The version that the client has.
    pub(crate) known: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PullRows {
    pub(crate) bf16: bool,
    pub(crate) id: u32,
    pub(crate) count: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pulled {
    pub(crate) got: Vec<PulledItem>,
    /// If one was set in this run.
    pub(crate) learning_rate: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PulledItem {
    pub(crate) counts: Counts,
    /// Bytes in the payload; 0 when the client has this version.
    pub(crate) bytes: u64,
}

/// How often a shard was changed, and how often the optimizer was applied to it.
///
/// Versions only rise, so that no client takes another value for the one that it has; a restore
/// may put the number of updates back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) version: u64,
    pub(crate) updates: u64,
}

/// A gradient or a value of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) id: u32,
    /// The version that the gradient was computed at.
    pub(crate) base: Option<u64>,
    /// Row numbers before the rows; absent for a dense gradient.
    pub(crate) rows: Option<u64>,
    /// Bytes of the payload, without the row numbers.
    pub(crate) bytes: u64,
    /// Of the elements on their way.
    pub(crate) dtype: DType,
}

/// Asks whether an update of several servers may come, and keeps its place until it is pushed or
/// withdrawn, or the connection ends.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Prepare {
    pub(crate) update: UpdateKey,
    pub(crate) parts: Vec<Part>,
    /// Another server has refused it: only whether its shards have had it.
    pub(crate) only_ask: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Push {
    pub(crate) update: UpdateKey,
    pub(crate) parts: Vec<Part>,
    /// All servers have said that it may come.
    pub(crate) is_prepared: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Assign {
    /// Absent: applied however often it comes.
    pub(crate) update: Option<UpdateKey>,
    pub(crate) assignment: Assignment,
    pub(crate) parts: Vec<Part>,
}

/// What becomes of a value by another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Assignment {
    Assign,
    Combine(Combine),
}

impl Assignment {
    /// Its name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Assign => "assign",
            Self::Combine(Combine::Add) => "assign_add",
            Self::Combine(Combine::Subtract) => "assign_sub",
        }
    }
}

/// What is done to a value with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Combine {
    Add,
    Subtract,
}

/// What an update did to a shard, and its counts after it.
pub(crate) type Outcome = (UpdateEffect, Counts);

/// What an update did to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum UpdateEffect {
    Applied,
    AlreadyApplied,
    Accumulated,
    Dropped,
}

/// The state of a server.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) shards: Vec<ShardState>,
    pub(crate) learning_rate: Option<f64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ShardState {
    pub(crate) id: u32,
    pub(crate) counts: Counts,
    /// Whether there is a value; it comes first, then the slots.
    pub(crate) is_initialized: bool,
    pub(crate) slots: Vec<String>,
}

impl ShardState {
    /// How many tensors of it there are in the payload.
    pub(crate) fn tensors(&self) -> usize {
        if self.is_initialized {
            1 + self.slots.len()
        } else {
            0
        }
    }
}
