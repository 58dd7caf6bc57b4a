//! Models of turns, for loom: it runs each in every order of its threads, and fails when two
//! replicas of a device compute at the same time, or when all stand still.
//!
//! The code is that of the crate, see [`sync`](crate::sync).

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::atomic::AtomicBool;

use super::*;
use crate::models::explore;

/// Where all replicas wait for each other, as they do in a collective.
#[derive(Default)]
struct Meeting {
    state: Mutex<MeetingState>,
    changed: Condvar,
}

#[derive(Default)]
struct MeetingState {
    arrived: usize,
    is_aborted: bool,
}

/// What the replicas of a run share.
struct Run {
    turns: Arc<Turns>,
    meeting: Meeting,
    /// Whether a replica of the device computes.
    computing: Vec<AtomicBool>,
    /// The replicas of each device, in the order in which they first computed.
    order: Vec<Mutex<Vec<usize>>>,
    /// How often something was computed that is equal on all replicas of a device.
    computed: AtomicUsize,
}

impl Run {
    fn new(devices: &[usize]) -> Arc<Self> {
        let turns = Turns::new(devices.to_vec()).expect("two replicas share a device");
        turns.begin_run();
        Arc::new(Self {
            meeting: Meeting::default(),
            computing: turns
                .queues
                .iter()
                .map(|_| AtomicBool::new(false))
                .collect(),
            order: turns.queues.iter().map(|_| Mutex::default()).collect(),
            computed: AtomicUsize::new(0),
            turns,
        })
    }

    fn turn(&self, replica: usize) -> Turn {
        Turn::new(&self.turns, replica)
    }

    /// The replica computes: no other one of its device does.
    fn compute(&self, replica: usize) {
        let computing = &self.computing[self.turns.devices[replica]];
        assert!(
            !computing.swap(true, loom_order()),
            "two compute on one device"
        );
        computing.store(false, loom_order());
    }

    /// The beginning of a step.
    fn begin(&self, replica: usize) {
        unpoisoned(self.order[self.turns.devices[replica]].lock()).push(replica);
        self.compute(replica);
    }

    /// Waits for all others; whether they came.
    fn meet(&self) -> bool {
        let mut state = unpoisoned(self.meeting.state.lock());
        state.arrived += 1;
        self.meeting.changed.notify_all();
        let count = self.turns.devices.len();
        while state.arrived < count && !state.is_aborted {
            state = self.meeting.changed.wait(state).unwrap();
        }
        state.arrived >= count
    }

    fn abort(&self) {
        unpoisoned(self.meeting.state.lock()).is_aborted = true;
        self.meeting.changed.notify_all();
    }

    /// A step with a collective in the middle; whether all came to it.
    fn step(&self, replica: usize) -> bool {
        let turn = self.turn(replica);
        let _held = turn.hold();
        self.begin(replica);
        let paused = turn.pause();
        let all_came = self.meet();
        drop(paused);
        self.compute(replica);
        all_came
    }

    /// A step that fails before its collective.
    fn fail(&self, replica: usize) {
        let turn = self.turn(replica);
        let _held = turn.hold();
        self.begin(replica);
        self.abort();
    }

    /// Replicas begin in the order of their ids, and no replica holds a turn at the end.
    fn check_end(&self) {
        for (queue, order) in self.turns.queues.iter().zip(&self.order) {
            assert!(
                unpoisoned(order.lock()).is_sorted(),
                "the order of the first turns"
            );
            let queue = unpoisoned(queue.lock());
            assert_eq!((queue.holder, queue.waiting.len()), (None, 0));
            assert!(queue.results.list.is_empty(), "a result is kept");
        }
    }
}

fn loom_order() -> loom::sync::atomic::Ordering {
    loom::sync::atomic::Ordering::SeqCst
}

/// Runs what each replica does on a thread of its own, in all orders.
fn all_orders(devices: &'static [usize], replica: impl Fn(&Run, usize) + Send + Sync + 'static) {
    let replica = Arc::new(replica);
    explore(move || {
        let run = Run::new(devices);
        let others: Vec<_> = (1..devices.len())
            .map(|id| {
                let (run, replica) = (Arc::clone(&run), Arc::clone(&replica));
                loom::thread::spawn(move || replica(&run, id))
            })
            .collect();
        replica(&run, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
        run.check_end();
    });
}

/// Must fail when a replica keeps its turn while it waits, when it goes on without one, and when
/// the next one is not woken.
#[test]
fn replicas_of_a_device_are_suspended_in_a_collective() {
    all_orders(&[0, 0], |run, replica| assert!(run.step(replica)));
}

/// Must fail as the one before.
#[test]
fn a_device_with_two_replicas_waits_for_one_with_one() {
    all_orders(&[0, 1, 0], |run, replica| assert!(run.step(replica)));
}

/// Must fail when the replica that fails takes its turn with it.
#[test]
fn who_fails_leaves_its_turn_to_the_others() {
    all_orders(&[0, 0], |run, replica| match replica {
        0 => run.fail(0),
        _ => assert!(!run.step(replica)),
    });
}

/// Must fail as the one before; the replica that fails has been given no turn when the other waits.
#[test]
fn who_waits_hears_of_one_that_fails_after_it() {
    all_orders(&[0, 0], |run, replica| match replica {
        1 => run.fail(1),
        _ => assert!(!run.step(replica)),
    });
}

/// Must fail when two replicas compute it, and when a result is given up before all have it.
#[test]
fn what_is_equal_on_a_device_is_computed_once() {
    for devices in [&[0, 0][..], &[0, 0, 0]] {
        all_orders(devices, |run, replica| {
            let turn = run.turn(replica);
            let _held = turn.hold();
            for round in 0..2_usize {
                let compute = || Ok::<_, ()>((round, run.computed.fetch_add(1, Ordering::SeqCst)));
                assert_eq!(*turn.once(round, compute).unwrap(), (round, round));
                drop(turn.pause());
            }
        });
    }
}
