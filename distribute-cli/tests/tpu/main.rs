//! `--strategy tpu`. These tests compute, so they are not among those that wait.
#![cfg(feature = "full")]

#[path = "../common/mod.rs"]
mod common;
mod models;
#[path = "../../../distribute-tpu-xla/tests/tpu_xla/plugins.rs"]
mod plugins;
mod program;
