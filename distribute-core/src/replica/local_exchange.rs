//! Where the replica threads of one process exchange whole values: the meeting point behind
//! `merge_call` and `all_gather`.
//!
//! Every replica hands in a value; when all have, replica 0 runs the function on the list, and
//! each replica takes its result. A replica that ends its step, fails or stays away past the
//! deadline ends the meeting for the others with an error that names it.

use std::any::Any;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sync::lock;
use crate::{Error, Result};

type Value = Box<dyn Any + Send>;

/// A single wait; longer deadlines wait again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

struct State {
    arrived: Vec<Option<Value>>,
    /// What the replicas have not taken yet.
    results: Vec<Option<Value>>,
    finished: Vec<bool>,
    stopped: Option<Error>,
}

impl State {
    fn new(size: usize) -> Self {
        Self {
            arrived: (0..size).map(|_| None).collect(),
            results: (0..size).map(|_| None).collect(),
            finished: vec![false; size],
            stopped: None,
        }
    }

    /// Whether the results of the round before have all been taken.
    fn is_free(&self) -> bool {
        self.results.iter().all(Option::is_none)
    }
}

/// The meeting point of one group of replica threads.
pub(crate) struct LocalExchange {
    state: Mutex<State>,
    changed: Condvar,
    timeout: Duration,
    size: usize,
}

impl LocalExchange {
    pub(crate) fn new(size: usize, timeout: Duration) -> Self {
        Self {
            state: Mutex::new(State::new(size)),
            changed: Condvar::new(),
            timeout,
            size,
        }
    }

    /// Starts a run: no replica has finished, and the state of the previous run is cleared.
    pub(crate) fn begin_run(&self) {
        *lock(&self.state) = State::new(self.size);
    }

    /// Names a replica whose step has ended, before a meeting that it will not come to.
    pub(crate) fn check_finished(&self, op: &'static str, index: usize) -> Result<()> {
        let state = lock(&self.state);
        match (0..self.size).find(|i| *i != index && state.finished[*i]) {
            Some(replica) => Err(step_ended(op, replica)),
            None => Ok(()),
        }
    }

    /// Replica `index` will not come to any further meeting of this run.
    pub(crate) fn finish(&self, index: usize) {
        lock(&self.state).finished[index] = true;
        self.changed.notify_all();
    }

    /// Ends this and every later meeting with `Stopped`.
    pub(crate) fn stop(&self, cause: &Error) {
        lock(&self.state).stopped.get_or_insert(stopped_by(cause));
        self.changed.notify_all();
    }

    /// Exchanges values: `join` runs once, on replica 0's thread, with all of them in replica
    /// order and returns one result per replica.
    ///
    /// Blocks until all replicas have called it.
    pub(crate) fn exchange<T: Send + 'static, R: Send + 'static>(
        &self,
        op: &'static str,
        index: usize,
        value: T,
        join: impl FnOnce(Vec<T>) -> Result<Vec<R>>,
    ) -> Result<R> {
        let deadline = Instant::now().checked_add(self.timeout);
        let mut state = lock(&self.state);
        state = self.wait(state, op, deadline, index, State::is_free)?;
        state.arrived[index] = Some(Box::new(value));
        self.changed.notify_all();
        if index == 0 {
            let all = |state: &State| state.arrived.iter().all(Option::is_some);
            state = self.wait(state, op, deadline, index, all)?;
            let arrived = state.arrived.iter_mut();
            let values = arrived
                .map(|value| downcast(value.take()))
                .collect::<Result<Vec<T>>>()?;
            drop(state);
            let results = join(values);
            state = lock(&self.state);
            self.publish(&mut state, results)?;
        }
        let ready = |state: &State| state.results[index].is_some();
        state = self.wait(state, op, deadline, index, ready)?;
        let result = state.results[index].take();
        if state.is_free() {
            self.changed.notify_all();
        }
        drop(state);
        downcast(result)
    }

