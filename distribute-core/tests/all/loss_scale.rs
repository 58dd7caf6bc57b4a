//! A dynamic loss scale under every eager strategy: what is skipped changes nothing, and all
//! replicas agree.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Applied, CentralStorageStrategy, Clip, DefaultStrategy, LossScale, Mirrored, MirroredStrategy,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, PerReplica, Result, Sgd, Strategy, StrategyExt,
    SyncBatchNorm, SyncBatchNormConfig, TrainState,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::multi_worker::group::{SHARED_MEMORY, THREADS, workers};

const COUNT: usize = 5;

#[derive(Module, Debug)]
struct Weights {
    w: Param<Tensor<1>>,
    b: Param<Tensor<1>>,
}

impl Weights {
    fn new(device: &Device) -> Self {
        let ones = |count| Param::from_tensor(Tensor::ones([count], device).require_grad());
        Self {
            w: ones(COUNT),
            b: ones(1),
        }
    }
}

/// The gradients of one step, replica by replica: first of `w`, then of `b`.
type Step = Vec<Vec<f32>>;

/// Gradients of which some are NaN, infinite, or infinite when they are scaled.
fn random_steps(seed: u64, steps: usize, replicas: usize) -> Vec<Step> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut step = || {
        let mut all: Step = (0..replicas)
            .map(|_| (0..=COUNT).map(|_| rng.random_range(-1.5..1.5)).collect())
            .collect();
        if rng.random_bool(0.4) {
            let (replica, place) = (rng.random_range(0..replicas), rng.random_range(0..=COUNT));
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e34, -1e34];
            all[replica][place] = odd[rng.random_range(0..odd.len())];
        }
        all
    };
    (0..steps).map(|_| step()).collect()
}

/// The rule by itself: which steps are applied, and the scale and the good steps after each.
fn rule(steps: &[Step], initial: f32, growth: u64) -> Vec<(bool, f64, u64)> {
    let (mut scale, mut good) = (initial, 0);
    let of_step = |step: &Step| {
        let is_finite = (0..=COUNT).all(|place| {
            let sum: f32 = step.iter().map(|replica| replica[place] * scale).sum();
            sum.is_finite()
        });
        if !is_finite {
            (scale, good) = ((scale / 2.0).max(1.0), 0);
        } else if good + 1 == growth {
            (scale, good) = (scale * 2.0, 0);
        } else {
            good += 1;
        }
        (is_finite, f64::from(scale), good)
    };
    steps.iter().map(of_step).collect()
}

/// One replica's step on its unscaled gradients.
fn apply(
    strategy: &impl Strategy,
    state: &mut Mirrored<TrainState<Weights>>,
    step: &Step,
) -> Applied {
    let own = strategy
        .replicas()
        .iter()
        .map(|replica| step[replica.id].clone());
    let own = PerReplica::new(own.collect());
    let done = strategy.run((&mut *state, own), |ctx, (state, given)| {
        let given = Tensor::<1>::from_data(&given[..], ctx.device());
        let (w, b) = (given.clone().slice(0..COUNT), given.slice(COUNT..COUNT + 1));
        let loss = (state.model.w.val() * w).sum() + (state.model.b.val() * b).sum();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
        let done = state.apply_gradients(ctx, gradients)?;
        Ok(match done {
            Applied::Updated => 0_i64,
            Applied::Accumulated => 1,
            _ => 2,
        })
    });
    let all = done.unwrap().into_values();
    assert!(all.iter().all(|done| *done == all[0]), "replicas differ");
    [Applied::Updated, Applied::Accumulated, Applied::Skipped][all[0] as usize]
}

fn new_state(strategy: &impl Strategy, scale: LossScale) -> Mirrored<TrainState<Weights>> {
    let state = strategy.scope(|device| {
        TrainState::new(Weights::new(device), Sgd::new(0.125).momentum(0.5))
            .clip(Clip::GlobalNorm(2.0))
            .with_loss_scale(scale)
    });
    state.unwrap()
}

fn dynamic(initial: f32, growth: u64) -> LossScale {
    let scale = LossScale::dynamic().initial(initial.into()).unwrap();
    scale.growth_steps(growth).unwrap()
}

/// Weights, slots and step, as bits.
type Bits = (u64, Vec<(String, Vec<u32>)>);

/// The numbers of all replicas, which must be equal.
fn bits(state: &Mirrored<TrainState<Weights>>) -> Bits {
    let of_one = |state: &TrainState<Weights>| {
        let tensors = state.to_tensors().unwrap().into_iter();
        let tensors = tensors.filter(|(name, _)| !name.starts_with("loss_scale/"));
        let bits = |data: &TensorData| data.iter::<f32>().map(f32::to_bits).collect();
        (
            state.step(),
            tensors.map(|(name, data)| (name, bits(&data))).collect(),
        )
    };
    let all: Vec<Bits> = state.values().unwrap().iter().map(of_one).collect();
    assert!(all.iter().all(|one| *one == all[0]), "replicas differ");
    all[0].clone()
}

