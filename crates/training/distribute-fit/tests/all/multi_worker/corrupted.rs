//! Bits that flip: in a weight or a slot of one replica, and in what arrives from other workers.
//! Each series has its place, time and bit from a seed, and finds and names all of them.

use std::ops::Range;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use distribute_core::collectives::{
    AbortHandle, Buffer, Communicator, DType, Description, GatherTarget, GroupOptions,
    Result as Did, in_process,
};
use distribute_core::{
    BatchSource, Mirrored, MultiWorkerMirroredStrategy, ReduceOp, Result, Strategy, StrategyExt,
    TrainState,
};
use distribute_fit::{Fit, FitError, check_same_state};

use crate::common::{GLOBAL_BATCH, Mlp, Points, everything, new_state, objective, squared_error};
use crate::multi_worker::group::{LIMIT, THREADS, try_workers_with};

/// The flips of a series.
const FLIPS: u64 = 100;

/// Numbers that follow from a seed (splitmix64): the same on all workers.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % count as u64) as usize
    }

    /// One bit of one of these numbers.
    fn flip(&mut self, values: &mut [f32]) {
        let value = self.below(values.len());
        let bit = self.below(32);
        values[value] = f32::from_bits(values[value].to_bits() ^ (1 << bit));
    }
}

/// Trains for some steps more, without a comparison.
fn train(
    strategy: &MultiWorkerMirroredStrategy,
    state: &mut Mirrored<TrainState<Mlp>>,
    steps: usize,
) -> Result<()> {
    let data = Points::new(strategy);
    for batch in data.epoch(0, 0)?.take(steps) {
        strategy.run((&mut *state, batch?), |ctx, (state, (x, y))| {
            let loss = squared_error(state.model.forward(x), y, GLOBAL_BATCH);
            ctx.loss_is_scaled();
            state.minimize(ctx, &loss)
        })?;
    }
    Ok(())
}

/// The replicas, ranks, tensor and step of a difference.
fn named(outcome: Result<()>) -> (Vec<usize>, Vec<usize>, String, u64) {
    let error = outcome.expect_err("a flipped bit was not found");
    let found = error.wrapped().and_then(|error| error.downcast_ref());
    let Some(FitError::Diverged {
        step,
        hosts,
        ranks,
        replicas,
        has_majority: true,
        parameter,
    }) = found
    else {
        panic!("{error}");
    };
    let own = gethostname::gethostname().display().to_string();
    assert!(hosts.iter().all(|host| *host == own) && hosts.len() == ranks.len());
    (replicas.clone(), ranks.clone(), parameter.clone(), *step)
}

#[test]
fn a_flipped_bit_of_a_weight_or_a_slot_is_found_and_named_each_time() {
    let program = |strategy: MultiWorkerMirroredStrategy| {
        for seed in 0..FLIPS {
            let mut drawn = Drawn(seed);
            let replica = drawn.below(4);
            let before = 1 + drawn.below(3);
            let mut state = new_state(&strategy);
            train(&strategy, &mut state, before)?;
            check_same_state(&strategy, &state)?;
            let tensors = state.primary()?.to_tensors()?;
            let names: Vec<&String> = tensors.keys().collect();
            let name = names[drawn.below(names.len())].clone();
            let place = drawn.0;
            strategy.run(&mut state, |ctx, state| {
                if ctx.replica_id() == replica {
                    let mut tensors = state.to_tensors()?;
                    let values = tensors.get_mut(&name).unwrap().as_mut_slice().unwrap();
                    Drawn(place).flip(values);
                    state.load_tensors(&tensors, state.step())?;
                }
                Ok(())
            })?;
            let found = named(check_same_state(&strategy, &state));
            let rank = [0, 1, 1, 2][replica];
            assert_eq!(
                (&found.0, &found.1),
                (&vec![replica], &vec![rank]),
                "seed {seed}"
            );
            assert_eq!((&found.2, found.3), (&name, before as u64), "seed {seed}");
        }
        Ok(())
    };
    // A core for each replica: those that share one compute an update once, for all of them.
    for outcome in try_workers_with(THREADS, &[1, 2, 1], program, |builder| builder.cores(4)) {
        outcome.unwrap();
    }
}

/// What arrives at a worker has one wrong bit, once.
struct Flips {
    inner: Box<dyn Communicator>,
    /// The seed of the next flip, if there is to be one.
    next: Arc<Mutex<Option<u64>>>,
}

