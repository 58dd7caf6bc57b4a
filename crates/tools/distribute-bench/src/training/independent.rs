//! The machine's ceiling: as many hand-written loops as there are replicas, which share nothing.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use distribute_core::{Error, Result};

use super::contenders::{Contender, HandWritten, Trained};

/// One [`HandWritten`] loop a thread, each with a model of its own. They are told to start together
/// and then run freely: no exchange, no barrier, no shared state. No strategy with as many replicas
/// can do more images per second.
pub struct Independent {
    loops: Vec<Loop>,
}

/// A thread that trains for as long as it is told to. It lives as long as the benchmark, like the
/// threads of a strategy's replicas.
struct Loop {
    /// Dropped first, which ends the thread.
    orders: Option<SyncSender<Duration>>,
    results: Receiver<Result<Trained>>,
    thread: Option<JoinHandle<()>>,
}

impl Independent {
    /// `loops` of them, each with batches of `batch_size` images.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the system gives no more threads.
    pub fn new(loops: usize, batch_size: usize) -> Result<Self> {
        let loops = (0..loops).map(|index| Loop::new(index, batch_size));
        Ok(Self {
            loops: loops.collect::<Result<_>>()?,
        })
    }
}

impl Loop {
    fn new(index: usize, batch_size: usize) -> Result<Self> {
        let (orders, todo) = sync_channel::<Duration>(1);
        let (done, results) = sync_channel(1);
        let work = move || {
            let mut training = HandWritten::new(batch_size);
            for time in todo {
                if done.send(training.train_for(time)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("independent-{index}"))
            .spawn(work)
            .map_err(|error| Error::invalid(format!("cannot start a thread: {error}")))?;
        Ok(Self {
            orders: Some(orders),
            results,
            thread: Some(thread),
        })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // The receiver of its result has seen its end.
            let _ = thread.join();
        }
    }
}

impl Contender for Independent {
    fn name(&self) -> &'static str {
        "hand-written"
    }

    fn replicas(&self) -> usize {
        self.loops.len()
    }

    fn train_for(&mut self, time: Duration) -> Result<Trained> {
        let ended = |_| Error::invalid("an independent loop has ended before its time");
        for one in &self.loops {
            let orders = one.orders.as_ref();
            orders.map_or(Ok(()), |orders| orders.send(time).map_err(|_| ended(())))?;
        }
        let mut all = Trained::default();
        for one in &self.loops {
            let found = one.results.recv().map_err(|_| ended(()))??;
            all.steps += found.steps;
            all.steps_per_s += found.steps_per_s;
            all.loss = found.loss;
        }
        // All of them make a step at once, as under a strategy.
        all.steps /= self.loops.len();
        all.steps_per_s /= self.loops.len() as f64;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Independent;
    use crate::training::contenders::{Contender, HandWritten};

    #[test]
    fn independent_loops_train_each_for_itself() {
        let mut both = Independent::new(2, 2).unwrap();
        assert_eq!((both.name(), both.replicas()), ("hand-written", 2));
        let first = both.train_for(Duration::ZERO).unwrap();
        assert_eq!(first.steps, 1, "at least one step");
        assert!(first.steps_per_s > 0.0);
        let again = both.train_for(Duration::from_millis(50)).unwrap();
        assert!(again.steps >= 1 && again.loss.is_finite(), "{again:?}");
        // Alone, the same loop does the same steps.
        let alone = HandWritten::new(2).train_for(Duration::ZERO).unwrap();
        assert_eq!(alone.steps, 1);
    }
}
