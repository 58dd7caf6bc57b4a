//! What the other ranks see when one rank fails: an error that names it, never a hang.

use std::sync::mpsc;
use std::time::Duration;

use distribute_collectives::flight_record::Recorded;
use distribute_collectives::{
    Algorithm, Buffer, CollectiveError, Communicator, CommunicatorExt, DType, GatherTarget,
    Gathered, GroupOptions, InProcessCommunicator, OperationHeader, OperationKind, ReduceOp,
    Result, Transport, TransportCommunicator, in_process, in_process_transports,
};
use rstest::rstest;

use crate::common::{BeforeSend, Carrier, on_ranks, on_ranks_over, within_limit};

fn options(algorithm: Algorithm) -> GroupOptions {
    GroupOptions::default()
        .algorithm(algorithm)
        .segment_bytes(16)
}

fn all_reduce(endpoint: &mut dyn Communicator) -> Result<()> {
    let mut vector = [1.0_f32; 100];
    endpoint.all_reduce(ReduceOp::Sum, &mut [Buffer::from(&mut vector[..])])
}

fn lost_rank(result: Result<()>) -> (usize, String) {
    match result {
        Err(CollectiveError::PeerLost { rank, reason, .. }) => (rank, reason),
        other => panic!("expected PeerLost, got {other:?}"),
    }
}

fn assert_poisoned(endpoint: &mut dyn Communicator, cause: &CollectiveError) {
    match all_reduce(endpoint) {
        Err(CollectiveError::Poisoned { cause: found }) => assert_eq!(*found, *cause),
        other => panic!("expected Poisoned, got {other:?}"),
    }
}

#[rstest]
fn a_panicking_rank_is_named(
    #[values(
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::DirectExchange,
        Algorithm::Hierarchical { ranks_per_host: 2 }
    )]
    algorithm: Algorithm,
    #[values(0, 2)] lost: usize,
) {
    within_limit(move || {
        let endpoints = in_process(4, options(algorithm)).unwrap();
        let threads: Vec<_> = endpoints
            .into_iter()
            .map(|mut endpoint| {
                std::thread::spawn(move || {
                    all_reduce(&mut endpoint).unwrap();
                    if endpoint.rank() == lost {
                        std::panic::resume_unwind(Box::new("lost on purpose"));
                    }
                    let result = all_reduce(&mut endpoint);
                    let cause = result.clone().unwrap_err();
                    assert_poisoned(&mut endpoint, &cause);
                    result
                })
            })
            .collect();
        for (rank, thread) in threads.into_iter().enumerate() {
            match thread.join() {
                Err(_) => assert_eq!(rank, lost),
                Ok(result) => {
                    assert_eq!(lost_rank(result), (lost, "its thread panicked".to_string()));
                }
            }
        }
    });
}

#[rstest]
fn a_dropped_endpoint_is_named(#[values(Algorithm::Direct, Algorithm::Ring)] algorithm: Algorithm) {
    within_limit(move || {
        let results = on_ranks(3, options(algorithm), |mut endpoint| {
            (endpoint.rank() != 1).then(|| all_reduce(&mut endpoint))
        });
        for result in results.into_iter().flatten() {
            assert_eq!(
                lost_rank(result),
                (1, "its endpoint was dropped".to_string())
            );
        }
    });
}

/// Ranks that finish at different times drop their endpoints while others still work.
#[rstest]
fn leaving_after_the_last_operation_harms_no_rank(
    #[values(
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::DirectExchange,
        Algorithm::Hierarchical { ranks_per_host: 2 }
    )]
    algorithm: Algorithm,
) {
    within_limit(move || {
        for _ in 0..100 {
            for result in on_ranks(4, options(algorithm), |mut endpoint| {
                all_reduce(&mut endpoint)
            }) {
                result.unwrap();
            }
        }
    });
}

