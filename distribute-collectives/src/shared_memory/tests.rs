//! Every operation against the in-process group, over random world sizes, layouts and slot sizes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hostile::alone::is_alone;
use hostile::descriptors::busy_without_descriptors;

use crate::bookkeeping::RunningOperation;
use crate::buffer::{Buffer, DType, Element, with_dtype};
use crate::communicator::{Communicator, CommunicatorExt};
use crate::error::CollectiveError;
use crate::failure::{Failure, FailureKind};
use crate::header::OperationHeader;
use crate::in_process::in_process;
use crate::messages::TransportCommunicator;
use crate::operation::OperationKind;
use crate::options::{Algorithm, GroupOptions, Order};
use crate::reduce::ReduceOp;
use crate::shared_memory::doorbell::Operation;
use crate::shared_memory::layout::Counter;
use crate::shared_memory::testing::{TellAll, join_all, on_ranks, own, tiny};
use crate::shared_memory::{LocalTransport, Settings, SharedMemoryCommunicator};
use crate::testing::{Random, on_threads, within_limit};

/// Bytes that are small numbers of a type.
fn input(dtype: DType, count: usize, random: &mut Random) -> Vec<u8> {
    let mut value = || (random.below(2000) as f32 - 1000.0) / 128.0;
    let mut bytes = Vec::new();
    for _ in 0..count {
        let v = value();
        match dtype {
            DType::F32 => bytes.extend_from_slice(&v.to_ne_bytes()),
            DType::F64 => bytes.extend_from_slice(&(f64::from(v) / 3.0).to_ne_bytes()),
            DType::F16 => bytes.extend_from_slice(&half::f16::from_f32(v / 3.0).to_ne_bytes()),
            DType::BF16 => bytes.extend_from_slice(&half::bf16::from_f32(v / 3.0).to_ne_bytes()),
            DType::I32 => bytes.extend_from_slice(&(v as i32).to_ne_bytes()),
            DType::I64 => bytes.extend_from_slice(&(v as i64).to_ne_bytes()),
            DType::U8 => bytes.push(v as i64 as u8),
        }
    }
    bytes
}

fn typed<T: Element>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
    values
}

/// One case: the same calls on any kind of group, the results of every rank as bytes.
#[derive(Debug, Clone)]
struct Case {
    world_size: usize,
    dtype: DType,
    op: ReduceOp,
    lengths: Vec<usize>,
    root: usize,
    seed: u64,
}

impl Case {
    fn random(random: &mut Random) -> Case {
        let world_size = 1 + random.below(6);
        let most = [0, 3, 40, 700, 5000][random.below(5)];
        let buffers = 1 + random.below(3);
        Case {
            world_size,
            dtype: DType::ALL[random.below(7)],
            op: ReduceOp::ALL[random.below(5)],
            lengths: (0..buffers)
                .map(|_| random.below(most / buffers + 1))
                .collect(),
            root: random.below(world_size),
            seed: random.next(),
        }
    }

    /// All operations, one after the other.
    fn calls(&self, endpoint: &mut dyn Communicator) -> Vec<Vec<u8>> {
        with_dtype!(self.dtype, T => self.calls_typed::<T>(endpoint))
    }

    fn calls_typed<T: Element>(&self, endpoint: &mut dyn Communicator) -> Vec<Vec<u8>> {
        let rank = endpoint.rank();
        let mut random = Random(self.seed + rank as u64);
        let total: usize = self.lengths.iter().sum();
        let mut results = Vec::new();
        for call in 0..6 {
            let bytes = input(self.dtype, total, &mut random);
            let mut values: Vec<T> = typed(&bytes);
            let mut keep = 0..total;
            match call {
                0 => endpoint.all_reduce(self.op, &mut self.split(&mut values)),
                1 => endpoint
                    .reduce_scatter(self.op, T::buffer(&mut values))
                    .map(|own| keep = own),
                2 => endpoint.broadcast(self.root, &mut self.split(&mut values)),
                3 => {
                    keep = if rank == self.root { 0..total } else { 0..0 };
                    endpoint.reduce(self.op, self.root, &mut self.split(&mut values))
                }
                4 => endpoint.barrier(),
                _ => {
                    let own = total / (rank + 1);
                    let all = endpoint.all_gather(&values[..own]).unwrap();
                    results.push(bytemuck::cast_slice(all.values()).to_vec());
                    Ok(())
                }
            }
            .unwrap();
            results.push(bytemuck::cast_slice(&values[keep]).to_vec());
        }
        results.extend(self.send_around::<T>(endpoint, total));
        results
    }

