//! One loss over several models, each with an optimizer of its own: one backward pass gives the
//! gradients of all of them.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Adam, Applied, CentralStorageStrategy, DefaultStrategy, Error, Gradients, LossScale, Mirrored,
    MirroredStrategy, MultiWorkerMirroredStrategy, PerReplica, ReduceOp, Replicate, Result, Sgd,
    Strategy, StrategyExt, TrainState, follow,
};
use rstest::rstest;

use crate::multi_worker::group::{SHARED_MEMORY, THREADS, workers};
use crate::trace::support::Recording;

/// A matrix, with fixed weights.
#[derive(Module, Debug)]
struct Matrix {
    weight: Param<Tensor<2>>,
}

impl Matrix {
    fn new(shape: [usize; 2], seed: f32, device: &Device) -> Self {
        let count = shape[0] * shape[1];
        let values = (0..count).map(|i| ((i as f32 + seed) * 12.9898).sin() * 0.5);
        let data = TensorData::new(values.collect::<Vec<_>>(), shape);
        Self {
            weight: Param::from_tensor(Tensor::from_data(data, device).require_grad()),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.matmul(self.weight.val())
    }

    fn values(&self) -> Vec<f32> {
        self.weight.val().into_data().iter::<f32>().collect()
    }
}

/// Two models with a state each.
#[derive(Replicate)]
struct Coder {
    encoder: TrainState<Matrix>,
    decoder: TrainState<Matrix>,
}

/// The same as one model.
#[derive(Module, Debug)]
struct Both {
    encoder: Matrix,
    decoder: Matrix,
}

fn encoder(device: &Device) -> Matrix {
    Matrix::new([4, 2], 1.0, device)
}

fn decoder(device: &Device) -> Matrix {
    Matrix::new([2, 4], 9.0, device)
}

const GLOBAL_BATCH: usize = 12;

/// The parts of the local replicas, uneven where the examples do not divide.
fn batch(strategy: &(impl Strategy + ?Sized), step: usize) -> PerReplica<Tensor<2>> {
    let share = GLOBAL_BATCH.div_ceil(strategy.num_replicas_in_sync());
    let parts = strategy.replicas().iter().map(|replica| {
        let from = (replica.id * share).min(GLOBAL_BATCH);
        let to = (from + share).min(GLOBAL_BATCH);
        let values = (from * 4..to * 4).map(|i| ((step * 48 + i) as f32 * 78.233).sin());
        let data = TensorData::new(values.collect::<Vec<_>>(), [to - from, 4]);
        Tensor::from_data(data, &replica.device)
    });
    PerReplica::new(parts.collect()).of_global_batch(GLOBAL_BATCH)
}

fn loss(x: Tensor<2>, encoder: &Matrix, decoder: &Matrix) -> Tensor<1> {
    let error = decoder.forward(encoder.forward(x.clone())) - x;
    (error.clone() * error).sum() / GLOBAL_BATCH as f32
}

fn coder(
    strategy: &dyn Strategy,
    of: fn(TrainState<Matrix>) -> TrainState<Matrix>,
) -> Mirrored<Coder> {
    let state = |model| of(TrainState::new(model, Sgd::new(0.05).momentum(0.9)));
    let build = |device: &Device| Coder {
        encoder: state(encoder(device)),
        decoder: state(decoder(device)),
    };
    strategy.scope(build).unwrap()
}

fn train(strategy: &dyn Strategy, state: &mut Mirrored<Coder>, steps: std::ops::Range<usize>) {
    for step in steps {
        let batch = batch(strategy, step);
        let trained = strategy.run((&mut *state, batch), |ctx, (coder, x)| {
            let loss = loss(x, &coder.encoder.model, &coder.decoder.model);
            ctx.loss_is_scaled();
            let scaled = ctx.scale_loss(&loss, (&mut coder.encoder, &mut coder.decoder))?;
            let models = (&coder.encoder.model, &coder.decoder.model);
            let (of_encoder, of_decoder) = ctx.gradients(&scaled, models)?;
            coder.encoder.apply_gradients(ctx, of_encoder)?;
            coder.decoder.apply_gradients(ctx, of_decoder)
        });
        trained.unwrap();
    }
}

/// The weights, which all local replicas have alike.
fn weights(state: &Mirrored<Coder>) -> [Vec<f32>; 2] {
    let all = state.values().unwrap().iter();
    let mut all = all.map(|it| [it.encoder.model.values(), it.decoder.model.values()]);
    let first = all.next().unwrap();
    assert!(all.all(|other| other == first), "replicas differ");
    first
}

/// The same training of one model of both.
fn trained_as_one(strategy: &dyn Strategy, steps: usize) -> [Vec<f32>; 2] {
    let build = |device: &Device| {
        let model = Both {
            encoder: encoder(device),
            decoder: decoder(device),
        };
        TrainState::new(model, Sgd::new(0.05).momentum(0.9))
    };
    let mut state = strategy.scope(build).unwrap();
    for step in 0..steps {
        let batch = batch(strategy, step);
        let trained = strategy.run((&mut state, batch), |ctx, (state, x)| {
            let loss = loss(x, &state.model.encoder, &state.model.decoder);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)
        });
        trained.unwrap();
    }
    let model = &state.primary().unwrap().model;
    [model.encoder.values(), model.decoder.values()]
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    let strategy = MirroredStrategy::builder().replicas(replicas);
    strategy.build().unwrap()
}

