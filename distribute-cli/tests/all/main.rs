//! The commands as a user runs them, each in a folder of its own.

mod bad_input;
mod cluster_tools;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod configuration;
mod deploy;
mod help;
mod interruptions;
mod job;
mod keras_training;
mod launch;
mod multi_worker;
mod parameter_server;
mod robustness;
mod splits;
