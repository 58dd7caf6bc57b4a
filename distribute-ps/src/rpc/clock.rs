//! Waits for others, in time that leaves out what this process did not get to compute.
//!
//! All that the other side may take its time for (a handshake, an answer, a sign of life) is
//! measured by one [`ComputeClock`] for each thread that drives connections. Silence under load is
//! not death: on a machine with many times more work than processors, and after a stop of this
//! process, waits become longer in wall time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use distribute_net::compute_clock::ComputeClock;
use hyper::rt::{Sleep, Timer};

/// How often a clock ticks: well below the waits that it measures.
const TICK: Duration = Duration::from_millis(250);

/// A clock for a thread that drives connections.
pub(crate) fn new_clock() -> Arc<ComputeClock> {
    Arc::new(ComputeClock::new(TICK))
}

/// Waits so long by the clock.
pub(crate) async fn sleep(clock: Arc<ComputeClock>, duration: Duration) {
    let since = clock.now();
    loop {
        let left = duration.saturating_sub(clock.elapsed(since));
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// What comes of the work within so long by the clock; nothing if that was not enough.
pub(crate) async fn within<T>(
    clock: &Arc<ComputeClock>,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep(clock.clone(), limit) => None,
    }
}

/// The timer by which HTTP/2 asks for signs of life and waits for them.
#[derive(Clone)]
pub(super) struct ComputeTimer(pub(super) Arc<ComputeClock>);

struct ComputeSleep(Pin<Box<dyn Future<Output = ()> + Send + Sync>>);

impl Future for ComputeSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl Sleep for ComputeSleep {}

impl Timer for ComputeTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(ComputeSleep(Box::pin(sleep(self.0.clone(), duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(deadline.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    }

    #[test]
    fn a_wait_leaves_out_what_the_process_did_not_get_to_compute() {
        let stall = Duration::from_millis(400);
        runtime().block_on(async {
            let clock = new_clock();
            let ticking = clock.clone();
            let ticks = tokio::spawn(async move { ticking.keep_ticking().await });
            let begun = Instant::now();
            let limit = TICK + Duration::from_millis(50);
            let waits = tokio::spawn(sleep(clock.clone(), limit));
            tokio::task::yield_now().await;
            // Nothing of this process goes on, as under SIGSTOP.
            std::thread::sleep(limit + stall);
            assert!(!waits.is_finished());
            waits.await.unwrap();
            assert!(begun.elapsed() >= limit + stall);
            ticks.abort();
        });
    }

    #[test]
    fn what_is_done_counts_however_late_it_is_looked_at() {
        let clock = new_clock();
        runtime().block_on(async {
            let done = within(&clock, Duration::ZERO, async { 7 }).await;
            assert_eq!(done, Some(7));
            let never = std::future::pending::<()>();
            assert_eq!(within(&clock, Duration::ZERO, never).await, None);
        });
    }
}