    fn publish<R: Send + 'static>(&self, state: &mut State, results: Result<Vec<R>>) -> Result<()> {
        let published = results.and_then(|results| {
            crate::error::check_count("the result of a merge_call", self.size, results.len())?;
            let boxed = results
                .into_iter()
                .map(|result| Some(Box::new(result) as Value));
            state.results = boxed.collect();
            Ok(())
        });
        if let Err(error) = &published {
            state.stopped = Some(stopped_by(error));
        }
        self.changed.notify_all();
        published
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        op: &'static str,
        deadline: Option<Instant>,
        index: usize,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>> {
        loop {
            if let Some(error) = &state.stopped {
                return Err(error.clone());
            }
            if ready(&state) {
                return Ok(state);
            }
            // A deadline beyond the clock's end is none.
            let left = deadline.map_or(Duration::MAX, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let ended = self.missing(&state, index);
            if let Some(replica) = ended.filter(|replica| state.finished[*replica]) {
                return Err(step_ended(op, replica));
            }
            if left.is_zero() {
                let replica = ended.unwrap_or(0);
                let why = format!("not within {:?}", self.timeout);
                return Err(Error::ReplicaMissing { op, replica, why });
            }
            let waited = self.changed.wait_timeout(state, left.min(LONGEST_WAIT));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The first replica that the others wait for: one whose step has ended, if there is one.
    fn missing(&self, state: &State, index: usize) -> Option<usize> {
        let absent = |i: &usize| *i != index && state.arrived[*i].is_none();
        let ended = |i: &usize| state.is_free() && absent(i) && state.finished[*i];
        let replicas = || 0..self.size;
        replicas().find(ended).or_else(|| replicas().find(absent))
    }
}

fn stopped_by(cause: &Error) -> Error {
    let cause = cause.to_string();
    Error::Stopped { cause }
}

fn step_ended(op: &'static str, replica: usize) -> Error {
    let why = "its step ended without making this call".to_string();
    Error::ReplicaMissing { op, replica, why }
}

fn downcast<T: 'static>(value: Option<Value>) -> Result<T> {
    let differs = || Error::invalid("the replicas made different cross-replica calls");
    let value = value.ok_or_else(differs)?;
    value.downcast().map(|value| *value).map_err(|_| differs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn sum(values: Vec<u32>) -> Result<Vec<u32>> {
        let total = values.iter().sum();
        Ok(vec![total; values.len()])
    }

    #[test]
    fn every_replica_gets_its_result_over_many_rounds() {
        let exchange = Arc::new(LocalExchange::new(3, Duration::from_secs(10)));
        let results: Vec<Vec<u32>> = std::thread::scope(|threads| {
            let handles: Vec<_> = (0..3)
                .map(|index| {
                    let exchange = Arc::clone(&exchange);
                    threads.spawn(move || {
                        (0..200)
                            .map(|round| exchange.exchange("sum", index, round, sum).unwrap())
                            .collect()
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap())
                .collect()
        });
        let expected: Vec<u32> = (0..200).map(|round| 3 * round).collect();
        assert_eq!(results, vec![expected; 3]);
    }

    #[test]
    fn a_replica_that_has_finished_is_named() {
        let exchange = LocalExchange::new(2, Duration::from_secs(10));
        exchange.finish(1);
        let error = exchange.exchange("merge_call", 0, 1, sum).unwrap_err();
        assert!(matches!(
            error,
            Error::ReplicaMissing {
                op: "merge_call",
                replica: 1,
                ..
            }
        ));
    }

    #[test]
    fn a_replica_that_stays_away_is_named_after_the_deadline() {
        let exchange = LocalExchange::new(3, Duration::from_millis(20));
        let error = exchange.exchange("merge_call", 1, 1, sum).unwrap_err();
        assert!(matches!(error, Error::ReplicaMissing { replica: 0, .. }));
    }

    #[test]
    fn an_error_in_the_joined_function_stops_all() {
        let exchange = LocalExchange::new(2, Duration::from_secs(10));
        let errors: Vec<Error> = std::thread::scope(|threads| {
            let handles: Vec<_> = (0..2)
                .map(|index| {
                    let exchange = &exchange;
                    threads.spawn(move || {
                        let fail = |_: Vec<u32>| Err::<Vec<u32>, _>(Error::invalid("no"));
                        exchange.exchange("merge_call", index, 1, fail).unwrap_err()
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap())
                .collect()
        });
        assert!(matches!(&errors[0], Error::InvalidArgument { what } if what == "no"));
        assert!(matches!(&errors[1], Error::Stopped { .. }));
    }
}