#[test]
fn two_states_get_the_bits_of_one_state_of_both_models() {
    let strategies: [Box<dyn Strategy>; 5] = [
        Box::new(DefaultStrategy::new()),
        Box::new(mirrored(1)),
        Box::new(mirrored(2)),
        Box::new(mirrored(5)),
        Box::new(CentralStorageStrategy::with_replicas(2).unwrap()),
    ];
    for strategy in strategies {
        let mut state = coder(&*strategy, |state| state);
        let before = weights(&state);
        train(&*strategy, &mut state, 0..6);
        let after = weights(&state);
        assert!(after.iter().zip(&before).all(|(new, old)| new != old));
        assert_eq!(after, trained_as_one(&*strategy, 6), "{}", strategy.name());
    }
}

#[rstest]
fn so_do_workers(#[values(1, 2)] replicas: usize) {
    for between in [THREADS, SHARED_MEMORY] {
        let program = |strategy: MultiWorkerMirroredStrategy| {
            let mut state = coder(&strategy, |state| state);
            train(&strategy, &mut state, 0..6);
            Ok((weights(&state), trained_as_one(&strategy, 6)))
        };
        let all = workers(between, &[replicas, replicas], program);
        for (two, one) in &all {
            assert_eq!(two, one);
            assert_eq!(*two, all[0].0, "workers differ");
        }
    }
}

#[test]
fn micro_batches_add_up_in_both_states() {
    let strategy = mirrored(2);
    let mut state = coder(&strategy, |state| state.accumulate(3));
    let before = weights(&state);
    train(&strategy, &mut state, 0..2);
    assert_eq!(weights(&state), before);
    train(&strategy, &mut state, 2..3);
    assert!(
        weights(&state)
            .iter()
            .zip(&before)
            .all(|(new, old)| new != old)
    );
    let state = state.primary().unwrap();
    assert_eq!((state.encoder.step(), state.decoder.step()), (1, 1));
}

/// A model with one number.
fn number(device: &Device, value: f32) -> Param<Tensor<1>> {
    Param::from_tensor(Tensor::from_floats([value], device).require_grad())
}

fn only(gradients: &Gradients) -> Option<f32> {
    let found = gradients.get(0).unwrap();
    found.map(|data| data.iter::<f32>().next().unwrap())
}

