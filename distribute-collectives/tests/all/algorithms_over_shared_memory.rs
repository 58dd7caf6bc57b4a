//! Every algorithm over shared memory against a plain loop: the properties of `algorithms.rs` with
//! fewer cases, because every group has to meet first.

use crate::common::Carrier;
use crate::properties;

properties::hold_over!(Carrier::SharedMemory, 8 cases);
