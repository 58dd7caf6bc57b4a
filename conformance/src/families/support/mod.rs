//! What the adapters of several families share.

pub(crate) mod compiled;
mod dynamic_tensor;
pub(crate) mod models;
pub(crate) mod sharded;
mod values;
mod variables;

pub(crate) use dynamic_tensor::{DynamicTensor, with_tensor};
pub(crate) use values::{
    aggregation, class, expected, lists, per_replica, reduce_op, same_lists, synchronization,
    take_rows,
};
pub(crate) use variables::Variables;
