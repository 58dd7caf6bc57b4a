//! Lanes come with their first use and go when they are not used.

use std::collections::BTreeSet;
use std::sync::Barrier;

use super::*;
use crate::algorithm::partners;

/// The ranks to which there is a lane.
fn connected(links: &Links) -> BTreeSet<usize> {
    let peers = links.peers.iter().enumerate();
    let has_lane = |peer: &Option<Peer>| {
        let mut places = peer.iter().flat_map(|peer| &peer.places);
        places.any(|place| place.lane().is_some())
    };
    peers
        .filter(|(_, peer)| has_lane(peer))
        .map(|(rank, _)| rank)
        .collect()
}

/// What an all-reduce of this many elements needs beside its algorithm: small ones compare headers.
fn compares_headers(count: usize, size: usize) -> bool {
    count < 2 * size
}

#[test]
fn a_group_has_the_lanes_that_its_algorithm_uses_and_no_others() {
    let algorithms = [
        (Algorithm::Ring, Order::Fast),
        (Algorithm::Ring, Order::Canonical),
        (Algorithm::HalvingDoubling, Order::Canonical),
        (Algorithm::DirectExchange, Order::Canonical),
        (Algorithm::Hierarchical { ranks_per_host: 3 }, Order::Fast),
    ];
    for size in [2, 3, 5, 8, 13] {
        for (algorithm, order) in algorithms {
            for lanes in [1, 2] {
                within_limit(move || {
                    let options = options().algorithm(algorithm).order(order);
                    let adapt = |settings: &mut Settings| settings.rules.lanes = lanes;
                    world(size, adapt, |links, status| {
                        let rank = links.rank();
                        assert!(connected(&links).is_empty());
                        let mut endpoint = endpoint(links, status, &options);
                        // Smaller than the limit above which nothing else is exchanged.
                        let mut vector = [1.0_f32];
                        assert!(compares_headers(vector.len(), size));
                        let buffers = &mut [(&mut vector[..]).into()];
                        endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                        assert_eq!(vector, [size as f32]);
                        let may = partners::of(algorithm, order, rank, size);
                        let has = connected(&endpoint.transport().links);
                        assert!(has.is_subset(&may), "{algorithm}: {has:?} of {may:?}");
                        // One more element than ranks: each chunk has one.
                        let mut vector = vec![1.0_f32; 64 * size];
                        let buffers = &mut [(&mut vector[..]).into()];
                        endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
                        let has = connected(&endpoint.transport().links);
                        assert_eq!(has, may, "{algorithm} {order}, {rank} of {size}");
                        endpoint
                    });
                });
            }
        }
    }
}

#[test]
fn ranks_that_never_spoke_send_and_receive() {
    for (from, to) in [(1, 3), (3, 1)] {
        within_limit(move || {
            world(
                4,
                |_| {},
                |links, status| {
                    let rank = links.rank();
                    let mut endpoint = endpoint(links, status, &options());
                    let mut vector = vec![rank as f32; 100_000];
                    let buffer = Buffer::from(&mut vector[..]);
                    let mut expected = BTreeSet::new();
                    if rank == from {
                        endpoint.send(to, buffer).unwrap();
                        expected.insert(to);
                    } else if rank == to {
                        endpoint.recv(from, buffer).unwrap();
                        assert!(vector.iter().all(|value| *value == from as f32));
                        expected.insert(from);
                    }
                    assert_eq!(connected(&endpoint.transport().links), expected);
                    endpoint
                },
            );
        });
    }
}

