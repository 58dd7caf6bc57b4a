//! All tests of this crate's interface, one module per topic, in one program: linking takes longer
//! than compiling. Those that count allocations or need a feature are programs of their own.

mod communication;
mod cross_device;
mod failures;
mod float_types;
mod metrics;
mod multi_worker;
mod reduce;
mod remote;
mod shown;
mod trace;
mod training;
mod variables;