#[test]
fn each_model_has_the_gradients_that_it_has_alone() {
    let found = mirrored(2).run((), |ctx, ()| {
        let of = |value| number(ctx.device(), value);
        let (a, b, c, unused) = (of(2.0), of(3.0), of(5.0), of(7.0));
        let loss = a.val() * b.val() * c.val();
        let (of_a, of_b, nothing, of_c) = ctx.gradients(&loss, (&a, &b, &unused, &c))?;
        assert_eq!([&of_a, &of_b, &nothing, &of_c].map(Gradients::len), [1; 4]);
        let one = ctx.gradient(&(a.val() * b.val() * c.val()), &b)?;
        Ok([of_a, of_b, of_c, nothing, one]
            .map(|it| only(&it).unwrap_or(-1.0))
            .to_vec())
    });
    for found in found.unwrap().into_values() {
        assert_eq!(found, [15.0, 10.0, 6.0, -1.0, 10.0]);
    }
}

/// Buffers of their own, so that one set is reduced without the other.
#[test]
fn a_parameter_of_two_models_has_its_gradient_in_both_sets() {
    let found = mirrored(2).run((), |ctx, ()| {
        let shared = number(ctx.device(), 2.0);
        let own = number(ctx.device(), 3.0);
        let models = (vec![shared.clone()], vec![own.clone(), shared.clone()]);
        let loss = shared.val() * shared.val() * own.val();
        let (mut first, mut second) = ctx.gradients(&loss, (&models.0, &models.1))?;
        let values = |set: &Gradients| -> Result<Vec<f32>> {
            let all = (0..set.len()).map(|index| Ok(set.get(index)?.cloned()));
            let all = all.collect::<Result<Vec<_>>>()?.into_iter().flatten();
            Ok(all
                .flat_map(|data| data.iter::<f32>().collect::<Vec<_>>())
                .collect())
        };
        let before = (values(&first)?, values(&second)?);
        first.all_reduce(ctx, ReduceOp::Sum)?;
        let between = (values(&first)?, values(&second)?);
        second.all_reduce(ctx, ReduceOp::Sum)?;
        Ok([before, between, (values(&first)?, values(&second)?)].to_vec())
    });
    let expected = [
        (vec![12.0], vec![4.0, 12.0]),
        (vec![24.0], vec![4.0, 12.0]),
        (vec![24.0], vec![8.0, 24.0]),
    ];
    for found in found.unwrap().into_values() {
        assert_eq!(found, expected);
    }
}

/// A model that the loss does not depend on is left alone, as with `gradient`.
#[test]
fn a_model_without_a_gradient_stays_as_it_is() {
    let strategy = mirrored(2);
    let mut state = coder(&strategy, |state| state);
    let before = weights(&state);
    let applied = strategy.run((&mut state, batch(&strategy, 0)), |ctx, (coder, x)| {
        let loss = coder.encoder.model.forward(x).sum();
        ctx.loss_is_scaled();
        let models = (&coder.encoder.model, &coder.decoder.model);
        let (of_encoder, of_decoder) = ctx.gradients(&loss, models)?;
        assert!(of_decoder.get(0)?.is_none());
        coder.encoder.apply_gradients(ctx, of_encoder)?;
        coder.decoder.apply_gradients(ctx, of_decoder)
    });
    assert_eq!(applied.unwrap().values(), [Applied::Updated; 2]);
    let after = weights(&state);
    assert_ne!(after[0], before[0]);
    assert_eq!(after[1], before[1]);
}

