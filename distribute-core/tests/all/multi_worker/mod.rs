//! `MultiWorkerMirroredStrategy`: several workers give what one replica gives, values of all
//! workers come together, and a worker that differs or fails is named. Workers are threads here,
//! with the same groups between them as between processes; the command line's tests have
//! processes.

mod failures;
pub(crate) mod group;
mod layouts;
mod options;
mod overlap;
mod recompute;
mod training;
mod values;
mod wire;
