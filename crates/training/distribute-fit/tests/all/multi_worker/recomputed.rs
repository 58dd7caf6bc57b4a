//! Gradients that another worker computes again: a wrong batch and a worker that computes wrong are
//! found before the update, and nothing else is changed.

use distribute_core::checkpoint::list;
use distribute_core::{
    BatchSource, Batches, Device, Error, MirroredStrategy, MultiWorkerMirroredStrategy, PerReplica,
    Result, Strategy, Tensor,
};
use distribute_data::{Batching, FnDataset, StrategyDataExt};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{Fit, FitError, Objective, StepContext};
use tempfile::TempDir;

use super::corrupted::bits;
use crate::common::{Batch, Mlp, Points, new_state, objective};
use crate::multi_worker::group::{THREADS, try_workers};

/// Points of which one replica reads a wrong bit in one batch.
struct Misread<'a> {
    points: Points<'a, MultiWorkerMirroredStrategy>,
    batch: usize,
    replica: usize,
}

impl BatchSource for Misread<'_> {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        self.points.batches_per_epoch()
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.points.global_batch_size()
    }

    fn replica_batch(
        &self,
        epoch: usize,
        batch: usize,
        replica: usize,
        device: &Device,
    ) -> Result<Option<Batch>> {
        self.points.replica_batch(epoch, batch, replica, device)
    }

    fn epoch(&self, epoch: usize, skip: usize) -> Result<Batches<'_, Batch>> {
        let batches = self.points.epoch(epoch, skip)?.zip(skip..);
        Ok(Box::new(batches.map(|(found, number)| {
            let ids = self.points.strategy.replicas().iter().map(|it| it.id);
            let parts = found?.into_values().into_iter().zip(ids);
            let parts = parts.map(|((x, y), id)| {
                if (number, id) != (self.batch, self.replica) {
                    return (x, y);
                }
                let mut data = x.to_data();
                let values = data.as_mut_slice::<f32>().unwrap();
                values[1] = f32::from_bits(values[1].to_bits() ^ (1 << 20));
                (Tensor::from_data(data, &x.device()), y)
            });
            Ok(PerReplica::new(parts.collect()))
        })))
    }
}

#[test]
fn a_wrong_batch_ends_the_run_before_its_update_and_nothing_is_saved() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    let outcomes = try_workers(THREADS, &[1, 2, 1], move |strategy| {
        let points = Points::new(&strategy);
        // Replica 3 is checked in the fourth step, which reads batch 3.
        let data = Misread {
            points,
            batch: 3,
            replica: 3,
        };
        let mut state = new_state(&strategy);
        let saver = ModelCheckpoint::with_workers(&strategy, &path)?.every_steps(1);
        let fit = Fit::new(&strategy).epochs(2).recompute(1).callback(saver);
        fit.run(&mut state, &data, objective).map(drop)
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        let Error::WrongGradient(wrong) = error.root_cause() else {
            panic!("{error}");
        };
        assert_eq!(
            (&wrong.replicas, &wrong.ranks, wrong.step),
            (&vec![3], &vec![2], 4)
        );
        assert!(!error.is_permanent(), "a launcher starts the job again");
    }
    let newest = list(directory.path()).unwrap().last().map(|it| it.step);
    assert_eq!(newest, Some(3));
}

/// A host that computes wrong is named, whether it is checked or checks others.
#[test]
fn a_worker_that_computes_wrong_is_named() {
    for (wrong, every, replicas) in [(0, 1, [1, 1, 1]), (1, 2, [1, 1, 1]), (2, 3, [1, 2, 1])] {
        let outcomes = try_workers(THREADS, &replicas, move |strategy| {
            let own = strategy.workers().map_or(0, |it| it.index());
            let (data, mut state) = (Points::new(&strategy), new_state(&strategy));
            let fit = Fit::new(&strategy).epochs(50).recompute(every);
            let objective = |ctx: &StepContext<'_>, model: &Mlp, batch: Batch| {
                let given = objective(ctx, model, batch)?;
                let factor = if own == wrong { 1.001 } else { 1.0 };
                Ok(Objective::new(given.total() * factor).examples(2))
            };
            fit.run(&mut state, &data, objective).map(drop)
        });
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            let Error::WrongGradient(found) = error.root_cause() else {
                panic!("{error}");
            };
            assert_eq!(
                (&found.ranks, found.has_majority),
                (&vec![wrong], true),
                "{found}"
            );
        }
    }
}