/// Trains with a loss scale, and beside it without one on the steps that are not skipped: after
/// every step both must have the same bits, because the scales are powers of two.
fn follow(strategy: &impl Strategy, seed: u64) -> Result<Bits> {
    let steps = random_steps(seed, 24, strategy.num_replicas_in_sync());
    let (initial, growth) = (2.0_f32.powi((seed % 16) as i32), 1 + seed % 3);
    let mut scaled = new_state(strategy, dynamic(initial, growth));
    let mut plain = new_state(strategy, LossScale::default());
    let mut skipped = 0;
    for (step, (applies, scale, good)) in steps.iter().zip(rule(&steps, initial, growth)) {
        let done = apply(strategy, &mut scaled, step);
        if applies {
            assert_eq!(done, Applied::Updated);
            apply(strategy, &mut plain, step);
        } else {
            assert_eq!(done, Applied::Skipped);
            skipped += 1;
        }
        assert_eq!(bits(&scaled), bits(&plain));
        for copy in scaled.values()? {
            let own = copy.loss_scale();
            let found = (own.scale(), own.good_steps(), own.skipped_steps());
            assert_eq!(found, (scale, good, skipped));
        }
    }
    Ok(bits(&scaled))
}

#[test]
fn skipped_steps_change_nothing_under_any_strategy() {
    let steps = random_steps(3, 24, 4);
    let applied = rule(&steps, 8.0, 1)
        .iter()
        .filter(|(applies, ..)| *applies)
        .count();
    assert!((6..=20).contains(&applied), "{applied} of 24 are applied");
    for seed in 0..12 {
        follow(&DefaultStrategy::new(), seed).unwrap();
        follow(
            &OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap(),
            seed,
        )
        .unwrap();
        for replicas in [2, 3, 4] {
            let mirrored = MirroredStrategy::builder()
                .replicas(replicas)
                .build()
                .unwrap();
            follow(&mirrored, seed).unwrap();
            follow(
                &CentralStorageStrategy::with_replicas(replicas).unwrap(),
                seed,
            )
            .unwrap();
        }
    }
}

#[test]
fn workers_agree_on_what_is_skipped() {
    for between in [THREADS, SHARED_MEMORY] {
        for seed in [1, 2, 5] {
            let program = move |strategy: MultiWorkerMirroredStrategy| follow(&strategy, seed);
            let all = workers(between, &[1, 2, 1], program);
            assert!(all.iter().all(|worker| *worker == all[0]), "workers differ");
        }
    }
}

/// What no replica has by itself.
#[test]
fn a_sum_that_overflows_is_skipped() {
    let strategy = MirroredStrategy::builder().replicas(3).build().unwrap();
    let mut state = new_state(&strategy, dynamic(4.0, 2));
    let before = bits(&state);
    let large = vec![vec![5e37; COUNT + 1]; 3];
    assert_eq!(apply(&strategy, &mut state, &large), Applied::Skipped);
    assert_eq!(bits(&state), before);
    assert_eq!(state.primary().unwrap().loss_scale().scale(), 2.0);
    // With this scale the sum is 3e38.
    assert_eq!(apply(&strategy, &mut state, &large), Applied::Updated);
}

#[test]
fn a_run_goes_on_from_a_checkpoint_with_the_same_bits() {
    for (seed, from, to) in [(2, 2, 3), (5, 3, 1), (8, 1, 2)] {
        let one = |replicas| {
            MirroredStrategy::builder()
                .replicas(replicas)
                .build()
                .unwrap()
        };
        let (first, second) = (one(from), one(to));
        // Given on replica 0, so that the sum does not depend on their number.
        let steps: Vec<Step> = random_steps(seed, 20, 1)
            .into_iter()
            .map(|mut step| {
                step.resize(3, vec![0.0; COUNT + 1]);
                step
            })
            .collect();
        let mut expected = new_state(&first, dynamic(64.0, 3));
        for step in &steps {
            apply(&first, &mut expected, step);
        }
        let mut whole = new_state(&first, dynamic(64.0, 3));
        for (index, step) in steps.iter().enumerate() {
            let (updates, tensors) = whole.primary().unwrap().save().unwrap();
            let mut again = new_state(&second, dynamic(64.0, 3));
            let restored = again.update(|state| state.load_tensors(&tensors, updates));
            restored.unwrap();
            for step in &steps[index..] {
                apply(&second, &mut again, step);
            }
            assert_eq!(bits(&again), bits(&expected), "from step {index}");
            let scales = [&again, &expected].map(|it| it.primary().unwrap().loss_scale().clone());
            assert_eq!(scales[0], scales[1], "from step {index}");
            apply(&first, &mut whole, step);
        }
    }
}

