//! Every algorithm over gRPC connections against a plain loop: the properties of `algorithms.rs`
//! with fewer cases, because every group has to meet first.

mod common;
mod properties;

use common::Carrier;

properties::hold_over!(Carrier::Grpc, 8 cases);
