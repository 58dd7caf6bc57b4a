//! The order in which an epoch reads the examples.

use std::sync::{Arc, Mutex};

/// The order of an epoch's examples.
#[derive(Debug)]
pub(crate) enum Order {
    AsIs,
    Listed(Vec<usize>),
}

/// The order of the epoch that single batches were asked of last.
pub(crate) type LastOrder = Mutex<Option<(usize, Arc<Order>)>>;
