//! The queue's rules one by one, and against a model under random sequences of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{ClosureQueue, LostOutcome, QueueLimits, Refusal, TakenClosure};

type Queue = ClosureQueue<u64, &'static str>;

const LIMITS: QueueLimits = QueueLimits {
    closures: 4,
    bytes: 100,
    attempts: 3,
};

fn queue(closures: u64) -> Queue {
    let mut queue = Queue::new(LIMITS);
    for id in 1..=closures {
        assert_eq!(queue.push(1, |id| id), Ok(id));
    }
    queue
}

fn handed(queue: &mut Queue) -> Option<u64> {
    queue.take().map(|handed| handed.id)
}

#[test]
fn closures_are_handed_out_in_the_order_they_came() {
    let mut queue = queue(3);
    let first = TakenClosure {
        id: 1,
        attempt: 1,
        payload: 1,
    };
    assert_eq!(queue.take(), Some(first));
    assert_eq!(handed(&mut queue), Some(2));
    assert!(queue.finished(2) && !queue.finished(2));
    assert_eq!(queue.first_unfinished(), 1);
    assert!(queue.finished(1));
    assert_eq!(queue.first_unfinished(), 3);
    assert_eq!(handed(&mut queue), Some(3));
    assert!(queue.finished(3) && queue.is_idle());
    assert_eq!((handed(&mut queue), queue.first_unfinished()), (None, 4));
}

#[test]
fn a_full_queue_refuses_by_count_and_by_bytes() {
    let mut queue = queue(4);
    assert_eq!(queue.push(1, |id| id), Err(Refusal::Full));
    assert_eq!(handed(&mut queue), Some(1));
    assert_eq!(queue.push(98, |id| id), Err(Refusal::Full));
    assert_eq!(queue.push(97, |id| id), Ok(5));
    let mut queue = Queue::new(LIMITS);
    assert_eq!(queue.push(1_000, |id| id), Ok(1), "one may always wait");
    assert_eq!(queue.push(0, |id| id), Err(Refusal::Full));
}

#[test]
fn a_lost_closure_is_the_next_and_keeps_its_id() {
    let mut queue = queue(3);
    assert_eq!((handed(&mut queue), handed(&mut queue)), (Some(1), Some(2)));
    assert_eq!(queue.lost(1), LostOutcome::Requeued);
    assert_eq!(queue.lost(1), LostOutcome::Unknown);
    let again = TakenClosure {
        id: 1,
        attempt: 2,
        payload: 1,
    };
    assert_eq!(queue.take(), Some(again));
    assert_eq!(queue.lost(1), LostOutcome::Requeued);
    assert_eq!(handed(&mut queue), Some(1));
    assert_eq!(queue.lost(1), LostOutcome::GivenUp(1));
    assert!(queue.failed(1, "it kills workers"));
    assert_eq!(queue.lost(2), LostOutcome::Cancelled(2), "an error waits");
}

#[test]
fn an_error_waits_until_it_surfaces_and_others_go_on_until_then() {
    let mut queue = queue(4);
    assert_eq!(queue.begin_cancelling(), None);
    assert_eq!((handed(&mut queue), handed(&mut queue)), (Some(1), Some(2)));
    assert!(queue.failed(1, "first"));
    assert_eq!(handed(&mut queue), Some(3), "no worker has asked yet");
    assert!(queue.failed(3, "second"));
    assert_eq!(queue.push(1, |id| id), Err(Refusal::Failing));
    assert_eq!(queue.begin_cancelling(), Some(vec![4]));
    assert!(queue.running().map(|(id, _)| id).eq([2]));
    assert_eq!(queue.begin_cancelling(), None, "another call does it");
    assert_eq!((handed(&mut queue), queue.end_cancelling()), (None, None));
    assert!(queue.failed(2, "cancelled"));
    assert_eq!(queue.end_cancelling(), Some("first"));
    assert!(!queue.is_failing() && queue.is_idle());
    assert_eq!(queue.push(1, |id| id), Ok(5), "as new");
    assert_eq!(handed(&mut queue), Some(5));
}

#[test]
fn a_stopped_queue_gives_its_closures_back() {
    let mut queue = queue(2);
    assert_eq!(handed(&mut queue), Some(1));
    assert_eq!(queue.stop(), [2]);
    assert_eq!(queue.push(1, |id| id), Err(Refusal::Stopped));
    assert_eq!(handed(&mut queue), None);
    assert_eq!(queue.lost(1), LostOutcome::Cancelled(1));
    assert!(queue.is_idle());
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Push(usize),
    Take,
    /// The index among the running ones.
    Finished(usize),
    Failed(usize),
    Lost(usize),
    Begin,
    End,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0_usize..60).prop_map(Event::Push),
        4 => Just(Event::Take),
        3 => any::<usize>().prop_map(Event::Finished),
        1 => any::<usize>().prop_map(Event::Failed),
        2 => any::<usize>().prop_map(Event::Lost),
        1 => Just(Event::Begin),
        1 => Just(Event::End),
    ]
}

/// Where each closure is, kept in the plainest way.
#[derive(Debug, Default)]
struct Model {
    queued: BTreeSet<u64>,
    running: Vec<u64>,
    ended: BTreeMap<u64, &'static str>,
    requeued: BTreeSet<u64>,
    first_error: Option<u64>,
    cancelling: bool,
    low: u64,
}

impl Model {
    fn end(&mut self, id: u64, how: &'static str) {
        assert_eq!(self.ended.insert(id, how), None, "{id} ended twice");
    }