    /// Every rank sends to the next one.
    fn send_around<T: Element>(
        &self,
        endpoint: &mut dyn Communicator,
        total: usize,
    ) -> Option<Vec<u8>> {
        let (rank, size) = (endpoint.rank(), endpoint.world_size());
        let bytes = input(self.dtype, total, &mut Random(rank as u64));
        let mut values: Vec<T> = typed(&bytes);
        let mut received = vec![T::zeroed(); total];
        if size == 1 {
            return None;
        }
        // The last one receives first, or all would wait for each other.
        for step in 0..2 {
            if (rank == size - 1) == (step == 1) {
                let sent = endpoint.send((rank + 1) % size, T::buffer(&mut values));
                sent.unwrap();
            } else {
                let from = (rank + size - 1) % size;
                endpoint.recv(from, T::buffer(&mut received)).unwrap();
            }
        }
        Some(bytemuck::cast_slice(&received).to_vec())
    }

    fn split<'a, T: Element>(&self, mut values: &'a mut [T]) -> Vec<Buffer<'a>> {
        let mut buffers = Vec::new();
        for length in &self.lengths {
            let (buffer, rest) = values.split_at_mut(*length);
            buffers.push(T::buffer(buffer));
            values = rest;
        }
        buffers
    }

    fn expected(&self) -> Vec<Vec<Vec<u8>>> {
        let options = GroupOptions::default().order(Order::Canonical);
        let endpoints = in_process(self.world_size, options).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = endpoints
                .into_iter()
                .map(|mut endpoint| scope.spawn(move || self.calls(&mut endpoint)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }
}

fn cases(seed: u64, count: usize) {
    within_limit(move || {
        let mut random = Random(seed);
        for _ in 0..count {
            let case = Case::random(&mut random);
            let slot = [1, 8, 50, 256, 4000][random.below(5)];
            let inline = [0, 1, 100, 30_000][random.below(4)];
            let settings = tiny(slot, inline);
            let options = GroupOptions::default().timeout(Duration::from_secs(30));
            let found = on_ranks(case.world_size, &settings, &options, |mut endpoint| {
                case.calls(&mut endpoint)
            });
            assert_eq!(found, case.expected(), "{case:?} {settings:?}");
        }
    });
}

#[test]
fn all_operations_have_the_bits_of_the_in_process_group() {
    cases(1, 120);
}

#[test]
fn all_operations_have_the_bits_of_the_in_process_group_for_other_cases() {
    cases(0x5eed, 120);
}

#[test]
fn many_operations_of_different_sizes_follow_each_other() {
    let settings = tiny(64, 256);
    within_limit(move || {
        let sums = on_ranks(3, &settings, &GroupOptions::default(), |mut endpoint| {
            let mut random = Random(9);
            for round in 0..400 {
                let count = random.below(200);
                let mut values = vec![endpoint.rank() as i64 + round; count];
                let root = random.below(3);
                match random.below(3) {
                    0 => endpoint.all_reduce(ReduceOp::Sum, &mut [(&mut values[..]).into()]),
                    1 => endpoint.broadcast(root, &mut [(&mut values[..]).into()]),
                    _ => endpoint.barrier().map(|()| values.fill(7)),
                }
                .unwrap();
                let all: Vec<i64> = endpoint.all_gather(&values).unwrap().into_values();
                assert_eq!(all.len(), 3 * count);
                assert_eq!(all[..count], all[count..2 * count]);
            }
            endpoint.rank()
        });
        assert_eq!(sums, [0, 1, 2]);
    });
}

#[test]
fn other_algorithms_run_over_the_mailboxes() {
    within_limit(|| {
        for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling] {
            let settings = tiny(64, 64);
            let options = GroupOptions::default()
                .algorithm(algorithm)
                .segment_bytes(32);
            join_all(3, &settings, |rank, group, _| {
                let abort = std::sync::Arc::new(TellAll(Vec::new()));
                let transport =
                    LocalTransport::new(group.unwrap(), options.clone(), abort).unwrap();
                let mut endpoint = TransportCommunicator::new(transport, options.clone()).unwrap();
                let number = half::f16::from_f32;
                for count in [0, 1, 7, 1000] {
                    let mut values = vec![number(rank as f32 + 1.0); count];
                    let buffers = &mut [(&mut values[..]).into()];
                    endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                    assert_eq!(values, vec![number(6.0); count]);
                }
            });
        }
    });
}

