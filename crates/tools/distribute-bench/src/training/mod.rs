//! Measures the throughput of training: the same model, data and arithmetic under every strategy,
//! beside loops written by hand.

mod contenders;
mod cpu_time;
mod independent;
mod models;
mod parameter_server;
mod rounds;
mod strategies;
mod workers;

pub use contenders::{Contender, HandWritten, Steps, Trained, UnderStrategy};
pub use independent::Independent;
pub use models::{BenchModel, ModelUnder};
pub use parameter_server::{ParameterServerJob, ProcessGroup, serve_closures, serve_variables};
pub use rounds::{Comparison, Sample, compare, median_ratio, table};
pub use strategies::{compiled, strategies};
pub use workers::{Workers, serve_steps, serve_worker};