#[rstest]
fn a_rank_that_dies_between_segments_is_named(
    #[values(
        Algorithm::Ring,
        Algorithm::HalvingDoubling,
        Algorithm::DirectExchange,
        Algorithm::Hierarchical { ranks_per_host: 2 }
    )]
    algorithm: Algorithm,
    #[values(0, 3, 10)] sends: usize,
) {
    within_limit(move || {
        let options = options(algorithm);
        let threads: Vec<_> = in_process_transports(4, &options)
            .into_iter()
            .map(|inner| {
                let mut sends_left = (inner.rank() == 2).then_some(sends);
                // The thread dies in the middle of an algorithm.
                let call = move |_| match &mut sends_left {
                    Some(0) => std::panic::resume_unwind(Box::new("died in a send")),
                    Some(left) => *left -= 1,
                    None => {}
                };
                let transport = BeforeSend { inner, call };
                let mut endpoint = TransportCommunicator::new(transport, options.clone()).unwrap();
                std::thread::spawn(move || {
                    // A rank that needs nothing from the dead one may finish the first call.
                    all_reduce(&mut endpoint).and_then(|()| all_reduce(&mut endpoint))
                })
            })
            .collect();
        for (rank, thread) in threads.into_iter().enumerate() {
            match thread.join() {
                Err(_) => assert_eq!(rank, 2),
                Ok(result) => {
                    assert_eq!(lost_rank(result), (2, "its thread panicked".to_string()));
                }
            }
        }
    });
}

#[rstest]
fn a_missing_rank_is_a_timeout(#[values(Algorithm::Direct, Algorithm::Ring)] algorithm: Algorithm) {
    within_limit(move || {
        let options = options(algorithm).timeout(Duration::from_millis(50));
        let mut endpoints = in_process(3, options).unwrap();
        let mut absent = endpoints.remove(1);
        let threads: Vec<_> = endpoints
            .into_iter()
            .map(|mut endpoint| std::thread::spawn(move || all_reduce(&mut endpoint)))
            .collect();
        let mut errors = Vec::new();
        for thread in threads {
            errors.push(thread.join().unwrap().unwrap_err());
        }
        match &errors[0] {
            // Either rank may meet the deadline first; the other one may not have been there yet.
            CollectiveError::Timeout {
                missing, elapsed, ..
            } => {
                assert!(missing.contains(&1), "{missing:?}");
                assert!(*elapsed >= Duration::from_millis(50));
            }
            other => panic!("expected Timeout, got {other:?}"),
        }
        assert_eq!(errors[0], errors[1]);
        // The late rank learns the same, and no buffers are touched.
        assert_eq!(all_reduce(&mut absent).unwrap_err(), errors[0]);
        assert_poisoned(&mut absent, &errors[0]);
    });
}

/// What one rank calls while the others call `all_reduce(Sum)` on two buffers of `f32`.
fn odd_call(endpoint: &mut InProcessCommunicator, what: &str) -> Result<()> {
    let (mut a, mut b) = ([1.0_f32; 8], [1.0_f32; 4]);
    let (mut short, mut long) = ([1.0_f32; 7], [1.0_f32; 5]);
    let (mut wide, mut wide_b) = ([1.0_f64; 8], [1.0_f64; 4]);
    let mut one = [1.0_f32; 12];
    let sum = ReduceOp::Sum;
    match what {
        "op" => endpoint.all_reduce(
            ReduceOp::Max,
            &mut [(&mut a[..]).into(), (&mut b[..]).into()],
        ),
        "dtype" => {
            endpoint.all_reduce(sum, &mut [(&mut wide[..]).into(), (&mut wide_b[..]).into()])
        }
        "count" => endpoint.all_reduce(sum, &mut [(&mut a[..]).into(), (&mut long[..]).into()]),
        "number of buffers" => endpoint.all_reduce(sum, &mut [(&mut one[..]).into()]),
        "lengths" => {
            endpoint.all_reduce(sum, &mut [(&mut short[..]).into(), (&mut long[..]).into()])
        }
        "kind" => endpoint.barrier(),
        other => panic!("unknown call {other}"),
    }
}