#[test]
fn segments_as_big_as_a_mailbox_and_no_bigger() {
    within_limit(|| {
        for algorithm in [
            Algorithm::Ring,
            Algorithm::HalvingDoubling,
            Algorithm::DirectExchange,
        ] {
            join_all(3, &tiny(64, 64), |rank, group, _| {
                let abort = std::sync::Arc::new(TellAll(Vec::new()));
                let options = GroupOptions::default().algorithm(algorithm);
                let transport =
                    LocalTransport::new(group.unwrap(), options.clone(), abort).unwrap();
                let options = options.segment_bytes(64);
                let mut endpoint = TransportCommunicator::new(transport, options).unwrap();
                let mut values = vec![half::f16::from_f32(rank as f32); 1000];
                let buffers = &mut [(&mut values[..]).into()];
                endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                assert_eq!(values, vec![half::f16::from_f32(3.0); 1000]);
            });
        }
        join_all(2, &tiny(64, 64), |_, group, _| {
            let abort = std::sync::Arc::new(TellAll(Vec::new()));
            let options = GroupOptions::default().algorithm(Algorithm::Ring);
            let transport = LocalTransport::new(group.unwrap(), options.clone(), abort).unwrap();
            let refused = TransportCommunicator::new(transport, options.segment_bytes(65));
            let error = refused.err().expect("refused");
            let expected = "segments of 65 bytes are too big: shared-memory allows at most 64";
            assert_eq!(error.to_string(), expected);
        });
    });
}

#[test]
fn a_mismatch_is_the_same_error_on_all_ranks_and_poisons() {
    within_limit(|| {
        for len in [3, 5000] {
            let settings = tiny(64, 100);
            let errors = on_ranks(3, &settings, &GroupOptions::default(), |mut endpoint| {
                endpoint.barrier().unwrap();
                let len = len + usize::from(endpoint.rank() == 2);
                let mut values = vec![1.0_f32; len];
                let error = endpoint
                    .all_reduce(ReduceOp::Sum, &mut [(&mut values[..]).into()])
                    .unwrap_err();
                assert_eq!(values, vec![1.0; len]);
                let poisoned = endpoint.barrier().unwrap_err();
                assert_eq!(poisoned.root_cause(), &error);
                assert!(matches!(poisoned, CollectiveError::Poisoned { .. }));
                error
            });
            let expected = |error: &CollectiveError| {
                matches!(
                    error,
                    CollectiveError::Mismatch {
                        rank_a: 0,
                        rank_b: 2,
                        sequence: 1,
                        ..
                    }
                )
            };
            assert!(expected(&errors[0]), "{:?}", errors[0]);
            assert!(errors.iter().all(|error| *error == errors[0]));
        }
    });
}

#[test]
fn the_deadline_names_the_missing_rank() {
    within_limit(|| {
        let options = GroupOptions::default().timeout(Duration::from_millis(200));
        let errors = on_ranks(3, &Settings::default(), &options, |mut endpoint| {
            endpoint.barrier().unwrap();
            let begin = Instant::now();
            if endpoint.rank() == 1 {
                return None;
            }
            let error = endpoint.barrier().unwrap_err();
            assert!(begin.elapsed() < Duration::from_secs(5));
            Some(error)
        });
        for error in [&errors[0], &errors[2]] {
            let Some(CollectiveError::Timeout {
                missing, sequence, ..
            }) = error
            else {
                panic!("{error:?}");
            };
            assert_eq!((missing.as_slice(), *sequence), (&[1][..], 1));
        }
    });
}

