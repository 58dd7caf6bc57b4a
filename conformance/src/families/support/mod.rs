//! What the adapters of several families share.

pub(crate) mod compiled;
mod given;
pub(crate) mod models;
mod values;

pub(crate) use given::Given;
pub(crate) use values::{class, expected, lists, per_replica, reduce_op, same_lists, take_rows};
