//! Workers and servers that are lost while `Fit` runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distribute_core::checkpoint;
use distribute_fit::Fit;
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_ps::{PsError, WorkerStopper};

use super::cluster::{Cluster, Job};
use super::data::{BATCHES, objective};
use crate::stopwatch::Stopwatch;
use crate::within_limit;

#[test]
fn a_lost_workers_batch_is_trained_on_by_another_one_and_applied_once() {
    within_limit(|| {
        for lost in [1, 7, 20] {
            let victim: Arc<Mutex<Option<WorkerStopper>>> = Arc::default();
            let count = Arc::new(Mutex::new(0));
            let (of_step, counted) = (victim.clone(), count.clone());
            let job = Job::new(Arc::new(move |ctx, model, batch| {
                *counted.lock().unwrap() += 1;
                if *counted.lock().unwrap() == lost
                    && let Some(stopper) = of_step.lock().unwrap().take()
                {
                    // The connection breaks; this or another step of its is cut off.
                    stopper.stop();
                }
                objective(ctx, model, batch)
            }));
            let cluster = Cluster::start(&job, 3);
            *victim.lock().unwrap() = Some(cluster.workers[1].stopper.clone());
            let coordinator = &cluster.coordinator;
            let fit = Fit::new(coordinator.strategy().unwrap()).epochs(3);
            let history = coordinator.fit(&job.training, fit).unwrap();
            assert!(history.epochs.iter().all(|record| record.examples == 84));
            let step = coordinator.with(&job.state, |state| Ok(state.primary().unwrap().step()));
            assert_eq!(step.unwrap(), 3 * BATCHES as u64, "each batch once");
        }
    });
}

#[test]
fn a_lost_server_is_unavailable_and_the_next_run_goes_on_from_the_last_checkpoint() {
    within_limit(|| {
        let directory = tempfile::tempdir().unwrap();
        let is_time = Arc::new(AtomicBool::new(false));
        let told = is_time.clone();
        let job = Job::new(Arc::new(move |ctx, model, batch| {
            if ctx.is_training() && (ctx.epoch(), ctx.batch()) == (2, 6) {
                told.store(true, Ordering::Relaxed);
            }
            objective(ctx, model, batch)
        }));
        let saver = || {
            ModelCheckpoint::new(directory.path())
                .unwrap()
                .every_steps(5)
        };
        let mut cluster = Cluster::start(&job, 2);
        let lost = cluster.servers.pop().unwrap();
        let killer = std::thread::spawn(move || {
            let mut watch = Stopwatch::start();
            while !is_time.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            lost.shutdown();
            watch.restart();
            watch
        });
        let coordinator = &cluster.coordinator;
        let fit = Fit::new(coordinator.strategy().unwrap()).epochs(100_000);
        let error = coordinator
            .fit(&job.training, fit.callback(saver()))
            .unwrap_err();
        let noticed = killer.join().unwrap().elapsed();
        assert!(noticed < Duration::from_secs(5), "{noticed:?}");
        let unavailable = matches!(error.root_cause(), PsError::Unavailable { .. });
        assert!(unavailable, "{error}");
        drop(cluster);

        let (entry, newest) = checkpoint::load_latest(directory.path())
            .unwrap()
            .found
            .unwrap();
        // The server went at update 28 or later.
        assert!(entry.step >= 25 - 5, "{}", entry.step);
        let epochs = usize::try_from(newest.metadata.epoch).unwrap() + 1;
        let begun_at = newest.metadata.batches_into_epoch;
        let cluster = Cluster::start(&job, 2);
        let coordinator = &cluster.coordinator;
        let fit = Fit::new(coordinator.strategy().unwrap()).epochs(epochs);
        let fit = fit.resume_from(newest).callback(saver());
        let history = coordinator.fit(&job.training, fit).unwrap();
        let rest = BATCHES as u64 - begun_at;
        assert_eq!(history.epochs.len(), 1);
        let step = coordinator.with(&job.state, |state| Ok(state.primary().unwrap().step()));
        assert_eq!(step.unwrap(), entry.step + rest);
    });
}