#[test]
fn a_second_call_for_a_loss_is_an_error_that_names_the_first_one_to_make() {
    let strategy = mirrored(2);
    let mut state = coder(&strategy, |state| state);
    let before = weights(&state);
    let refused = strategy.run((&mut state, batch(&strategy, 0)), |ctx, (coder, x)| {
        let loss = loss(x, &coder.encoder.model, &coder.decoder.model);
        let _first = ctx.gradient(&loss, &coder.encoder.model)?;
        ctx.gradient(&loss, &coder.decoder.model).map(drop)
    });
    let error = refused.unwrap_err();
    assert!(
        matches!(error.root_cause(), Error::InvalidArgument { .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("ctx.gradients(&loss, (&a, &b))"),
        "{error}"
    );
    train(&strategy, &mut state, 0..1);
    assert_ne!(weights(&state), before, "the next run works");
}

fn scaled(state: TrainState<Matrix>) -> TrainState<Matrix> {
    state.with_loss_scale(LossScale::dynamic().initial(1024.0).unwrap())
}

/// A power of two changes no bit but by an overflow.
#[test]
fn states_with_a_loss_scale_get_the_same_bits() {
    let strategy = mirrored(2);
    let fixed = |state: TrainState<Matrix>| state.with_loss_scale(LossScale::fixed(64.0).unwrap());
    let expected = trained_as_one(&strategy, 4);
    for of in [scaled, fixed] {
        let mut state = coder(&strategy, of);
        train(&strategy, &mut state, 0..4);
        assert_eq!(weights(&state), expected);
    }
    let all = workers(THREADS, &[1, 2], |strategy| {
        let mut state = coder(&strategy, scaled);
        train(&strategy, &mut state, 0..4);
        Ok((weights(&state), trained_as_one(&strategy, 4)))
    });
    assert!(all.iter().all(|(two, one)| two == one));
}

/// Scales, and the updates since they were changed.
fn scales(state: &Mirrored<Coder>) -> [(f64, u64, u64); 2] {
    let all = state.values().unwrap().iter();
    let numbers = |state: &TrainState<Matrix>| {
        let scale = state.loss_scale();
        (scale.scale(), scale.good_steps(), scale.skipped_steps())
    };
    let mut all = all.map(|it| [numbers(&it.encoder), numbers(&it.decoder)]);
    let first = all.next().unwrap();
    assert!(all.all(|other| other == first), "replicas differ");
    first
}

#[test]
fn dynamic_scales_go_on_from_the_smallest_together() {
    let strategy = mirrored(2);
    let dynamic = |scale: f64| {
        let scale = LossScale::dynamic().initial(scale).unwrap();
        scale.growth_steps(3).unwrap()
    };
    let state = |model: Matrix, scale| {
        TrainState::new(model, Sgd::new(0.01)).with_loss_scale(dynamic(scale))
    };
    let build = |device: &Device| Coder {
        encoder: state(encoder(device), 256.0),
        decoder: state(decoder(device), 64.0),
    };
    let mut state = strategy.scope(build).unwrap();
    train(&strategy, &mut state, 0..1);
    assert_eq!(scales(&state), [(64.0, 1, 0); 2]);
    // The gradient of one model alone is not finite, on one replica.
    let arguments = (&mut state, batch(&strategy, 1));
    let applied = strategy.run(arguments, |ctx, (coder, x)| {
        let factor = if ctx.replica_id() == 1 {
            f32::INFINITY
        } else {
            1.0
        };
        let other = coder.encoder.model.forward(x).sum();
        let loss = coder.decoder.model.weight.val().sum() * factor + other;
        ctx.loss_is_scaled();
        let scaled = ctx.scale_loss(&loss, (&mut coder.encoder, &mut coder.decoder))?;
        let models = (&coder.encoder.model, &coder.decoder.model);
        let (first, second) = ctx.gradients(&scaled, models)?;
        let first = coder.encoder.apply_gradients(ctx, first)?;
        Ok((first, coder.decoder.apply_gradients(ctx, second)?))
    });
    let expected = (Applied::Updated, Applied::Skipped);
    assert_eq!(applied.unwrap().values(), [expected; 2]);
    assert_eq!(scales(&state), [(64.0, 2, 0), (32.0, 0, 1)]);
    train(&strategy, &mut state, 2..3);
    assert_eq!(scales(&state), [(32.0, 1, 0), (32.0, 1, 1)]);
    train(&strategy, &mut state, 3..5);
    assert_eq!(scales(&state), [(64.0, 0, 0), (64.0, 0, 1)]);
}

/// What a step that scales a loss for two states says.
fn scaling(build: impl Fn(&Device) -> Coder) -> String {
    let strategy = mirrored(2);
    let mut state = strategy.scope(build).unwrap();
    let refused = strategy.run((&mut state, batch(&strategy, 0)), |ctx, (coder, x)| {
        let loss = loss(x, &coder.encoder.model, &coder.decoder.model);
        ctx.scale_loss(&loss, (&mut coder.encoder, &mut coder.decoder))
            .map(drop)
    });
    refused.unwrap_err().to_string()
}

#[test]
fn scales_that_do_not_go_together_are_refused() {
    let state = |model| TrainState::new(model, Sgd::new(0.1));
    let fixed = |factor| LossScale::fixed(factor).unwrap();
    let error = scaling(|device| Coder {
        encoder: state(encoder(device)).with_loss_scale(LossScale::dynamic()),
        decoder: state(decoder(device)),
    });
    assert!(error.contains("some have a dynamic loss scale"), "{error}");
    let error = scaling(|device| Coder {
        encoder: state(encoder(device)).with_loss_scale(fixed(8.0)),
        decoder: state(decoder(device)).with_loss_scale(fixed(16.0)),
    });
    assert!(error.contains("different fixed loss scales"), "{error}");
    let error = scaling(|device| Coder {
        encoder: scaled(state(encoder(device))).accumulate(2),
        decoder: scaled(state(decoder(device))),
    });
    assert!(error.contains("the same `accumulate(n)`"), "{error}");
}

/// A step that is captured has the gradients of both models.
#[test]
fn a_compiled_step_reduces_and_updates_both() {
    let strategy = Recording::new(2);
    let state = |model| TrainState::new(model, Adam::new(0.1));
    let mut coder = strategy
        .scope(|device| Coder {
            encoder: state(encoder(device)),
            decoder: state(decoder(device)),
        })
        .unwrap();
    let part = || Tensor::<2>::ones([3, 4], &Device::flex());
    let batch = PerReplica::new(vec![part(), part()]);
    let ran = strategy.run((&mut coder, batch), |ctx, (coder, x)| {
        let loss = loss(x, &coder.encoder.model, &coder.decoder.model);
        ctx.loss_is_scaled();
        let models = (&coder.encoder.model, &coder.decoder.model);
        let (first, second) = ctx.gradients(&loss, models)?;
        coder.encoder.apply_gradients(ctx, first)?;
        coder.decoder.apply_gradients(ctx, second)
    });
    ran.unwrap();
    assert_eq!(strategy.compiled(), 1);
    let coder = coder.primary().unwrap();
    // What the recorder computes is ones.
    assert_eq!(coder.encoder.model.values(), [1.0; 8]);
    assert_eq!(coder.decoder.model.values(), [1.0; 8]);
    assert_eq!((coder.encoder.step(), coder.decoder.step()), (1, 1));
}

#[test]
fn a_compiled_step_refuses_dynamic_scales_of_several_states() {
    let strategy = Recording::new(2);
    let state = |model| scaled(TrainState::new(model, Sgd::new(0.1)));
    let mut coder = strategy
        .scope(|device| Coder {
            encoder: state(encoder(device)),
            decoder: state(decoder(device)),
        })
        .unwrap();
    let refused = strategy.run(&mut coder, |ctx, coder: &mut Coder| {
        let loss = coder.encoder.model.weight.val().sum();
        ctx.scale_loss(&loss, (&mut coder.encoder, &mut coder.decoder))
            .map(drop)
    });
    let error = refused.unwrap_err();
    assert!(
        matches!(error.root_cause(), Error::NotCompilable { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("LossScale::fixed"), "{error}");
}

/// Up to eight models.
#[test]
fn eight_models_have_eight_sets() -> Result<()> {
    let strategy = mirrored(2);
    let sums = strategy.run((), |ctx, ()| {
        let all: Vec<_> = (1..9)
            .map(|value| number(ctx.device(), value as f32))
            .collect();
        let [a, b, c, d, e, f, g, h] = &all[..] else {
            return Err(Error::invalid("eight"));
        };
        let squares = all.iter().map(|it| it.val() * it.val());
        let loss = squares.reduce(|sum, square| sum + square).unwrap();
        let sets = ctx.gradients(&loss, (a, b, c, d, e, f, g, h))?;
        let sets = [
            sets.0, sets.1, sets.2, sets.3, sets.4, sets.5, sets.6, sets.7,
        ];
        Ok(sets.iter().map(|set| only(set).unwrap()).sum::<f32>())
    })?;
    assert_eq!(strategy.reduce(ReduceOp::Sum, sums)?, 2.0 * 72.0);
    Ok(())
}

/// One step in which the decoder follows another matrix.
fn followed(strategy: &dyn Strategy, momentum: f64, shape: [usize; 2]) -> Result<Vec<f32>> {
    let build = |device: &Device| {
        (
            Matrix::new([2, 4], 9.0, device),
            Matrix::new(shape, 1.0, device),
        )
    };
    let mut pair = strategy.scope(build)?;
    strategy.run(&mut pair, |_, pair: &mut (Matrix, Matrix)| {
        follow(&mut pair.0, &pair.1, momentum)
    })?;
    let all: Vec<_> = pair.values()?.iter().map(|pair| pair.0.values()).collect();
    assert!(
        all.iter().all(|values| *values == all[0]),
        "replicas differ"
    );
    assert!(pair.primary()?.0.weight.val().is_require_grad());
    Ok(all[0].clone())
}

#[test]
fn a_model_follows_another_by_a_moving_average() {
    let device = Device::flex().autodiff();
    let (own, other) = (
        Matrix::new([2, 4], 9.0, &device),
        Matrix::new([2, 4], 1.0, &device),
    );
    let pairs = own.values().into_iter().zip(other.values());
    let expected: Vec<f32> = pairs
        .map(|(own, other)| own * 0.75 + other * 0.25)
        .collect();
    assert_eq!(followed(&mirrored(2), 0.75, [2, 4]).unwrap(), expected);
    assert_eq!(followed(&mirrored(2), 0.0, [2, 4]).unwrap(), other.values());
    for momentum in [-0.5, 1.5, f64::NAN] {
        let error = followed(&mirrored(2), momentum, [2, 4])
            .unwrap_err()
            .to_string();
        assert!(error.contains("a number from 0 to 1"), "{error}");
    }
    let error = followed(&mirrored(2), 0.5, [4, 2]).unwrap_err().to_string();
    assert!(error.contains("differ in `weight`"), "{error}");
    // In a captured step; what the recorder computes is ones.
    let compiled = followed(&Recording::new(2), 0.5, [2, 4]).unwrap();
    assert_eq!(compiled, [1.0; 8]);
}

#[test]
fn running_statistics_follow_too_and_a_longer_model_is_refused() {
    let strategy = mirrored(2);
    let norm = |device: &Device| BatchNormConfig::new(2).init(device);
    let mut pair: Mirrored<(BatchNorm, BatchNorm)> = strategy
        .scope(|device| (norm(device), norm(device)))
        .unwrap();
    let ran = strategy.run(&mut pair, |ctx, pair: &mut (BatchNorm, BatchNorm)| {
        let input = Tensor::<2>::from_data([[1.0_f32, 2.0], [3.0, 6.0]], ctx.device());
        drop(pair.1.forward(input));
        follow(&mut pair.0, &pair.1, 0.5)
    });
    ran.unwrap();
    let (own, other) = pair.primary().unwrap();
    let means = [own, other].map(|norm| norm.running_mean.value_sync().into_data());
    let values = means.map(|data| data.iter::<f32>().collect::<Vec<_>>());
    let [own, other] = values;
    assert!(other[0] > 0.0 && other[1] > other[0], "{other:?}");
    assert_eq!(own, [other[0] / 2.0, other[1] / 2.0]);

    let device = Device::flex().autodiff();
    let matrices = |count| vec![Matrix::new([2, 2], 1.0, &device); count];
    for (own, other) in [(1, 2), (2, 1)] {
        let error = follow(&mut matrices(own), &matrices(other), 0.5).unwrap_err();
        assert!(error.to_string().contains("`1.weight`"), "{error}");
    }
}