    fn pick(&mut self, index: usize) -> Option<u64> {
        let count = self.running.len();
        (count > 0).then(|| self.running.remove(index % count))
    }

    fn step(&mut self, queue: &mut ClosureQueue<u64, u64>, event: Event) {
        match event {
            Event::Push(bytes) => self.push(queue, bytes),
            Event::Take => self.take(queue),
            Event::Finished(index) => {
                if let Some(id) = self.pick(index) {
                    assert!(queue.finished(id));
                    self.end(id, "finished");
                }
            }
            Event::Failed(index) => {
                if let Some(id) = self.pick(index) {
                    assert!(queue.failed(id, id));
                    self.first_error.get_or_insert(id);
                    self.end(id, "failed");
                }
            }
            Event::Lost(index) => self.lost(queue, index),
            Event::Begin => self.begin(queue),
            Event::End => {
                let over = self.cancelling && self.running.is_empty();
                let error = over.then(|| self.first_error.take()).flatten();
                assert_eq!(queue.end_cancelling(), error);
                self.cancelling &= !over;
            }
        }
    }

    fn push(&mut self, queue: &mut ClosureQueue<u64, u64>, bytes: usize) {
        match queue.push(bytes, |id| id) {
            Ok(id) => {
                assert!(self.first_error.is_none() && self.queued.len() < LIMITS.closures);
                assert!(self.queued.insert(id));
            }
            Err(Refusal::Failing) => assert!(self.first_error.is_some()),
            Err(Refusal::Full) => assert!(!self.queued.is_empty()),
            Err(Refusal::Stopped) => panic!("it was not stopped"),
        }
    }

    fn take(&mut self, queue: &mut ClosureQueue<u64, u64>) {
        let Some(handed) = queue.take() else {
            assert!(self.cancelling || self.queued.is_empty());
            return;
        };
        assert!(!self.cancelling);
        assert!(self.queued.remove(&handed.id));
        let first = self.queued.first().copied().unwrap_or(u64::MAX);
        let was_requeued = self.requeued.remove(&handed.id);
        assert!(was_requeued || self.requeued.is_empty(), "lost ones first");
        assert!(was_requeued || handed.id < first, "in order");
        self.running.push(handed.id);
    }

    fn lost(&mut self, queue: &mut ClosureQueue<u64, u64>, index: usize) {
        let Some(id) = self.pick(index) else { return };
        match queue.lost(id) {
            LostOutcome::Requeued => {
                assert!(self.first_error.is_none());
                assert!(self.queued.insert(id) && self.requeued.insert(id));
            }
            LostOutcome::Cancelled(payload) => {
                assert!(payload == id && self.first_error.is_some());
                self.end(id, "cancelled");
            }
            LostOutcome::GivenUp(payload) => {
                assert!(payload == id && queue.failed(id, id));
                self.first_error.get_or_insert(id);
                self.end(id, "failed");
            }
            LostOutcome::Unknown => panic!("{id} was running"),
        }
    }

    fn begin(&mut self, queue: &mut ClosureQueue<u64, u64>) {
        let Some(cancelled) = queue.begin_cancelling() else {
            assert!(self.cancelling || self.first_error.is_none());
            return;
        };
        assert!(!self.cancelling && self.first_error.is_some());
        self.cancelling = true;
        let queued: BTreeSet<u64> = cancelled.into_iter().collect();
        assert_eq!(queued, std::mem::take(&mut self.queued));
        self.requeued.clear();
        let running: BTreeSet<u64> = queue.running().map(|(id, _)| id).collect();
        assert_eq!(running, self.running.iter().copied().collect());
        for id in queued {
            self.end(id, "cancelled");
        }
    }

    fn check(&mut self, queue: &ClosureQueue<u64, u64>) {
        let live: BTreeSet<u64> = self.queued.iter().chain(&self.running).copied().collect();
        assert!(live.iter().all(|id| !self.ended.contains_key(id)));
        assert_eq!(live.len() + self.ended.len(), queue.next_id() as usize - 1);
        let first = live.first().copied().unwrap_or(queue.next_id());
        assert_eq!(queue.first_unfinished(), first);
        assert!(first >= self.low, "the mark fell");
        self.low = first;
        assert_eq!(queue.is_idle(), live.is_empty());
        assert_eq!(queue.queued(), self.queued.len());
        assert_eq!(queue.running().count(), self.running.len());
        assert_eq!(queue.is_cancelling(), self.cancelling);
        assert_eq!(queue.is_failing(), self.first_error.is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Every closure is in one place at every moment and ends once, however events interleave.
    #[test]
    fn every_closure_ends_once(events in prop::collection::vec(event(), 1..200)) {
        let mut queue = ClosureQueue::new(LIMITS);
        let mut model = Model::default();
        for event in events {
            model.step(&mut queue, event);
            model.check(&queue);
        }
    }

    /// Whatever happened, surfacing leaves an idle queue that takes closures again.
    #[test]
    fn surfacing_always_comes_to_an_end(events in prop::collection::vec(event(), 1..100)) {
        let mut queue = ClosureQueue::new(LIMITS);
        let mut model = Model::default();
        for event in events {
            model.step(&mut queue, event);
        }
        let waiting = queue.is_failing();
        model.begin(&mut queue);
        while !model.running.is_empty() {
            model.step(&mut queue, Event::Finished(0));
        }
        model.step(&mut queue, Event::End);
        model.check(&queue);
        prop_assert!(!queue.is_failing());
        prop_assert!(!waiting || queue.is_idle());
        while let Some(handed) = queue.take() {
            queue.finished(handed.id);
        }
        prop_assert!(queue.push(1, |id| id).is_ok());
    }
}
