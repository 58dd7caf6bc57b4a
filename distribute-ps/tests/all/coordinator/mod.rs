//! The coordinator and its workers.

mod bad_input;
mod cut_off;
mod datasets;
mod falling;
mod faults;
mod in_process;
mod orphans;
pub mod processes;
mod roles;
mod scale;
mod semantics;
mod states;
