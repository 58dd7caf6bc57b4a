//! What every communicator of this crate does when its ranks disagree.

use std::time::Duration;

use distribute_collectives::{Algorithm, GroupOptions, contract};
use rstest::rstest;

use crate::common::{Carrier, within_limit};

#[rstest]
#[case(Carrier::Threads)]
#[cfg_attr(feature = "shm", case(Carrier::SharedMemory))]
#[cfg_attr(feature = "grpc", case(Carrier::Grpc))]
fn ranks_that_disagree_get_an_error_and_never_a_number(
    #[case] carrier: Carrier,
    #[values(Algorithm::Auto, Algorithm::Ring)] algorithm: Algorithm,
    #[values(2, 3)] world_size: usize,
) {
    within_limit(move || {
        let options = GroupOptions::default()
            .algorithm(algorithm)
            .timeout(Duration::from_secs(20));
        let checked = contract::check(|| Ok(carrier.group(world_size, options.clone())));
        checked.unwrap();
    });
}