#[test]
fn a_checkpoint_without_a_loss_scale_starts_a_new_one() {
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy, dynamic(64.0, 5));
    apply(&strategy, &mut state, &vec![vec![f32::NAN; COUNT + 1]]);
    apply(&strategy, &mut state, &vec![vec![0.5; COUNT + 1]]);
    let (step, mut tensors) = state.primary().unwrap().save().unwrap();
    let numbers: Vec<&str> = tensors.keys().map(String::as_str).collect();
    assert!(numbers.contains(&"loss_scale/dynamic_scale"), "{numbers:?}");
    for (name, wrong) in [
        ("loss_scale/dynamic_scale", TensorData::from([f64::NAN])),
        ("loss_scale/dynamic_scale", TensorData::from([1.0_f64, 2.0])),
        ("loss_scale/step_counter", TensorData::from([-1_i64])),
    ] {
        let mut damaged = tensors.clone();
        damaged.insert(name.to_string(), wrong);
        let error = state.update(|state| state.load_tensors(&damaged, step));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        assert_eq!(state.primary().unwrap().loss_scale().scale(), 32.0);
    }
    tensors.retain(|name, _| !name.starts_with("loss_scale/"));
    let restored = state.update(|state| state.load_tensors(&tensors, step));
    restored.unwrap();
    assert_eq!(*state.primary().unwrap().loss_scale(), dynamic(64.0, 5));
}

/// One micro-batch is enough to skip the update of all.
#[test]
fn micro_batches_are_skipped_together() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let state = strategy.scope(|device| {
        TrainState::new(Weights::new(device), Sgd::new(1.0))
            .accumulate(3)
            .with_loss_scale(dynamic(16.0, 2))
    });
    let mut state = state.unwrap();
    let before = bits(&state);
    let good = vec![vec![0.25; COUNT + 1]; 2];
    let mut bad = good.clone();
    bad[1][2] = f32::INFINITY;
    let done = [&good, &bad, &good].map(|step| apply(&strategy, &mut state, step));
    let waiting = Applied::Accumulated;
    assert_eq!(done, [waiting, waiting, Applied::Skipped]);
    assert_eq!(bits(&state), before);
    assert_eq!(state.primary().unwrap().loss_scale().scale(), 8.0);
    let done = [&good; 3].map(|step| apply(&strategy, &mut state, step));
    assert_eq!(done, [waiting, waiting, Applied::Updated]);
    let weight = state.primary().unwrap().model.b.val().into_scalar::<f32>();
    assert_eq!(weight, 1.0 - 6.0 * 0.25);
}

#[test]
fn a_fixed_scale_changes_no_bit_and_skips_nothing() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut fixed = new_state(&strategy, LossScale::fixed(1024.0).unwrap());
    let mut plain = new_state(&strategy, LossScale::default());
    for step in &random_steps(4, 10, 2) {
        let is_finite = step.concat().iter().all(|value| value.abs() < 1e30);
        if is_finite {
            apply(&strategy, &mut fixed, step);
            apply(&strategy, &mut plain, step);
            assert_eq!(bits(&fixed), bits(&plain));
        }
    }
    let nan = vec![vec![f32::NAN; COUNT + 1]; 2];
    assert_eq!(apply(&strategy, &mut fixed, &nan), Applied::Updated);
    let weight = fixed.primary().unwrap().model.b.val().into_scalar::<f32>();
    assert!(weight.is_nan());
}

#[test]
fn a_loss_that_was_not_scaled_is_an_error() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = new_state(&strategy, LossScale::dynamic());
    let step = vec![vec![0.5; COUNT + 1]; 2];
    apply(&strategy, &mut state, &step);
    let before = bits(&state);
    let result = strategy.run(&mut state, |ctx, state| {
        let loss = state.model.w.val().sum();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("state.scale_loss(&loss)"), "{error}");
    assert_eq!(bits(&state), before);
    assert_eq!(apply(&strategy, &mut state, &step), Applied::Updated);
}

#[test]
fn bounds_hold_a_scale() {
    let scale = LossScale::dynamic().bounds(4.0, 48.0).unwrap();
    let scale = scale.initial(16.0).unwrap().growth_steps(1).unwrap();
    let strategy = DefaultStrategy::new();
    let mut state = new_state(&strategy, scale);
    let mut scales = |value: f32| {
        let step = vec![vec![value; COUNT + 1]];
        let next = |_| {
            apply(&strategy, &mut state, &step);
            state.primary().unwrap().loss_scale().scale()
        };
        [(); 3].map(next)
    };
    assert_eq!(scales(0.5), [32.0, 48.0, 48.0]);
    assert_eq!(scales(f32::NAN), [24.0, 12.0, 6.0]);
    assert_eq!(scales(f32::NAN), [4.0, 4.0, 4.0]);
}