#[test]
fn a_receiver_that_gets_nothing_names_the_sender() {
    within_limit(|| {
        let options = GroupOptions::default().timeout(Duration::from_millis(100));
        on_ranks(2, &Settings::default(), &options, |mut endpoint| {
            if endpoint.rank() == 0 {
                let error = endpoint.recv(1, (&mut [0_u8; 4][..]).into()).unwrap_err();
                let CollectiveError::Timeout { missing, .. } = error else {
                    panic!("{error:?}");
                };
                assert_eq!(missing, [1]);
            }
        });
    });
}

/// How long a sleeper takes to wake after a failure was noted.
fn waking_of_a_sleeper() -> Duration {
    within_limit(|| {
        let waited = join_all(2, &Settings::default(), |rank, group, statuses| {
            let abort = std::sync::Arc::new(TellAll(statuses.to_vec()));
            let options = GroupOptions::default();
            let group = group.unwrap();
            let shared = group.shared.clone();
            let transport = LocalTransport::new(group, options, abort).unwrap();
            let mut endpoint = SharedMemoryCommunicator::new(transport);
            if rank == 1 {
                // Until rank 0 has said for what it waits, just before it sleeps.
                let waiting = shared.segment.word(shared.layout.waiting(0));
                while waiting.load(std::sync::atomic::Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                let noted = Instant::now();
                statuses[0].record_failure(Failure {
                    kind: FailureKind::Lost {
                        rank: 1,
                        reason: "its process ended".to_string(),
                    },
                    from_sequence: 0,
                });
                return noted;
            }
            let error = endpoint.barrier().unwrap_err();
            let woken = Instant::now();
            assert!(
                matches!(error, CollectiveError::PeerLost { rank: 1, .. }),
                "{error:?}"
            );
            woken
        });
        waited[0].saturating_duration_since(waited[1])
    })
}

#[test]
fn a_noted_failure_wakes_a_sleeper_at_once() {
    // The best of some: how long a thread waits for a processor is no matter of the group.
    let took = (0..5).map(|_| waking_of_a_sleeper()).min().unwrap();
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[test]
fn an_abort_ends_the_operations_of_all_ranks() {
    within_limit(|| {
        // An abort before that would end the making of the group.
        let all_are_members = std::sync::Barrier::new(3);
        let errors = on_ranks(
            3,
            &Settings::default(),
            &GroupOptions::default(),
            |mut endpoint| {
                all_are_members.wait();
                if endpoint.rank() == 2 {
                    endpoint.abort("enough");
                }
                endpoint.barrier().unwrap_err()
            },
        );
        let expected = CollectiveError::Aborted {
            rank: 2,
            reason: "enough".to_string(),
        };
        assert_eq!(errors, vec![expected; 3]);
    });
}

#[test]
fn a_member_that_never_comes_is_named_on_all_others() {
    within_limit(|| {
        use crate::shared_memory::{Offer, establish, find_leader};
        let offers: Vec<Offer> = (0..3).map(|_| Offer::new().unwrap()).collect();
        let names: Vec<Vec<u8>> = offers.iter().map(|offer| offer.name().to_vec()).collect();
        let deadline = Instant::now() + Duration::from_millis(300);
        let names = &names;
        std::thread::scope(|scope| {
            for (rank, offer) in offers
                .into_iter()
                .enumerate()
                .filter(|(rank, _)| *rank != 1)
            {
                scope.spawn(move || {
                    let attachment = find_leader(names, &own(rank), deadline).unwrap();
                    let settings = Settings::default();
                    let ranks = &[0, 1, 2];
                    let status = Default::default();
                    let joined = establish(
                        offer,
                        attachment,
                        &own(rank),
                        ranks,
                        &settings,
                        deadline,
                        status,
                    );
                    match joined.map(|_| ()).unwrap_err() {
                        CollectiveError::Rendezvous { missing, .. } if rank == 0 => {
                            assert_eq!(missing[0].rank, 1);
                        }
                        CollectiveError::Rendezvous { .. } => {}
                        other => panic!("{other:?}"),
                    }
                });
            }
        });
    });
}

#[test]
fn an_offer_and_a_leader_without_descriptors_pause() {
    use crate::shared_memory::{Attachment, Offer, establish};
    if !is_alone(
        module_path!(),
        "an_offer_and_a_leader_without_descriptors_pause",
    ) {
        return;
    }
    let offer = Offer::new().unwrap();
    let name = offer.name().to_vec();
    let limit = Duration::from_millis(300);
    let busy = busy_without_descriptors(|| Ok(flood(&name, 1, b"")));
    assert!(busy < limit, "{busy:?}");
    let leading = std::thread::spawn(move || {
        let (deadline, status) = (Instant::now() + Duration::from_secs(3), Default::default());
        let (ranks, settings) = ([0, 1], Settings::default());
        let attachment = Attachment::Leader;
        establish(
            offer,
            attachment,
            &own(0),
            &ranks,
            &settings,
            deadline,
            status,
        )
        .map(|_| ())
    });
    std::thread::sleep(limit);
    let busy = busy_without_descriptors(|| Ok(flood(&name, 1, b"")));
    assert!(busy < limit, "{busy:?}");
    leading.join().unwrap().unwrap_err();
}

/// This many connections to a name that send this.
fn flood(name: &[u8], count: usize, bytes: &[u8]) -> Vec<rustix::fd::OwnedFd> {
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket,
    };
    let address = SocketAddrUnix::new_abstract_name(name).unwrap();
    let one = |_| {
        let unauthenticated = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&unauthenticated, &address).unwrap();
        if !bytes.is_empty() {
            send(&unauthenticated, bytes, SendFlags::NOSIGNAL).unwrap();
        }
        unauthenticated
    };
    (0..count).map(one).collect()
}

