//! `--strategy tpu`. These tests compute, so they are not among those that wait.

#[path = "../common/mod.rs"]
mod common;
mod models;
mod program;
