//! `train --strategy multi-worker` in several processes, as a launcher starts them.

#[path = "../common/mod.rs"]
mod common;
mod configuration;
mod floods;
mod job;
mod refused;
mod stopped;
mod trained;
mod waits;
