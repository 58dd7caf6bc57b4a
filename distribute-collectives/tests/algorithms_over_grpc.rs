//! Every algorithm over gRPC connections against a plain loop: the properties of `algorithms.rs`
//! with fewer cases, because every group has to meet first.

mod common;
mod properties;

use common::{Carrier, within_limit};
use distribute_collectives::DType;
use properties::{FLOATS, cases};
use proptest::prelude::*;

const CARRIER: Carrier = Carrier::Grpc;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn every_algorithm_equals_a_naive_reduction(case in cases(CARRIER, &DType::ALL)) {
        within_limit(move || properties::check_exact(&case));
    }

    #[test]
    fn rounding_is_bounded_and_equal_on_all_ranks(case in cases(CARRIER, FLOATS)) {
        within_limit(move || properties::check_rounding(&case));
    }

    #[test]
    fn canonical_order_is_the_same_bits_for_every_algorithm(
        case in cases(CARRIER, &DType::ALL),
    ) {
        within_limit(move || properties::check_canonical(&case));
    }

    #[test]
    fn the_other_operations_equal_naive_ones(case in cases(CARRIER, &DType::ALL)) {
        within_limit(move || properties::check_other_operations(&case));
    }
}
