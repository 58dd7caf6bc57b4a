//! Whether a data loader gives its batches in the same order on all workers.
//!
//! burn's loader with several threads gives them as they are ready. The workers would then deal
//! from different decks: some batches twice, others never. Nothing in the loader's interface says
//! how many threads it has, but they have names.

use std::fs;

use distribute_core::{Error, Result};

/// The second thread of a loader of burn; the first one alone keeps the order.
const SECOND: &str = "dataloader-1\n";

/// Looks whether a loader has started several threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoaderThreads {
    before: usize,
}

impl LoaderThreads {
    /// Before the loader is read for the first time.
    pub(crate) fn before() -> Self {
        Self { before: count() }
    }

    /// Once it has been read.
    ///
    /// # Errors
    /// If its order depends on threads.
    pub(crate) fn check(self) -> Result<()> {
        if count() <= self.before {
            return Ok(());
        }
        Err(Error::invalid(
            "the training's data loader has several threads, so that its batches come in another \
             order on each worker, and some would be trained on twice and others never: build it \
             with `num_workers(1)`, one thread beside the training, which keeps the order",
        ))
    }
}

/// The loaders of this process that have a second thread; 0 where the system does not tell.
fn count() -> usize {
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let names = threads
        .flatten()
        .map(|it| fs::read_to_string(it.path().join("comm")));
    names.flatten().filter(|name| name == SECOND).count()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::thread;

    use super::*;

    #[test]
    fn a_second_thread_of_a_loader_is_found() {
        let threads = LoaderThreads::before();
        let named = |name: &str| {
            let (begun, ended) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
            let barriers = (begun.clone(), ended.clone());
            let builder = thread::Builder::new().name(name.to_string());
            let thread = builder.spawn(move || {
                barriers.0.wait();
                barriers.1.wait();
            });
            begun.wait();
            (thread.unwrap(), ended)
        };
        let (first, end_of_first) = named("dataloader-0");
        assert!(threads.check().is_ok());
        let (second, end_of_second) = named("dataloader-1");
        let found = threads.check();
        end_of_first.wait();
        end_of_second.wait();
        first.join().unwrap();
        second.join().unwrap();
        if cfg!(target_os = "linux") {
            assert!(found.unwrap_err().to_string().contains("num_workers(1)"));
        }
    }
}
