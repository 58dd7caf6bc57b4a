//! Every operation on a few elements: small enough for Miri, which looks at how the ranks share
//! their buffers.

use super::in_process;
use crate::communicator::{Communicator, CommunicatorExt};
use crate::error::CollectiveError;
use crate::options::{Algorithm, GroupOptions};
use crate::reduce::ReduceOp;
use crate::testing::on_threads;

const RANKS: usize = 3;

#[test]
fn ranks_share_their_buffers_only_while_an_operation_runs() {
    // Blocks of two elements, so that several ranks work on one buffer.
    let options = GroupOptions::default().segment_bytes(8);
    for algorithm in [Algorithm::Direct, Algorithm::Ring] {
        let endpoints = in_process(RANKS, options.clone().algorithm(algorithm)).unwrap();
        on_threads(endpoints, |mut endpoint| {
            let rank = endpoint.rank();
            let mut sum = [rank as f32; 7];
            endpoint
                .all_reduce(ReduceOp::Sum, &mut [(&mut sum[..]).into()])
                .unwrap();
            assert_eq!(sum, [3.0; 7]);
            let mut most = [rank as i64; 5];
            let own = endpoint
                .reduce_scatter(ReduceOp::Max, (&mut most[..]).into())
                .unwrap();
            assert!(most[own].iter().all(|value| *value == 2));
            let mut root = [rank as u8; 3];
            endpoint
                .broadcast(1, &mut [(&mut root[..]).into()])
                .unwrap();
            assert_eq!(root, [1; 3]);
            let gathered = endpoint.all_gather(&vec![rank as i32; rank]).unwrap();
            assert_eq!(gathered.values(), [1, 2, 2]);
            endpoint.barrier().unwrap();
        });
    }
}

#[test]
fn a_rank_that_leaves_gives_the_others_their_buffers_back() {
    let endpoints = in_process(RANKS, GroupOptions::default()).unwrap();
    on_threads(endpoints, |mut endpoint| {
        if endpoint.rank() == 1 {
            return;
        }
        let mut vector = [1.0_f64; 4];
        let error = endpoint
            .all_reduce(ReduceOp::Sum, &mut [(&mut vector[..]).into()])
            .unwrap_err();
        assert!(matches!(error, CollectiveError::PeerLost { rank: 1, .. }));
        // Its buffer is its own again.
        assert_eq!(vector, [1.0; 4]);
    });
}
