//! The thread that drives connections.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use distribute_net::compute_clock::ComputeClock;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle as Task;

use crate::error::{PsError, Result};

/// Threads that calls may block, for example to apply an optimizer.
const BLOCKING_THREADS: usize = 16;

/// A tokio runtime on a thread of its own; joined on drop, which ends all that runs there.
pub(crate) struct Driver {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts a thread of this name, on which the clock ticks; `failed` is what is told if that is
    /// not possible.
    pub(crate) fn start(name: String, failed: &str, clock: Arc<ComputeClock>) -> Result<Self> {
        let failed = |error| PsError::system(failed, error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        handle.spawn(async move { clock.keep_ticking().await });
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                // An error means that the sender was dropped: the same.
                let _ = runtime.block_on(stopped);
            })
            .map_err(failed)?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Runs a future there.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        self.handle.spawn(future)
    }

    /// Runs a future to its end, whatever kind of thread the caller is. The future must not own
    /// the driver.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = sync_channel(1);
        self.handle.spawn(async move {
            let _ = sender.send(future.await);
        });
        let ended = |_| PsError::system("a call was broken off", "the client's thread has ended");
        receiver.recv().map_err(ended)?
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver")
    }
}