#[rstest]
fn different_calls_are_a_mismatch_on_all_ranks(
    #[values(Algorithm::Direct, Algorithm::Ring)] algorithm: Algorithm,
    #[values("op", "dtype", "count", "number of buffers", "lengths", "kind")] difference: &str,
    #[values(0, 2)] odd: usize,
) {
    let difference = difference.to_string();
    within_limit(move || {
        let results = on_ranks(3, options(algorithm), |mut endpoint| {
            let result = if endpoint.rank() == odd {
                odd_call(&mut endpoint, &difference)
            } else {
                let (mut a, mut b) = ([1.0_f32; 8], [1.0_f32; 4]);
                let buffers = &mut [(&mut a[..]).into(), (&mut b[..]).into()];
                endpoint.all_reduce(ReduceOp::Sum, buffers)
            };
            let error = result.unwrap_err();
            assert_poisoned(&mut endpoint, &error);
            error
        });
        for error in &results {
            match error {
                CollectiveError::Mismatch {
                    rank_a,
                    rank_b,
                    what,
                    ..
                } => {
                    assert_eq!(*rank_a, 0);
                    assert_eq!(*rank_b, if odd == 0 { 1 } else { odd });
                    assert!(what.contains(&difference), "{what}");
                }
                other => panic!("expected Mismatch, got {other:?}"),
            }
            assert_eq!(error, &results[0]);
        }
    });
}

#[rstest]
fn different_roots_are_a_mismatch(
    #[values(Algorithm::Direct, Algorithm::Ring)] algorithm: Algorithm,
) {
    within_limit(move || {
        let results = on_ranks(3, options(algorithm), |mut endpoint| {
            let mut vector = [1.0_f32; 8];
            let root = usize::from(endpoint.rank() == 1);
            endpoint.broadcast(root, &mut [(&mut vector[..]).into()])
        });
        for result in results {
            let error = result.unwrap_err();
            let mismatch = matches!(&error, CollectiveError::Mismatch { what, rank_b: 1, .. }
                if what.contains("root"));
            assert!(mismatch, "{error:?}");
        }
    });
}

#[rstest]
fn abort_ends_a_waiting_operation(
    #[values(Algorithm::Direct, Algorithm::Ring)] algorithm: Algorithm,
) {
    within_limit(move || {
        let mut endpoints = in_process(3, options(algorithm)).unwrap();
        let mut aborting = endpoints.remove(2);
        let threads: Vec<_> = endpoints
            .into_iter()
            .map(|mut endpoint| std::thread::spawn(move || all_reduce(&mut endpoint)))
            .collect();
        aborting.abort("out of disk space");
        let expected = CollectiveError::Aborted {
            rank: 2,
            reason: "out of disk space".to_string(),
        };
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Err(expected.clone()));
        }
        assert_eq!(all_reduce(&mut aborting), Err(expected.clone()));
        assert_poisoned(&mut aborting, &expected);
    });
}

/// The handle ends an operation that its own endpoint waits in.
#[test]
fn an_abort_handle_works_from_another_thread() {
    within_limit(|| {
        let mut endpoints = in_process(2, options(Algorithm::Direct)).unwrap();
        let _other = endpoints.pop();
        let mut endpoint = endpoints.remove(0);
        let handle = endpoint.abort_handle();
        let thread = std::thread::spawn(move || all_reduce(&mut endpoint));
        handle.abort("watchdog");
        let result = thread.join().unwrap();
        assert!(
            matches!(result, Err(CollectiveError::Aborted { rank: 0, .. })),
            "{result:?}"
        );
    });
}

#[test]
fn wrong_arguments_leave_the_group_usable() {
    within_limit(|| {
        assert!(in_process(0, GroupOptions::default()).is_err());
        let no_host = Algorithm::Hierarchical { ranks_per_host: 0 };
        assert!(in_process(2, options(no_host)).is_err());
        on_ranks(2, options(Algorithm::Direct), |mut endpoint| {
            let (mut floats, mut ints) = ([1.0_f32; 2], [1_i32; 2]);
            let mixed = &mut [(&mut floats[..]).into(), (&mut ints[..]).into()];
            let error = endpoint.all_reduce(ReduceOp::Sum, mixed).unwrap_err();
            assert!(
                !error.is_fatal() && error.to_string().contains("f32 and i32"),
                "{error}"
            );
            let error = endpoint
                .broadcast(2, &mut [(&mut floats[..]).into()])
                .unwrap_err();
            assert!(error.to_string().contains("the root is rank 2"), "{error}");
            let own = endpoint.rank();
            assert!(endpoint.send(own, (&mut floats[..]).into()).is_err());
            all_reduce(&mut endpoint).unwrap();
        });
    });
}

