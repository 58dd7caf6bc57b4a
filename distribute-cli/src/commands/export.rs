//! `export`: the weights of a checkpoint as a file of Keras.

use std::io::Write;

use distribute_classifier::Task;
use distribute_core::DefaultStrategy;
use distribute_keras::{WeightFormat, written_weights};

use super::restore::{find, state_of};
use crate::events;
use crate::failure::Failure;
use crate::flags::ExportArgs;
use crate::notes::note;
use crate::output_file::{OutputFile, cannot_write, check_file};

pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let Some(format) = WeightFormat::of(&args.to) else {
        return Err(Failure::usage(format!(
            "--to {}: the name must end with .weights.h5, .keras, .safetensors or .npz, by which \
             Keras too knows what the file is",
            args.to.display()
        )));
    };
    check_file(&args.to).map_err(|error| cannot_write(&args.to, &error))?;
    let (path, checkpoint) = find(&args.checkpoint)?;
    let task = Task::from_checkpoint(&checkpoint.metadata, &path, None, None)?;
    let state = state_of(&checkpoint, &task, &DefaultStrategy::new())?;
    let weights = state.primary()?.model.weights(&task.plan)?;
    let bytes = written_weights(format, &task.plan, &weights, task.model_file())?;
    let written = OutputFile::create(&args.to).and_then(|mut file| {
        (&mut file).write_all(&bytes)?;
        file.finish()
    });
    written.map_err(|error| cannot_write(&args.to, &error))?;
    if let Some(scale) = task.scale() {
        note(&format!(
            "the model was trained on inputs with --scale {scale}; scale what Keras predicts in \
             the same way"
        ));
    }
    let numbers = task.plan.parameters();
    events::line(&format!(
        "{}: {} weights, {numbers} numbers, of {} after step {}",
        args.to.display(),
        weights.len(),
        task.model_name(),
        checkpoint.metadata.step
    ))
}