#[test]
fn a_flood_keeps_no_member_from_its_segment() {
    within_limit(|| {
        use crate::shared_memory::{Offer, establish, find_leader};
        for (count, comes_first, bytes) in [
            (70, true, &[][..]),
            (300, true, &[]),
            (300, false, &[]),
            // More than the queue of a socket holds.
            (600, true, &[]),
            (600, false, &[]),
            (300, true, &[0xff; 16]),
            (300, false, &[0xff; 16]),
        ] {
            let offers = [Offer::new().unwrap(), Offer::new().unwrap()];
            let names: Vec<Vec<u8>> = offers.iter().map(|it| it.name().to_vec()).collect();
            let deadline = Instant::now() + Duration::from_secs(5);
            let mut attachments = Vec::new();
            let mut unauthenticated = Vec::new();
            for rank in [0, 1] {
                if rank == 1 && comes_first {
                    unauthenticated.extend(flood(&names[0], count, bytes));
                }
                attachments.push(find_leader(&names, &own(rank), deadline).unwrap());
            }
            if !comes_first {
                unauthenticated.extend(flood(&names[0], count, bytes));
            }
            let ranks = offers.into_iter().zip(attachments).enumerate();
            on_threads(ranks, |(rank, (offer, attachment))| {
                let (settings, status) = (Settings::default(), Default::default());
                let joined = establish(
                    offer,
                    attachment,
                    &own(rank),
                    &[0, 1],
                    &settings,
                    deadline,
                    status,
                );
                joined.map(drop).unwrap();
            });
        }
    });
}

/// Lines of the map of this process that belong to a segment, and its open descriptors.
fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.matches("memfd:distribute").count();
    (
        mappings,
        std::fs::read_dir("/proc/self/fd").unwrap().count(),
    )
}

/// Runs in a process of its own: the other tests of this binary also have mappings.
pub(super) fn make_and_drop_groups(count: usize) {
    let options = GroupOptions::default();
    let round = || {
        on_ranks(2, &Settings::default(), &options, |mut endpoint| {
            endpoint.barrier().unwrap();
        });
    };
    round();
    let before = held();
    (0..count).for_each(|_| round());
    assert_eq!(held(), before);
    assert_eq!(before.0, 0);
}

