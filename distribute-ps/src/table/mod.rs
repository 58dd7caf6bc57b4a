//! Embedding tables: large variables of which a step uses few rows.
//!
//! A *table* lies on the parameter servers, cut into shards by the strategy's partitioner. A step
//! *looks up* the rows of its ids; each distinct row travels once. The gradients of a loss that
//! depends on the rows include the rows' gradients besides the model's, so `apply_gradients`
//! sends all of them in one update, and the servers change only the rows that were looked up.
//! This is TensorFlow's `tf.nn.embedding_lookup` of a sharded variable.
//!
//! ```no_run
//! use burn::nn::LinearConfig;
//! use distribute_core::{Adam, Sgd, TrainState};
//! use distribute_ps::{Program, TableSpec, WorkerContext};
//!
//! let mut program = Program::new();
//! let state = program.state("model", |device| {
//!     TrainState::new(LinearConfig::new(16, 1).init(device), Adam::new(1e-3))
//! });
//! let words = program.table("words", TableSpec::new(100_000, 16, Sgd::new(0.5)));
//! program.step("train", move |worker: &WorkerContext, (ids, length): (Vec<i64>, usize)| {
//!     let ids = distribute_core::TensorData::new(ids.clone(), [ids.len() / length, length]);
//!     let rows = worker.lookup(&words, ids)?;
//!     worker.run(&state, rows, |ctx, (state, rows)| {
//!         let embedded = rows.tensor::<3>(ctx)?; // [batch, length, 16]
//!         let loss = state.model.forward(embedded.mean_dim(1)).square().mean();
//!         let gradients = ctx.gradient(&loss, &state.model)?;
//!         state.apply_gradients(ctx, gradients)?;
//!         Ok(loss.into_scalar::<f32>())
//!     })
//! });
//! ```
//!
//! # What the servers do with the gradients of rows
//!
//! - Rows that were looked up several times in one update have the sum of their gradients.
//! - The optimizer changes only these rows and their slots: Adam and momentum are *lazy*. A row
//!   without a gradient keeps value and slots, bit by bit (weight decay does not reach it either).
//! - The step number that Adam's bias correction uses is the number of updates of the table,
//!   whichever rows they changed and however many shards there are.
//! - A closure that runs a second time changes nothing a second time, neither in the model nor in
//!   the table: both are one update with one id.
//! - [`clip_by_global_norm`](distribute_core::TrainState::clip_by_global_norm) counts the rows'
//!   gradients in and scales them. Micro-batches add up.
//! - The learning rate that a state is set to is that of all optimizers on the servers, also of
//!   tables.
//!
//! # Staleness and synchronous training
//!
//! The version of a shard of a table counts the updates of the table, of whatever rows. So a
//! staleness bound that refuses refuses the gradient of rows that were looked up more than `bound`
//! updates of the table ago, and nothing of that push is applied there; one that waits lets a
//! lookup wait as it does a pull (look rows up before `run`, so that all closures wait in one
//! order). A synchronous round of a shard has one gradient of each of its workers, also of those
//! that looked up none of its rows, and applies the sum of the gradients divided by their number.
//! A worker whose step does not look the table up at all has no part in its rounds.
//!
//! # Limits
//!
//! Tables are of `f32`, with two dimensions. A table is made on the coordinator shard by shard, so
//! one shard has to fit into its memory (and into
//! [`max_shard_bytes`](crate::ServerOptions::max_shard_bytes)), the table does not; a snapshot
//! holds the whole table. What can be looked up at once is bounded by
//! [`max_request_bytes`](crate::ServerOptions::max_request_bytes).

mod checkpoint;
mod ids;
mod initial;
mod rows;
mod spec;

use std::sync::Arc;

use burn::tensor::TensorData;
use distribute_core::remote::RemoteRows;

pub use initial::TableInitializer;
pub use rows::Rows;
pub use spec::TableSpec;

pub(crate) use checkpoint::{add, add_slots, add_tables, slots_in, take_tables};

use crate::error::Result;
use crate::push::Servers;
use crate::variable::VariableRef;
use ids::Ids;

/// What stands before the names of tables on the servers and in checkpoints.
const PREFIX: &str = "table/";

/// A table on the parameter servers, as a coordinator or a worker has it. See [`table`](self).
#[derive(Debug, Clone)]
pub struct EmbeddingTable {
    name: Arc<str>,
    servers: Servers,
    variable: VariableRef,
}

impl EmbeddingTable {
    pub(crate) fn new(name: &str, servers: Servers, variable: VariableRef) -> Self {
        Self {
            name: name.into(),
            servers,
            variable,
        }
    }

    /// The name that it was registered with. On the servers and in checkpoints `table/` stands
    /// before it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.variable.shape()[0]
    }

    /// The number of elements of a row.
    pub fn width(&self) -> usize {
        self.variable.shape()[1]
    }

    /// The variable on the servers, with its shards.
    pub fn variable(&self) -> &VariableRef {
        &self.variable
    }

    /// Looks rows up (TensorFlow: `tf.nn.embedding_lookup`): each distinct row is pulled once.
    /// `ids` are integers of any type, in any shape, also none at all. Blocks.
    ///
    /// # Errors
    /// [`PsError::UnknownId`](crate::PsError::UnknownId) for an id that the table does not have,
    /// negative ones included; [`PsError::DType`](crate::PsError::DType) for ids that are no
    /// integers; the errors of a pull.
    pub fn lookup(&self, ids: impl Into<TensorData>) -> Result<Rows> {
        let ids = Ids::new(&self.name, self.rows(), &ids.into())?;
        let Servers { client, updates } = &self.servers;
        let pulled = client.look_up(&self.variable, &ids.distinct, updates.closure())?;
        let rows = RemoteRows {
            table: self.variable.name().into(),
            ids: ids.distinct.into(),
            base: pulled.versions.0,
        };
        Ok(Rows::new(rows, pulled.values, ids.places, ids.shape))
    }
}

/// The name on the servers.
pub(crate) fn variable_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}