#[rstest]
fn send_and_recv(#[values(Algorithm::Direct, Algorithm::Ring)] algorithm: Algorithm) {
    within_limit(move || {
        on_ranks(3, options(algorithm), |mut endpoint| {
            let mut vector: Vec<i64> = (0..33).map(|i| i * (endpoint.rank() as i64 + 1)).collect();
            match endpoint.rank() {
                0 => {
                    endpoint.send(2, (&mut vector).into()).unwrap();
                    endpoint.recv(2, (&mut vector).into()).unwrap();
                    assert_eq!(vector[32], 32);
                }
                2 => {
                    endpoint.recv(0, (&mut vector).into()).unwrap();
                    assert_eq!(vector[32], 32);
                    endpoint.send(0, (&mut vector).into()).unwrap();
                }
                _ => {}
            }
            all_reduce(&mut endpoint).unwrap();
        });
    });
}

/// Of those that are not threads of one group.
#[cfg(feature = "grpc")]
#[rstest]
#[cfg_attr(feature = "shm", case(Carrier::SharedMemory))]
#[case(Carrier::Grpc)]
fn a_call_with_a_rank_that_has_left_ends_no_call_of_others(#[case] carrier: Carrier) {
    within_limit(move || {
        let [failed, over] = [3, 3].map(std::sync::Barrier::new);
        on_ranks_over(carrier, 4, options(Algorithm::Ring), |mut endpoint| {
            let rank = endpoint.rank();
            if rank == 0 {
                return;
            }
            let mut message = [rank as i64];
            if rank == 1 {
                let error = endpoint.recv(0, Buffer::from(&mut message[..]));
                assert!(
                    matches!(error, Err(CollectiveError::PeerLost { rank: 0, .. })),
                    "{error:?}"
                );
            }
            failed.wait();
            for _ in 0..20 {
                match rank {
                    2 => endpoint.send(3, Buffer::from(&mut message[..])).unwrap(),
                    3 => endpoint.recv(2, Buffer::from(&mut message[..])).unwrap(),
                    _ => {}
                }
            }
            over.wait();
        });
    });
}

/// Also where the receiver learns that the sender has left before it has looked for the message
/// again, and where it hears of another rank's leaving while it waits.
#[rstest]
#[case(Carrier::Threads, 500)]
#[cfg_attr(feature = "shm", case(Carrier::SharedMemory, 100))]
#[cfg_attr(feature = "grpc", case(Carrier::Grpc, 100))]
fn what_a_rank_sent_before_it_left_arrives(#[case] carrier: Carrier, #[case] groups: usize) {
    within_limit(move || {
        for group in 0..groups {
            on_ranks_over(carrier, 3, options(Algorithm::Ring), |mut endpoint| {
                let mut message = [group as i64];
                match endpoint.rank() {
                    0 => {
                        for _ in 0..group % 4 {
                            std::thread::yield_now();
                        }
                        endpoint.send(1, Buffer::from(&mut message[..])).unwrap();
                    }
                    1 => {
                        let mut received = [i64::MAX];
                        let result = endpoint.recv(0, Buffer::from(&mut received[..]));
                        assert_eq!((result, received), (Ok(()), message), "group {group}");
                    }
                    _ => {}
                }
            });
        }
    });
}