#[test]
fn numbers_that_are_no_scale_are_refused() {
    let dynamic = LossScale::dynamic;
    let fixed = || LossScale::fixed(2.0).unwrap();
    for (result, part) in [
        (LossScale::fixed(0.0), "a positive number of f32, got 0"),
        (LossScale::fixed(f64::INFINITY), "got inf"),
        (dynamic().initial(f64::NAN), "got NaN"),
        (dynamic().initial(0.5), "between its bounds 1 and"),
        (dynamic().growth_steps(0), "got 0"),
        (dynamic().bounds(8.0, 4.0), "8 is larger than the largest 4"),
        (dynamic().bounds(-1.0, 4.0), "got -1"),
        (fixed().growth_steps(3), "begin with `LossScale::dynamic()`"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error} does not say {part}");
    }
}

/// Statistics of each replica's own, and of all together.
#[derive(Module, Debug)]
struct Normalized {
    own: BatchNorm,
    all: SyncBatchNorm,
    last: Param<Tensor<2>>,
}

fn normalized(strategy: &impl Strategy, scale: LossScale) -> Mirrored<TrainState<Normalized>> {
    let state = strategy.try_scope(|device| {
        // burn's generator belongs to the process, and workers are threads here.
        let last = Tensor::<2>::from_data([[0.5], [-0.25], [0.75]], device);
        let model = Normalized {
            own: BatchNormConfig::new(3).init(device),
            all: SyncBatchNormConfig::new(3).init(device)?,
            last: Param::from_tensor(last.require_grad()),
        };
        Ok(TrainState::new(model, Sgd::new(0.125)).with_loss_scale(scale))
    });
    state.unwrap()
}

/// A step on the inputs of this number, with a loss of this size on the last replica.
fn normalized_step(
    strategy: &impl Strategy,
    state: &mut Mirrored<TrainState<Normalized>>,
    number: usize,
    size: f32,
) {
    let count = strategy.num_replicas_in_sync();
    let parts = strategy.replicas().iter().map(|replica| {
        let value = |i: usize| ((i + 5 * replica.id + 7 * number) as f32 * 0.7).sin();
        let rows: Vec<f32> = (0..12).map(value).collect();
        (rows, if replica.id + 1 == count { size } else { 1.0 })
    });
    let parts = PerReplica::new(parts.collect::<Vec<_>>());
    let done = strategy.run((state, parts), |ctx, (state, (rows, size))| {
        let x = Tensor::<1>::from_data(&rows[..], ctx.device()).reshape([4, 3]);
        let x = state.model.all.forward(state.model.own.forward(x));
        let loss = x.matmul(state.model.last.val()).powi_scalar(2).sum() * size;
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    done.unwrap();
}

/// Trains on some batches of which every third overflows; the state is that of a training without
/// them, replica by replica, with all running statistics.
fn statistics_stay(strategy: &impl Strategy) -> Result<()> {
    let mut found = normalized(strategy, dynamic(1024.0, 100));
    let mut wanted = normalized(strategy, LossScale::default());
    for number in 0..6 {
        let overflows = number % 3 == 1;
        let size = if overflows { 1e37 } else { 1.0 };
        normalized_step(strategy, &mut found, number, size);
        if !overflows {
            normalized_step(strategy, &mut wanted, number, 1.0);
        }
        let all = found.values()?.iter().zip(wanted.values()?);
        for (replica, (found, wanted)) in all.enumerate() {
            let mut tensors = found.to_tensors()?;
            tensors.retain(|name, _| !name.starts_with("loss_scale/"));
            assert_eq!(
                tensors,
                wanted.to_tensors()?,
                "step {number}, replica {replica}"
            );
        }
    }
    assert_eq!(found.primary()?.loss_scale().skipped_steps(), 2);
    let moved = found.primary()?.to_tensors()?["model/own.running_mean"].clone();
    assert!(moved.iter::<f32>().all(|mean| mean != 0.0), "{moved:?}");
    Ok(())
}

#[test]
fn a_skipped_step_leaves_running_statistics_as_they_were() {
    statistics_stay(&DefaultStrategy::new()).unwrap();
    for replicas in [1, 2, 3] {
        let mirrored = MirroredStrategy::builder().replicas(replicas).build();
        statistics_stay(&mirrored.unwrap()).unwrap();
        statistics_stay(&CentralStorageStrategy::with_replicas(replicas).unwrap()).unwrap();
    }
    let program = |strategy: MultiWorkerMirroredStrategy| statistics_stay(&strategy);
    workers(THREADS, &[1, 2], program);
}