/// How long a ring of ranks takes for its first all-reduce, where each connection takes a while.
fn first_ring(size: usize, delay: Duration) -> Duration {
    let ports: Vec<Port> = (0..size).map(|_| port()).collect();
    let late = |port: &Port| answering_late(port.address, delay);
    let addresses: Vec<_> = ports.iter().map(late).collect();
    let begun = Instant::now();
    let endpoints = on_threads(ports.into_iter().enumerate(), |(rank, port)| {
        let settings = settings(rank, size);
        let (links, served) = linked(port, &settings, &addresses);
        let options = options().algorithm(Algorithm::Ring).order(Order::Fast);
        let mut endpoint = endpoint(links, settings.status, &options);
        let mut vector = vec![1.0_f32; 100 * size];
        let buffers = &mut [(&mut vector[..]).into()];
        endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
        assert!(vector.iter().all(|value| *value == size as f32));
        (endpoint, served)
    });
    let took = begun.elapsed();
    drop(endpoints);
    took
}

/// In a ring all send first.
#[test]
fn all_ranks_connect_at_the_same_time() {
    within_limit(|| {
        // Answers that come later by so much are nearly all of the time.
        let delay = Duration::from_millis(100);
        let (pair, ring) = (first_ring(2, delay), first_ring(12, delay));
        // What the ring sends over its delayed connections takes 11 steps in each phase; one
        // connection after the other would take 11 times as long as one.
        let sending = 22 * delay;
        assert!(ring < 3 * pair + sending, "{ring:?}, a pair {pair:?}");
    });
}

/// A lost rank is named by those that have no connection to it.
#[test]
fn a_rank_that_was_lost_before_its_first_use_is_named() {
    for victim in 0..3 {
        within_limit(move || {
            world(
                3,
                |_| {},
                |links, status| {
                    let rank = links.rank();
                    let mut endpoint = endpoint(links, status.clone(), &options());
                    if rank == victim {
                        return;
                    }
                    std::thread::scope(|scope| {
                        // As the control plane does it.
                        scope.spawn(|| {
                            while status.running().is_none() {
                                std::thread::yield_now();
                            }
                            let reason = "stopped".to_string();
                            let kind = FailureKind::Lost {
                                rank: victim,
                                reason,
                            };
                            status.record_failure(Failure::new(kind, 0));
                        });
                        let begun = Instant::now();
                        let error = sum(&mut endpoint).unwrap_err();
                        let CollectiveError::PeerLost { rank, .. } = &error else {
                            panic!("{error:?}");
                        };
                        assert_eq!(*rank, victim);
                        assert!(begun.elapsed() < TIMEOUT / 2);
                    });
                },
            );
        });
    }
}

/// The links of a rank for tests that send and receive without operations.
struct Line {
    links: Links,
    other: usize,
}

impl Line {
    fn to_the_other(mut links: Links) -> Line {
        let other = 1 - links.rank();
        connect(&mut links, other);
        Line { links, other }
    }

    fn running(kind: OperationKind) -> RunningOperation {
        RunningOperation::new(&OperationHeader::new(kind, 7, 0), TIMEOUT)
    }

    fn send(&mut self, kind: OperationKind, value: u8) {
        // Long enough to be lent.
        let bytes = [value; 5000];
        let running = Line::running(kind);
        self.links.send_bytes(self.other, &running, &bytes).unwrap();
    }

    fn receive(&mut self, kind: OperationKind, value: u8) {
        let running = Line::running(kind);
        let check = &mut |bytes: &[u8]| assert_eq!(bytes, [value; 5000]);
        self.links
            .receive(self.other, &running, 5000, check)
            .unwrap();
    }

    fn place(&mut self) -> &mut Place {
        only_place(&mut self.links, self.other)
    }

    /// Everything that was sent is in the other's kernel.
    fn deliver(&mut self) {
        let running = Line::running(COLLECTIVE);
        self.links.finish_operation(&running).unwrap();
        while !self.place().is_delivered() {
            std::thread::yield_now();
        }
    }
}

const COLLECTIVE: OperationKind = OperationKind::Broadcast;
const CALL: OperationKind = OperationKind::Send;