#[test]
fn a_receiver_with_another_type_is_a_mismatch_on_both_ranks() {
    within_limit(|| {
        let errors = on_ranks(2, options(Algorithm::Direct), |mut endpoint| {
            let (mut floats, mut ints) = ([1.0_f32; 4], [1_i32; 4]);
            let result = match endpoint.rank() {
                0 => endpoint.send(1, (&mut floats[..]).into()),
                _ => endpoint.recv(0, (&mut ints[..]).into()),
            };
            result.unwrap_err()
        });
        assert_eq!(errors[0], errors[1]);
        let text = errors[0].to_string();
        assert!(
            text.contains("dtype is f32 on one and i32 on the other"),
            "{text}"
        );
    });
}

/// Memory that panics when it is asked for: user code that fails inside an operation.
struct PanickingTarget;

impl GatherTarget for PanickingTarget {
    fn resize(&mut self, _bytes_by_rank: &[usize]) -> &mut [u8] {
        std::panic::resume_unwind(Box::new("no memory"))
    }
}

#[test]
fn a_panic_inside_a_running_operation_fails_it_on_all_ranks() {
    within_limit(|| {
        let (sender, receiver) = mpsc::channel();
        for mut endpoint in in_process(3, options(Algorithm::Direct)).unwrap() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                if endpoint.rank() == 1 {
                    let _ = endpoint.all_gather_into(DType::U8, &[1], &mut PanickingTarget);
                }
                let result = endpoint.all_gather(&[endpoint.rank() as u8]).map(|_| ());
                // A rank that was done before the panic sees it in its next operation.
                let result = result.and_then(|()| endpoint.barrier());
                sender.send(result).unwrap();
            });
        }
        drop(sender);
        for result in receiver {
            assert_eq!(lost_rank(result).0, 1);
        }
    });
}

/// A rank whose input is not whole elements learns it before anything is sent.
#[rstest]
#[case(Carrier::Threads)]
#[cfg_attr(feature = "shm", case(Carrier::SharedMemory))]
#[cfg_attr(feature = "grpc", case(Carrier::Grpc))]
fn an_input_of_half_an_element_leaves_the_group_usable(
    #[case] carrier: Carrier,
    #[values(Algorithm::Auto, Algorithm::Ring)] algorithm: Algorithm,
) {
    within_limit(move || {
        on_ranks_over(carrier, 2, options(algorithm), |mut endpoint| {
            let mut gathered = Gathered::<f32>::default();
            if endpoint.rank() == 0 {
                for len in [1, 3, 5] {
                    let input = vec![0; len];
                    let result = endpoint.all_gather_into(DType::F32, &input, &mut gathered);
                    let error = result.unwrap_err();
                    assert!(
                        matches!(&error, CollectiveError::InvalidArgument { rank: 0, .. }),
                        "{error}"
                    );
                }
            }
            let input = [endpoint.rank() as f32; 2];
            let input = bytemuck::cast_slice(&input);
            endpoint
                .all_gather_into(DType::F32, input, &mut gathered)
                .unwrap();
            assert_eq!(gathered.values(), [0.0, 0.0, 1.0, 1.0]);
        });
    });
}

/// The target of one rank has elements that the inputs do not fill: the call ends on all ranks.
#[rstest]
#[case(Carrier::Threads)]
#[cfg_attr(feature = "shm", case(Carrier::SharedMemory))]
#[cfg_attr(feature = "grpc", case(Carrier::Grpc))]
fn a_target_that_cannot_hold_the_inputs_ends_the_group(
    #[case] carrier: Carrier,
    #[values(Algorithm::Auto, Algorithm::Ring)] algorithm: Algorithm,
    #[values(3, 70_001)] len: usize,
) {
    within_limit(move || {
        let errors = on_ranks_over(carrier, 2, options(algorithm), |mut endpoint| {
            let (mut bytes, mut floats) = (Gathered::<u8>::default(), Gathered::<f32>::default());
            let target: &mut dyn GatherTarget = match endpoint.rank() {
                0 => &mut bytes,
                _ => &mut floats,
            };
            let result = endpoint.all_gather_into(DType::U8, &vec![7; len], target);
            // Rank 0 may be done before rank 1 gives up.
            let result = result.and_then(|()| endpoint.barrier());
            let error = result.unwrap_err();
            assert_poisoned(&mut *endpoint, &error);
            error
        });
        for error in errors {
            assert!(
                matches!(&error, CollectiveError::Aborted { rank: 1, .. }),
                "{error}"
            );
        }
    });
}

