//! The commands as a user runs them, each in a folder of its own.

mod bad_input;
mod cluster_tools;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod configuration;
mod deploy;
mod documented_events;
mod elastic;
mod events;
mod exit_codes;
mod first_day;
mod flipped_bit;
mod habits;
mod help;
mod inputs;
mod interruptions;
mod job;
mod keras_training;
mod launch;
mod multi_worker;
mod observing;
mod other_names;
mod parameter_server;
mod replicate_state;
mod report;
mod repository;
mod robustness;
mod said_once;
mod same_bits;
mod side_outputs;
mod signals;
mod splits;
mod turned_away;
mod validation;
mod ways;