/// As a process does that is stopped between the two: the others must not sleep until their
/// deadlines, they would look as late as the stopped one.
#[test]
fn a_counter_published_without_a_ring_is_seen_all_the_same() {
    within_limit(|| {
        join_all(2, &tiny(64, 0), |rank, group, _| {
            let group = group.unwrap();
            let shared = &group.shared;
            let waits_word = shared.segment.word(shared.layout.waiting(0));
            if rank == 0 {
                let header = OperationHeader::new(OperationKind::Barrier, 0, 0);
                let limit = Duration::from_secs(30);
                let running = RunningOperation::new(&header, limit);
                let operation = Operation::of(&group.status, &running);
                shared.wait_all(&operation, Counter::Published, 7).unwrap();
                assert!(operation.running.begin.elapsed() < Duration::from_secs(10));
                return;
            }
            while waits_word.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // Until it sleeps: were it awake, it would see the counter by itself.
            let said = Instant::now();
            while said.elapsed() < Duration::from_millis(50) {
                std::thread::yield_now();
            }
            let published = shared.layout.counter(1, Counter::Published);
            shared.segment.long(published).store(7, Ordering::Release);
        });
    });
}

/// As a process does that is stopped between the two steps of its arrival: it is named, and no rank
/// who waits for it.
#[test]
fn a_member_that_stops_while_it_arrives_is_the_one_that_is_late() {
    within_limit(|| {
        let done = std::sync::Barrier::new(3);
        join_all(3, &tiny(64, 0), |rank, group, _| {
            let group = group.unwrap();
            let shared = &group.shared;
            if rank == 1 {
                shared.count_arrival(0);
                done.wait();
                return;
            }
            let header = OperationHeader::new(OperationKind::Barrier, 0, 0);
            let running = RunningOperation::new(&header, Duration::from_secs(2));
            let operation = Operation::of(&group.status, &running);
            shared.announce_arrival(0);
            let waited = shared.wait_for_arrivals(&operation).and_then(|()| {
                shared.announce(Counter::Published, 1);
                shared.wait_all(&operation, Counter::Published, 1)
            });
            done.wait();
            let Err(CollectiveError::Timeout { missing, .. }) = waited else {
                panic!("{waited:?}");
            };
            assert_eq!(missing, [1]);
        });
    });
}

/// A rank that lies about the size of its input.
#[test]
fn sizes_that_cannot_be_end_an_all_gather() {
    within_limit(|| {
        for size in [3, 1 << 62, usize::MAX, (1 << 63) - 4] {
            let options = GroupOptions::default();
            join_all(2, &tiny(64, 64), |rank, group, statuses| {
                let abort = std::sync::Arc::new(TellAll(statuses.to_vec()));
                let group = group.unwrap();
                if rank == 1 {
                    let mut liar = LocalTransport::new(group, options.clone(), abort).unwrap();
                    let header = OperationHeader::new(OperationKind::AllGather, 0, 0)
                        .with_dtype(crate::buffer::DType::F32);
                    liar.start(&header, size, |_| {}).unwrap();
                    return;
                }
                let transport = LocalTransport::new(group, options.clone(), abort).unwrap();
                let mut endpoint = SharedMemoryCommunicator::new(transport);
                let error = endpoint.all_gather(&[1.0_f32]).unwrap_err();
                let named = match &error {
                    CollectiveError::Protocol { peer, .. } => *peer == 1,
                    CollectiveError::Aborted { rank, .. } => *rank == 0 && size == 1 << 62,
                    _ => false,
                };
                assert!(named, "{size}: {error}");
            });
        }
    });
}

#[test]
fn a_mailbox_that_stays_empty_is_blamed_on_its_rank_alone() {
    within_limit(|| {
        join_all(3, &tiny(64, 0), |rank, group, _| {
            if rank != 2 {
                return;
            }
            let group = group.unwrap();
            let header = OperationHeader::new(OperationKind::AllReduce, 0, 0);
            let limit = Duration::from_millis(50);
            let running = RunningOperation::new(&header, limit);
            let operation = Operation::of(&group.status, &running);
            let received = group.receive_with(&operation, 1, 4, &mut |_| {}, &mut Vec::new());
            let Err(CollectiveError::Timeout { missing, .. }) = received else {
                panic!("{received:?}");
            };
            assert_eq!(missing, [1]);
        });
    });
}
