//! A pipeline gives the same training whatever the number of threads and of workers, and wherever
//! it is interrupted; and reads nothing again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use distribute_core::checkpoint::Checkpoint;
use distribute_core::{
    BatchSource, Device, MultiWorkerMirroredStrategy, Result, Tensor, TensorData,
};
use distribute_data::{Batching, SourceDataset, StrategyDataExt};
use distribute_fit::{Callback, CallbackState, Control, Fit, Outcome, snapshot};
use distribute_pipeline::{ElementRng, Source, Stream, from_fn};
use rand::Rng;
use rstest::rstest;

use super::workers::workers;
use crate::common::{Batch, EXAMPLES, Points, new_state, objective};

type Row = ([f32; 2], f32);

/// The rows, and how often one was read.
fn rows(reads: &Arc<AtomicUsize>) -> impl Source<Item = Row> + use<> {
    let reads = Arc::clone(reads);
    from_fn(EXAMPLES as u64, move |index| {
        reads.fetch_add(1, Ordering::SeqCst);
        Ok::<_, String>(Points::<MultiWorkerMirroredStrategy>::row(index as usize))
    })
}

fn noisy((mut x, y): Row, rng: &mut ElementRng) -> Row {
    x[0] += f32::from(rng.next_u32() as u8) / 1024.0;
    (x, y)
}

fn to_tensors(rows: &[Row], device: &Device) -> Result<Batch> {
    let (x, y): (Vec<[f32; 2]>, Vec<f32>) = rows.iter().copied().unzip();
    let count = rows.len();
    let x = TensorData::new(x.concat(), [count, 2]);
    let y = TensorData::new(y, [count, 1]);
    Ok((Tensor::from_data(x, device), Tensor::from_data(y, device)))
}

/// Takes a checkpoint after a number of batches, and ends the run.
struct Stop {
    batches: usize,
    kept: Arc<Mutex<Option<Checkpoint>>>,
}

impl Callback for Stop {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        self.batches = self.batches.saturating_sub(1);
        if self.batches == 0 && self.kept.lock().unwrap().is_none() {
            *self.kept.lock().unwrap() = Some(run.checkpoint(CallbackState::default())?);
            run.stop(Outcome::Requested {
                why: "enough".into(),
            });
        }
        Ok(())
    }
}

type Bits = BTreeMap<String, Vec<u8>>;

/// Trains two epochs, or up to a stop; what there is then.
fn train<D: BatchSource<Batch = Batch>>(
    strategy: &MultiWorkerMirroredStrategy,
    data: &D,
    from: Option<Checkpoint>,
    stop: Option<usize>,
) -> (Bits, Option<Checkpoint>) {
    let kept = Arc::default();
    let mut state = new_state(strategy);
    let stop = Stop {
        batches: stop.unwrap_or(usize::MAX),
        kept: Arc::clone(&kept),
    };
    let fit = Fit::new(strategy).epochs(2).seed(3).resume_from(from);
    fit.callback(stop).run(&mut state, data, objective).unwrap();
    let tensors = snapshot(state.primary().unwrap())
        .unwrap()
        .tensors
        .into_iter();
    let bits = tensors.map(|(name, data)| (name, data.as_bytes().to_vec()));
    let kept = kept.lock().unwrap().take();
    (bits.collect(), kept)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// A shuffle that is computed, read by index.
    Source,
    /// A filter, a buffer and threads.
    Stream,
}

/// One run on workers with these replicas: what all of them have in the end, a checkpoint if it
/// was stopped, and the reads of the first worker.
fn run(
    kind: Kind,
    layout: &[usize],
    threads: usize,
    from: Option<Checkpoint>,
    stop: Option<usize>,
) -> (Bits, Option<Checkpoint>, usize) {
    let all = workers(layout, move |strategy| {
        let reads: Arc<AtomicUsize> = Arc::default();
        let rows = rows(&reads);
        let (bits, kept) = match kind {
            Kind::Source => {
                let rows = rows.shuffle(5).map_with_rng(6, noisy);
                let batching = Batching::global(8).num_parallel_calls(threads);
                let data = SourceDataset::new(rows, to_tensors);
                let data = strategy.distribute_dataset(data, batching).unwrap();
                train(&strategy, &data, from.clone(), stop)
            }
            Kind::Stream => {
                let kept = |(x, _): &Row| x[0] > -0.9;
                let rows = rows
                    .stream()
                    .filter(kept)
                    .shuffle(16, 5)
                    .map_with_rng(6, noisy);
                let rows = rows.map(|row| row).num_parallel_calls(threads as i64);
                let batches = rows.batch(8).prefetch(3);
                let data = strategy.distribute_stream(batches, to_tensors).unwrap();
                train(&strategy, &data, from.clone(), stop)
            }
        };
        (bits, kept, reads.load(Ordering::SeqCst))
    });
    let (bits, kept, reads) = all[0].clone();
    assert!(all.iter().all(|(other, ..)| *other == bits));
    (bits, kept, reads)
}

#[rstest]
#[case(Kind::Source)]
#[case(Kind::Stream)]
fn threads_workers_and_restarts_change_no_bit(#[case] kind: Kind) {
    let (expected, _, reads) = run(kind, &[2], 1, None, None);
    for layout in [&[2][..], &[1, 1]] {
        for threads in [1, 4] {
            let (bits, ..) = run(kind, layout, threads, None, None);
            assert_eq!(bits, expected, "{layout:?}, {threads} threads");
        }
    }
    let other = |layout: &[usize]| [&[2][..], &[1, 1]][usize::from(layout.len() == 1)];
    for (batches, layout) in [(1, &[2][..]), (3, &[1, 1]), (4, &[2]), (7, &[1, 1])] {
        let (_, kept, _) = run(kind, layout, 1, None, Some(batches));
        // On, with other threads and on another number of workers.
        let (bits, ..) = run(kind, other(layout), 4, kept, None);
        assert_eq!(
            bits, expected,
            "stopped after {batches} batches on {layout:?}"
        );
    }
    if kind == Kind::Stream {
        let (_, kept, first) = run(kind, &[2], 4, None, Some(3));
        let (bits, _, second) = run(kind, &[2], 1, kept, None);
        assert_eq!(bits, expected);
        // A thread may have read a little after the checkpoint was taken.
        assert!(
            (reads..reads + 20).contains(&(first + second)),
            "{first} {second} {reads}"
        );
    }
}
