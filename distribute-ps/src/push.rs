//! Gradients on their way to the servers.

use std::sync::Arc;

use distribute_core::Result;
use distribute_core::remote::{Pushed, RowGradients};

use crate::client::VariableClient;
use crate::error::PsError;
use crate::update::{Gradient, PushOutcome, Versions};
use crate::update_ids::Updates;
use crate::variable::VariableRef;

/// Gradients, and the versions that they were computed at.
pub(crate) type Pushable = (Vec<(VariableRef, Gradient)>, Vec<Versions>);

/// The servers, and the ids of what changes them.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    pub(crate) client: VariableClient,
    pub(crate) updates: Arc<Updates>,
}

impl Servers {
    /// Gradients of rows as they are pushed.
    pub(crate) fn row_gradients(&self, rows: Vec<RowGradients>) -> Result<Pushable, PsError> {
        let one = |rows: RowGradients| {
            let table = self.client.variable(&rows.rows.table)?;
            let gradient = Gradient::Table {
                ids: rows.rows.ids.to_vec(),
                rows: rows.values,
            };
            Ok(((table, gradient), Versions(rows.rows.base)))
        };
        rows.into_iter().map(one).collect()
    }

    /// Pushes gradients as one update. Its step is counted by the first `counted` of them.
    pub(crate) fn push(&self, (gradients, versions): Pushable, counted: usize) -> Result<Pushed> {
        let drawn = self.updates.next()?;
        if gradients.is_empty() {
            return Ok(Pushed::Applied { step: 0 });
        }
        match self.client.push(drawn.id(), gradients, &versions) {
            Ok(outcome) if is_dropped(&outcome) => Ok(Pushed::Dropped),
            Ok(outcome) => Ok(Pushed::Applied {
                step: step_of(outcome.updates.iter().take(counted)),
            }),
            Err(PsError::Stale { .. }) => Ok(Pushed::Dropped),
            Err(error) => Err(error.into()),
        }
    }
}

/// The number of updates of the trained variable that was updated most.
pub(crate) fn step_of<'a>(updates: impl IntoIterator<Item = &'a Versions>) -> u64 {
    let all = updates.into_iter().flat_map(|updates| &updates.0);
    all.copied().max().unwrap_or(0)
}

/// Whether no shard took anything.
fn is_dropped(outcome: &PushOutcome) -> bool {
    outcome.dropped > 0 && outcome.applied + outcome.already_applied + outcome.accumulated == 0
}