/// Rank 1 closes the lane while messages of rank 0 are on their way, and both go on sending.
#[rstest]
fn no_message_is_lost_that_crosses_the_end_of_a_lane(
    #[values(1, 2, 3)] ends: usize,
    #[values(false, true)] has_tls: bool,
) {
    within_limit(move || {
        let (turns, tls) = (Barrier::new(2), has_tls.then(tls));
        let adapt = |settings: &mut Settings| settings.tls = tls.clone();
        world(2, adapt, |links, _| {
            let mut line = Line::to_the_other(links);
            for _ in 0..ends {
                if line.links.rank() == 0 {
                    end_as_server(&mut line, &turns);
                } else {
                    end_as_client(&mut line, &turns);
                }
            }
            line.links
        });
    });
}

fn end_as_server(line: &mut Line, turns: &Barrier) {
    line.send(COLLECTIVE, 1);
    line.send(CALL, 2);
    line.deliver();
    turns.wait();
    // The other rank has ended the lane, and has read nothing.
    turns.wait();
    line.send(COLLECTIVE, 3);
    while line.place().lane().is_some_and(Lane::takes_segments) {
        line.place().drive(1);
    }
    line.send(COLLECTIVE, 4);
    line.send(CALL, 5);
    line.receive(CALL, 6);
    line.receive(COLLECTIVE, 7);
    line.send(COLLECTIVE, 8);
    line.deliver();
    turns.wait();
}

fn end_as_client(line: &mut Line, turns: &Barrier) {
    turns.wait();
    line.place().lane_mut().unwrap().retire();
    line.deliver();
    turns.wait();
    line.send(COLLECTIVE, 7);
    line.send(CALL, 6);
    for value in [1, 3, 4, 8] {
        line.receive(COLLECTIVE, value);
    }
    line.receive(CALL, 2);
    line.receive(CALL, 5);
    line.deliver();
    turns.wait();
}

/// Tends the links until no lane is left.
fn tend_until_closed(links: &mut Links) {
    let deadline = Instant::now() + TIMEOUT;
    while !connected(links).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", connected(links));
        links.tend(Instant::now());
        std::thread::yield_now();
    }
}

#[test]
fn lanes_that_no_rank_uses_are_closed_on_both_sides_and_come_back() {
    if !is_alone(
        module_path!(),
        "lanes_that_no_rank_uses_are_closed_on_both_sides_and_come_back",
    ) {
        return;
    }
    within_limit(|| {
        let together = Barrier::new(3);
        let adapt = |it: &mut Settings| it.idle_limit = Duration::from_millis(20);
        let results = world(3, adapt, |links, status| {
            let mut endpoint = endpoint(links, status, &options());
            // One rank counts what all have open.
            let count = |rank: usize| {
                together.wait();
                let found = (rank == 0).then(open_files);
                together.wait();
                found
            };
            let mut found = vec![count(endpoint.rank())];
            for _ in 0..3 {
                sum(&mut endpoint).unwrap();
                let links = &mut endpoint.transport_mut().links;
                assert_eq!(connected(links).len(), 2);
                tend_until_closed(links);
                found.push(count(links.rank()));
            }
            (found, endpoint)
        });
        let found = &results[0].0;
        assert!(found.iter().all(|it| *it == found[0]), "{found:?}");
    });
}

#[test]
fn a_lane_that_is_used_stays() {
    within_limit(|| {
        let limit = Duration::from_millis(200);
        let adapt = |it: &mut Settings| it.idle_limit = limit;
        world(2, adapt, |links, status| {
            let mut endpoint = endpoint(links, status, &options());
            sum(&mut endpoint).unwrap();
            let lane = |endpoint: &Endpoint| {
                let place = &endpoint.transport().links.peers[1 - endpoint.rank()];
                let lane = place.as_ref().unwrap().places[0].lane().unwrap();
                lane.socket.ends()
            };
            let first = lane(&endpoint);
            let begun = Instant::now();
            // Both ranks stop after the same operation.
            let mut is_over = [0.0_f32];
            while is_over == [0.0] {
                is_over = [f32::from(u8::from(begun.elapsed() > 3 * limit))];
                let buffers = &mut [(&mut is_over[..]).into()];
                endpoint.all_reduce(ReduceOp::Max, buffers).unwrap();
                assert_eq!(lane(&endpoint), first);
            }
            endpoint
        });
    });
}

