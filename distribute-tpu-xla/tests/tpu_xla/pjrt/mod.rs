//! The safe layer over PJRT against real plugins and against false ones.

mod cpu;
mod cpu_compile;
mod cpu_errors;
mod cpu_processes;
mod cpu_threads;
pub mod fake;
mod holes;
mod liar;
mod libtpu;
pub mod support;