/// `CLEAN_CHECKS=10000` makes a longer series.
#[test]
fn recomputation_changes_nothing_and_raises_no_alarm() {
    let wanted = std::env::var("CLEAN_CHECKS").ok();
    let steps: u64 = wanted.map_or(100, |text| text.parse().unwrap());
    let train = move |strategy: &dyn Strategy, every: Option<u64>| {
        let (data, mut state) = (Points::new(strategy), new_state(strategy));
        let fit = Fit::new(strategy).epochs(usize::MAX).max_steps(steps);
        fit.recompute(every).run(&mut state, &data, objective)?;
        Ok::<_, Error>(bits(state.primary()?))
    };
    let alone = MirroredStrategy::builder().replicas(4).build().unwrap();
    let expected = train(&alone, None).unwrap();
    assert_eq!(train(&alone, Some(3)).unwrap(), expected);
    for outcome in try_workers(THREADS, &[1, 2, 1], move |it| train(&it, Some(1))) {
        assert_eq!(outcome.unwrap(), expected);
    }
}

/// A source that cannot read a batch again.
struct Once<'a>(Points<'a, MirroredStrategy>);

impl BatchSource for Once<'_> {
    type Batch = Batch;

    fn batches_per_epoch(&self) -> Option<usize> {
        self.0.batches_per_epoch()
    }

    fn global_batch_size(&self) -> Option<usize> {
        self.0.global_batch_size()
    }

    fn epoch(&self, epoch: usize, skip: usize) -> Result<Batches<'_, Batch>> {
        self.0.epoch(epoch, skip)
    }
}

#[test]
fn a_source_that_cannot_read_again_is_refused_with_what_to_do() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let (data, mut state) = (Once(Points::new(&strategy)), new_state(&strategy));
    let outcome = Fit::new(&strategy)
        .recompute(2)
        .run(&mut state, &data, objective);
    let error = outcome.unwrap_err();
    let found = error.wrapped().and_then(|error| error.downcast_ref());
    assert!(matches!(found, Some(FitError::NotReadAgain)), "{error}");
    assert_eq!(state.host_metadata().step(), 1);
}

/// Any worker reads the part of any replica, as that one is handed it.
#[test]
fn a_data_set_reads_the_part_of_any_replica() {
    let program = |strategy: MultiWorkerMirroredStrategy| {
        let indices = |indices: &[usize], _: &Device| {
            Ok(indices.iter().map(|it| *it as i64).collect::<Vec<_>>())
        };
        let batching = Batching::global(8).shuffle(3);
        let data = strategy.distribute_dataset(FnDataset::new(27, indices), batching)?;
        for epoch in 0..2 {
            for (number, batch) in BatchSource::epoch(&data, epoch, 0)?.enumerate() {
                let handed: Vec<Vec<i64>> = batch?.into_values();
                let workers = strategy.workers().unwrap();
                let all = workers.all_gather_json("parts", &handed)?;
                for (replica, part) in all.into_iter().flatten().enumerate() {
                    let device = &strategy.replicas()[0].device;
                    let again = data.replica_batch(epoch, number, replica, device)?;
                    assert_eq!(again, Some(part), "epoch {epoch}, batch {number}");
                }
            }
        }
        let after = data.replica_batch(0, 4, 0, &strategy.replicas()[0].device)?;
        assert_eq!(after, None);
        Ok(())
    };
    for outcome in try_workers(THREADS, &[1, 3, 1], program) {
        outcome.unwrap();
    }
}