impl Communicator for Flips {
    fn all_reduce(&mut self, op: ReduceOp, buffers: &mut [Buffer<'_>]) -> Did<()> {
        self.inner.all_reduce(op, buffers)?;
        // Behind the gradients are flags.
        let Some((_, gradients)) = buffers.split_last_mut().filter(|it| !it.1.is_empty()) else {
            return Ok(());
        };
        if let Some(seed) = self.next.lock().unwrap().take() {
            let mut drawn = Drawn(seed);
            let which = drawn.below(gradients.len());
            let Buffer::F32(values) = &mut gradients[which] else {
                panic!("gradients are f32 here");
            };
            drawn.flip(values);
        }
        Ok(())
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn reduce_scatter(&mut self, op: ReduceOp, buffer: Buffer<'_>) -> Did<Range<usize>> {
        self.inner.reduce_scatter(op, buffer)
    }

    fn all_gather_into(
        &mut self,
        dtype: DType,
        input: &[u8],
        output: &mut dyn GatherTarget,
    ) -> Did<()> {
        self.inner.all_gather_into(dtype, input, output)
    }

    fn broadcast(&mut self, root: usize, buffers: &mut [Buffer<'_>]) -> Did<()> {
        self.inner.broadcast(root, buffers)
    }

    fn reduce(&mut self, op: ReduceOp, root: usize, buffers: &mut [Buffer<'_>]) -> Did<()> {
        self.inner.reduce(op, root, buffers)
    }

    fn send(&mut self, to: usize, buffer: Buffer<'_>) -> Did<()> {
        self.inner.send(to, buffer)
    }

    fn recv(&mut self, from: usize, buffer: Buffer<'_>) -> Did<()> {
        self.inner.recv(from, buffer)
    }

    fn barrier(&mut self) -> Did<()> {
        self.inner.barrier()
    }

    fn abort_handle(&self) -> AbortHandle {
        self.inner.abort_handle()
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }
}

/// Flips bits of gradients that have arrived until enough of them have changed a state: a low bit
/// of a small gradient may be rounded away, which changes nothing.
fn flip_messages(
    strategy: &MultiWorkerMirroredStrategy,
    next: &Mutex<Option<u64>>,
) -> Result<[u64; 2]> {
    let Some(workers) = strategy.workers() else {
        panic!("several workers");
    };
    let (mut found, mut rounded) = (0, 0);
    for seed in 0.. {
        let mut drawn = Drawn(seed ^ 0xfeed);
        let (worker, before) = (drawn.below(3), drawn.below(3));
        let mut state = new_state(strategy);
        train(strategy, &mut state, before)?;
        if workers.index() == worker {
            *next.lock().unwrap() = Some(drawn.0);
        }
        train(strategy, &mut state, 1)?;
        assert!(
            next.lock().unwrap().is_none(),
            "the gradients were not reduced"
        );
        let own = format!("{:?}", bits(state.primary()?));
        let all = workers.gather_text(&own)?;
        if all.iter().all(|other| *other == all[0]) {
            check_same_state(strategy, &state)?;
            rounded += 1;
            continue;
        }
        let (replicas, ranks, _, step) = named(check_same_state(strategy, &state));
        let wanted = (vec![worker], vec![worker], before as u64 + 1);
        assert_eq!((replicas, ranks, step), wanted, "seed {seed}");
        found += 1;
        if found == FLIPS {
            break;
        }
    }
    Ok([found, rounded])
}

/// The bits of all tensors, by name.
pub(super) fn bits(state: &TrainState<Mlp>) -> Vec<(String, Vec<u32>)> {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let all = everything(state).into_iter();
    all.map(|(name, values)| (name, bits(values))).collect()
}

#[test]
fn a_flipped_bit_of_what_arrives_from_other_workers_is_found_and_named_each_time() {
    let (done, results) = mpsc::channel();
    let group = in_process(3, GroupOptions::default().timeout(LIMIT)).unwrap();
    for endpoint in group {
        let done = done.clone();
        thread::spawn(move || {
            let next = Arc::new(Mutex::new(None));
            let own = Box::new(Flips {
                inner: Box::new(endpoint),
                next: Arc::clone(&next),
            });
            let builder = MultiWorkerMirroredStrategy::builder().replicas(1);
            let strategy = builder.communicator(own).build();
            let _ = done.send(strategy.and_then(|it| flip_messages(&it, &next)));
        });
    }
    for _ in 0..3 {
        let outcome = results
            .recv_timeout(LIMIT)
            .expect("a worker hangs or panicked");
        let [found, rounded] = outcome.unwrap();
        assert_eq!(found, FLIPS);
        assert!(rounded < 2 * FLIPS, "{rounded}");
    }
}

/// `CLEAN_CHECKS=10000` makes a longer series.
#[test]
fn clean_replicas_raise_no_alarm() {
    let wanted = std::env::var("CLEAN_CHECKS").ok();
    let steps: u64 = wanted.map_or(200, |text| text.parse().unwrap());
    let program = move |strategy: MultiWorkerMirroredStrategy| {
        let (data, mut state) = (Points::new(&strategy), new_state(&strategy));
        let fit = Fit::new(&strategy).epochs(usize::MAX).max_steps(steps);
        fit.check_replicas(1).run(&mut state, &data, objective)?;
        Ok(state.primary()?.step())
    };
    for outcome in try_workers_with(THREADS, &[1, 2, 1], program, |builder| builder) {
        assert_eq!(outcome.unwrap(), steps);
    }
}
