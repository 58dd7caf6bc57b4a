//! `MultiWorkerMirroredStrategy`: several workers give what one replica gives, values of all
//! workers come together, and a worker that differs or fails is named. Workers are threads here,
//! with the same groups between them as between processes; the command line's tests have
//! processes.

mod common;
mod failures;
mod fit;
mod interrupted;
mod overlap;
#[expect(
    dead_code,
    reason = "shared with the tests of fit, which use all of it"
)]
#[path = "../fit/common.rs"]
mod points;
mod training;
mod values;
