//! Whose turn it is: ranks of a process that share a device compute one after the other.
//!
//! A rank *holds the turn* of its device while it computes, gives it up while it waits for other
//! ranks (in a collective, or at the end of a step), and takes it again before it goes on. So one
//! rank at a time has its intermediate values on a device, and a step with a collective in the
//! middle works: its ranks are suspended there. (`distribute-core` has its replicas take turns this
//! way; they are called replicas here. The module is beside the models of all that threads meet by,
//! and no part of the interface.)
//!
//! Order: at the start of a run the turn goes through the replicas of a device in their order;
//! after that to the one with the lowest number of those that wait for it. What is computed does
//! not depend on the order.
//!
//! Only a replica without a turn waits for one, and a replica that holds one
//! either computes or ends: all waits for other replicas are between [`Turn::pause`] and the end of
//! the pause. The guards give a turn back also after an error and in a panic.
//!
//! ```
//! use distribute_collectives::turns::{Turn, Turns};
//!
//! let turns = Turns::new(vec![0, 0]).ok_or("no device has two replicas")?;
//! turns.begin_run();
//! let meeting = std::sync::Barrier::new(2);
//! std::thread::scope(|threads| {
//!     for replica in 0..2 {
//!         let (turn, meeting) = (Turn::new(&turns, replica), &meeting);
//!         threads.spawn(move || {
//!             let _held = turn.hold();
//!             // It computes, and then waits for the other one, which could not compute otherwise.
//!             let _paused = turn.pause();
//!             meeting.wait();
//!         });
//!     }
//! });
//! # Ok::<(), &str>(())
//! ```

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::sync::{Condvar, Mutex, unpoisoned};

/// The turns of all devices of one process.
pub struct Turns {
    /// The device of each replica, as an index of `queues`.
    devices: Vec<usize>,
    queues: Vec<Mutex<Queue>>,
    /// One for each replica, so that a turn wakes only its replica.
    granted: Vec<Condvar>,
}

/// The replicas that wait for the turn of one device.
#[derive(Default)]
struct Queue {
    holder: Option<usize>,
    waiting: BTreeSet<usize>,
    results: Results,
}

impl Turns {
    /// For replicas on these devices, numbered from 0; `None` if no device has two of them.
    pub fn new(devices: Vec<usize>) -> Option<Arc<Self>> {
        let count = devices.iter().max().map_or(0, |last| last + 1);
        let turns = Self {
            queues: (0..count).map(|_| Mutex::default()).collect(),
            granted: devices.iter().map(|_| Condvar::new()).collect(),
            devices,
        };
        (turns.longest_queue() > 1).then(|| Arc::new(turns))
    }

    fn replicas_of(&self, device: usize) -> impl Iterator<Item = usize> + '_ {
        let all = self.devices.iter().enumerate();
        all.filter(move |(_, of)| **of == device)
            .map(|(replica, _)| replica)
    }

    /// The most replicas that a device has.
    #[must_use]
    pub fn longest_queue(&self) -> usize {
        let lengths = (0..self.queues.len()).map(|device| self.replicas_of(device).count());
        lengths.max().unwrap_or(0)
    }

    /// Called before the replicas of a run start: all of them want the turn, whichever comes first.
    pub fn begin_run(&self) {
        for (device, queue) in self.queues.iter().enumerate() {
            let mut queue = unpoisoned(queue.lock());
            *queue = Queue {
                waiting: self.replicas_of(device).collect(),
                ..Queue::default()
            };
            self.grant(&mut queue);
        }
    }

    fn queue(&self, replica: usize) -> &Mutex<Queue> {
        &self.queues[self.devices[replica]]
    }

    /// Gives a free turn to the first waiting replica.
    fn grant(&self, queue: &mut Queue) {
        queue.holder = queue.waiting.pop_first();
        if let Some(replica) = queue.holder {
            self.granted[replica].notify_one();
        }
    }

    /// Blocks until this replica holds the turn.
    fn take(&self, replica: usize) {
        let _phase = crate::phase::turn();
        let mut queue = unpoisoned(self.queue(replica).lock());
        if queue.holder != Some(replica) {
            queue.waiting.insert(replica);
        }
        if queue.holder.is_none() {
            self.grant(&mut queue);
        }
        while queue.holder != Some(replica) {
            let woken = self.granted[replica].wait(queue);
            queue = unpoisoned(woken);
        }
    }

    /// Gives the turn to the next; whether the replica had it.
    fn give_up(&self, replica: usize) -> bool {
        let mut queue = unpoisoned(self.queue(replica).lock());
        let held = queue.holder == Some(replica);
        if held {
            self.grant(&mut queue);
        }
        held
    }
}