/// A rank that lies about the size of its input.
#[rstest]
fn sizes_that_cannot_be_end_the_group(
    #[values(3, 1 << 62, u64::MAX, (1 << 63) - 4)] size: u64,
    #[values(0, 1)] honest: usize,
) {
    within_limit(move || {
        let group = options(Algorithm::Ring);
        let mut transports = in_process_transports(2, &group);
        let mut liar = transports.remove(1 - honest);
        let mut endpoint = TransportCommunicator::new(transports.remove(0), group).unwrap();
        let thread = std::thread::spawn(move || {
            let header = OperationHeader {
                generation: 0,
                sequence: 0,
                kind: OperationKind::AllGather,
                dtype: Some(DType::F32),
                op: None,
                root: None,
                count: 0,
                buffers: 0,
                layout: 0,
            };
            liar.begin(&header).unwrap();
            let write = &mut |frame: &mut [u8]| frame.copy_from_slice(&size.to_le_bytes());
            liar.send_with(honest, 8, write).unwrap();
            liar.receive_with(honest, 8, &mut |_| {}).unwrap();
            liar.receive_with(honest, 4, &mut |_| {}).unwrap_err()
        });
        let error = endpoint.all_gather(&[1.0_f32]).unwrap_err();
        match &error {
            CollectiveError::Protocol { rank, peer, .. } => {
                assert_eq!((*rank, *peer), (honest, 1 - honest));
            }
            // A size that could be, but for which there is no memory.
            CollectiveError::Aborted { rank, .. } => {
                assert_eq!((*rank, size), (honest, 1 << 62));
            }
            other => panic!("{other}"),
        }
        assert_poisoned(&mut endpoint, &error);
        assert_eq!(thread.join().unwrap(), error);
    });
}

#[test]
fn a_loss_of_which_one_pair_hears_ends_no_other_pair() {
    within_limit(|| {
        let mut endpoints = in_process(4, GroupOptions::default()).unwrap();
        let mut last = endpoints.pop().unwrap();
        drop(endpoints.pop());
        let mut second = endpoints.pop().unwrap();
        let mut first = endpoints.pop().unwrap();
        let lost = first.recv(2, (&mut [0.0_f32][..]).into());
        assert_eq!(lost_rank(lost).0, 2);
        let passed = std::thread::spawn(move || last.send(1, (&mut [3.0_f32][..]).into()));
        let mut found = [0.0_f32];
        second.recv(3, (&mut found[..]).into()).unwrap();
        assert_eq!(found, [3.0]);
        passed.join().unwrap().unwrap();
        // A collective operation needs the lost rank.
        assert_eq!(lost_rank(all_reduce(&mut second)).0, 2);
    });
}

/// A call that a rank has refused before it told anybody had no number, also when its root is
/// wrong.
#[test]
fn a_flight_record_numbers_operations_as_the_group_does() {
    let dir = tempfile::tempdir().unwrap();
    let mut endpoints = in_process(1, GroupOptions::default()).unwrap();
    let mut endpoint = Recorded::new(endpoints.remove(0));
    let (mut one, mut other) = ([1.0_f32], [1.0_f64]);
    let mixed = &mut [(&mut one[..]).into(), (&mut other[..]).into()];
    endpoint.broadcast(9, mixed).unwrap_err();
    endpoint
        .broadcast(9, &mut [(&mut one[..]).into()])
        .unwrap_err();
    endpoint.barrier().unwrap();
    let record = endpoint.recorder().write(dir.path()).unwrap();
    let record = std::fs::read_to_string(record).unwrap();
    let numbers: Vec<bool> = [0, 0, 1]
        .iter()
        .zip(record.lines().skip(1))
        .map(|(number, line)| line.contains(&format!("\"sequence\":{number},")))
        .collect();
    assert_eq!(numbers, [true; 3], "{record}");
}
