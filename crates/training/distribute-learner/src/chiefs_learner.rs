//! All workers go on with the chief's learner: a new one, or one that it read from a checkpoint.

use std::sync::{Arc, Mutex, PoisonError};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, TensorData};
use burn_train::checkpoint::{
    AsyncCheckpointer, Checkpoint, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy,
};
use burn_train::metric::store::EventStoreClient;
use burn_train::{Learner, LearnerModel, LearningCheckpointer};
use distribute_core::{Error, Result};

use crate::team::Team;

/// Model, optimizer and scheduler, as the files of a checkpoint hold them.
const PARTS: usize = 3;

/// The chief's learner and its next epoch, on all workers. All of them call it.
///
/// # Errors
/// On all workers if one has another model than the chief.
pub(crate) fn of_chief<M: LearnerModel>(
    team: &Team,
    learner: Learner<M>,
    starting_epoch: usize,
    store: &EventStoreClient,
) -> Result<(Learner<M>, usize)> {
    if team.is_alone() {
        return Ok((learner, starting_epoch));
    }
    let own = if team.is_chief() {
        team.or_abort(records(&learner, store))?
    } else {
        Vec::new()
    };
    let mut said = team.all_with_tensors("the chief's learner", starting_epoch, own)?;
    let (epoch, parts) = said.swap_remove(0);
    let taken = if team.is_chief() {
        Ok(learner)
    } else {
        with_records(learner, parts)
    };
    let learner = team.all_succeed("whether the chief's learner fits", taken)?;
    Ok((learner, epoch))
}

/// What a checkpoint of this learner holds: burn has no other way to read an optimizer's state.
fn records<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
) -> Result<Vec<TensorData>> {
    let slots: [Slot; PARTS] = Default::default();
    let [model, optimizer, scheduler] = slots.clone();
    let mut checkpointer = LearningCheckpointer::new(
        AsyncCheckpointer::new(model),
        AsyncCheckpointer::new(optimizer),
        AsyncCheckpointer::new(scheduler),
        Box::new(Now),
    );
    checkpointer.checkpoint(learner, 0, store);
    // Waits for its threads.
    drop(checkpointer);
    slots.into_iter().map(Slot::into_tensor).collect()
}

/// Saves at once.
struct Now;

impl CheckpointingStrategy for Now {
    fn checkpointing(&mut self, _: usize, _: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

/// Keeps what is saved, as bytes.
#[derive(Clone, Default)]
struct Slot(Arc<Mutex<Option<Bytes>>>);

impl Slot {
    fn into_tensor(self) -> Result<TensorData> {
        let mut saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = saved.take().ok_or_else(|| {
            Error::invalid("burn did not hand out the learner's state for the other workers")
        })?;
        Ok(TensorData::new(bytes.to_vec(), [bytes.len()]))
    }
}

impl<R: Checkpoint> Checkpointer<R> for Slot {
    fn save(&self, _: usize, record: R) -> Result<(), CheckpointerError> {
        let bytes = record.checkpoint_into_bytes();
        let bytes = bytes.map_err(CheckpointerError::Record)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
        Ok(())
    }

    fn delete(&self, _: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _: usize) -> Result<R, CheckpointerError> {
        let nothing = "nothing is read here".to_string();
        Err(CheckpointerError::Unknown(nothing))
    }
}

/// The learner with the state of another one.
fn with_records<M: LearnerModel>(
    mut learner: Learner<M>,
    parts: Vec<TensorData>,
) -> Result<Learner<M>> {
    let parts: Vec<Bytes> = parts
        .into_iter()
        .map(|part| part.try_into_vec().map(Bytes::from_bytes_vec))
        .collect::<Result<_, _>>()
        .map_err(|_| incomplete())?;
    let [model, optimizer, scheduler] = parts.try_into().map_err(|_| incomplete())?;
    let model = ModuleRecord::from_bytes(model).map_err(Error::internal)?;
    // burn's `load_model` panics where this is an error.
    let fits = learner.model().try_load_record(model.clone());
    fits.map_err(|error| {
        Error::invalid(format!(
            "the chief's model does not fit: {error}; build the same model on all workers"
        ))
    })?;
    learner.load_model(model);
    learner.load_optim(OptimizerRecord::from_bytes(optimizer).map_err(Error::internal)?);
    learner.load_scheduler(LrSchedulerRecord::from_bytes(scheduler).map_err(Error::internal)?);
    Ok(learner)
}

fn incomplete() -> Error {
    Error::invalid("the chief's learner arrived incomplete")
}
