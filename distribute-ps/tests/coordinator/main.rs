//! The coordinator and its workers.

mod bad_input;
mod datasets;
mod generated;
mod in_process;
mod processes;
mod roles;
mod scale;
mod semantics;
mod states;
