//! All tests of this crate's interface, one module per topic, in one program: linking takes longer
//! than compiling. Those that count allocations or need a feature are programs of their own.

mod communication;
mod cross_device;
mod failures;
mod float_types;
mod loss_scale;
mod metrics;
mod multi_worker;
mod optimizers;
mod policy;
mod reduce;
mod remote;
mod running_statistics;
mod shown;
mod sync_batch_norm;
mod trace;
mod training;
mod turns;
mod variables;