/// One replica's way to the turn of its device.
#[derive(Clone)]
pub struct Turn {
    turns: Arc<Turns>,
    replica: usize,
}

impl Turn {
    /// Of the replica with this index in its process.
    pub fn new(turns: &Arc<Turns>, replica: usize) -> Self {
        let turns = Arc::clone(turns);
        Self { turns, replica }
    }

    /// [`Turns::begin_run`] of all replicas.
    pub fn begin_run(&self) {
        self.turns.begin_run();
    }

    /// Blocks until it is this replica's turn, which lasts until the result is dropped.
    pub fn hold(&self) -> Held<'_> {
        self.turns.take(self.replica);
        Held(self)
    }

    /// Gives the turn up, if this replica has it, and takes it again when the result is dropped.
    pub fn pause(&self) -> Paused<'_> {
        Paused(self.turns.give_up(self.replica).then_some(self))
    }

    /// What is equal on all replicas of a device, computed by the first that comes here: the others
    /// get its result. All of them make the same calls in the same order, and hold the turn. One
    /// whose `key` differs from the first's computes its own.
    ///
    /// # Errors
    /// The errors of `compute`.
    pub fn once<K, T, E>(&self, key: K, compute: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E>
    where
        K: PartialEq + Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        let queue = self.turns.queue(self.replica);
        let (number, found) = unpoisoned(queue.lock()).results.next(self.replica);
        let found = found.and_then(|found| found.downcast::<(K, Arc<T>)>().ok());
        if let Some(found) = found.filter(|found| found.0 == key) {
            return Ok(Arc::clone(&found.1));
        }
        let result = Arc::new(compute()?);
        let replicas = self.turns.replicas_of(self.turns.devices[self.replica]);
        let kept = Arc::new((key, Arc::clone(&result)));
        unpoisoned(queue.lock())
            .results
            .keep(number, replicas, kept);
        Ok(result)
    }
}

/// A replica computes.
pub struct Held<'a>(&'a Turn);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.turns.give_up(self.0.replica);
    }
}

/// A replica waits for others.
pub struct Paused<'a>(Option<&'a Turn>);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.0 {
            turn.turns.take(turn.replica);
        }
    }
}

/// What was computed for all replicas of a device and not taken by all of them yet.
#[derive(Default)]
struct Results {
    /// The number of the oldest in the list.
    first: usize,
    list: VecDeque<Kept>,
    /// How many calls each replica has made.
    calls: Vec<usize>,
}

/// A result, and how many replicas have not come to it yet.
struct Kept {
    left: usize,
    result: Arc<dyn Any + Send + Sync>,
}

impl Results {
    /// The number of a replica's next call, and its result if another one has it.
    fn next(&mut self, replica: usize) -> (usize, Option<Arc<dyn Any + Send + Sync>>) {
        if self.calls.len() <= replica {
            self.calls.resize(replica + 1, 0);
        }
        let number = self.calls[replica];
        self.calls[replica] += 1;
        let index = number.checked_sub(self.first);
        let found = index.and_then(|index| self.list.get_mut(index));
        let result = found.map(|kept| {
            kept.left = kept.left.saturating_sub(1);
            Arc::clone(&kept.result)
        });
        self.drop_taken();
        (number, result)
    }

    /// Keeps a result for the replicas that have not come to this call yet: it may have
    /// failed on some. Not the second of two results that differ.
    fn keep(
        &mut self,
        number: usize,
        replicas: impl Iterator<Item = usize>,
        result: Arc<dyn Any + Send + Sync>,
    ) {
        if self.list.is_empty() {
            // The calls before this one have failed on all replicas, or were taken by all.
            self.first = self.first.max(number);
        }
        if number == self.first + self.list.len() {
            let comes = |replica: &usize| self.calls.get(*replica).is_none_or(|it| *it <= number);
            let left = replicas.filter(comes).count();
            self.list.push_back(Kept { left, result });
            self.drop_taken();
        }
    }

    fn drop_taken(&mut self) {
        while self.list.front().is_some_and(|kept| kept.left == 0) {
            self.list.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(all(test, feature = "loom", feature = "shm"))]
mod models;

#[cfg(all(test, not(feature = "loom")))]
mod tests;