/// What all ranks do together in one step of a test.
#[derive(Debug, Clone)]
enum Step {
    Sum(usize),
    Broadcast(usize, usize),
    Transfer(usize, usize),
    Barrier,
    /// All ranks do nothing until the lanes may be closed, and look so often.
    Pause(u64, usize),
}

fn steps(size: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..4000_usize).prop_map(Step::Sum),
        (0..size, 0..3000_usize).prop_map(|(root, count)| Step::Broadcast(root, count)),
        (0..size, 1..size).prop_map(move |(from, by)| Step::Transfer(from, (from + by) % size)),
        Just(Step::Barrier),
        (0..4_u64, 0..3_usize).prop_map(|(time, looks)| Step::Pause(time, looks)),
    ];
    prop::collection::vec(step, 1..40)
}

fn take_step(endpoint: &mut Endpoint, step: &Step, index: usize) {
    let (rank, size) = (endpoint.rank(), endpoint.world_size());
    let own = |count: usize| -> Vec<f32> { (0..count).map(|at| value(rank, at + index)).collect() };
    match *step {
        Step::Sum(count) => {
            let mut vector = own(count);
            let buffers = &mut [(&mut vector[..]).into()];
            endpoint.all_reduce(ReduceOp::Sum, buffers).unwrap();
            let sum = |at: usize| (0..size).map(|rank| value(rank, at + index)).sum::<f32>();
            assert!(vector.iter().enumerate().all(|(at, it)| *it == sum(at)));
        }
        Step::Broadcast(root, count) => {
            let mut vector = own(count);
            let buffers = &mut [(&mut vector[..]).into()];
            endpoint.broadcast(root, buffers).unwrap();
            let mut all = vector.iter().enumerate();
            assert!(all.all(|(at, it)| *it == value(root, at + index)));
        }
        Step::Transfer(from, to) => {
            let mut vector = own(1000);
            let buffer = Buffer::from(&mut vector[..]);
            if rank == from {
                endpoint.send(to, buffer).unwrap();
            } else if rank == to {
                endpoint.recv(from, buffer).unwrap();
                let mut all = vector.iter().enumerate();
                assert!(all.all(|(at, it)| *it == value(from, at + index)));
            }
        }
        Step::Barrier => endpoint.barrier().unwrap(),
        Step::Pause(time, looks) => {
            // Ranks look at different times.
            let until = Instant::now() + Duration::from_millis(time + rank as u64 % 2);
            while Instant::now() < until {
                std::thread::yield_now();
            }
            for _ in 0..looks {
                endpoint.transport_mut().links.tend(Instant::now());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Also with no patience at all: then lanes are closed between any two operations.
    #[test]
    fn whenever_lanes_are_closed_every_operation_is_right(
        (size, steps) in (2..6_usize).prop_flat_map(|size| (Just(size), steps(size))),
        lanes in 1..3_usize,
        idle_milliseconds in 0..4_u64,
        algorithm in prop::sample::select(vec![
            Algorithm::Auto,
            Algorithm::Ring,
            Algorithm::HalvingDoubling,
            Algorithm::DirectExchange,
        ]),
    ) {
        within_limit(move || {
            let options = options().algorithm(algorithm).order(Order::Fast);
            let adapt = |settings: &mut Settings| {
                settings.idle_limit = Duration::from_millis(idle_milliseconds);
                settings.rules.lanes = lanes;
            };
            let endpoints = world(size, adapt, |links, status| {
                let mut endpoint = endpoint(links, status, &options);
                for (index, step) in steps.iter().enumerate() {
                    take_step(&mut endpoint, step, index);
                }
                endpoint
            });
            drop(endpoints);
        });
    }
}
