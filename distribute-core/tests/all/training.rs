//! One training step under every single-machine strategy: the same global batches give the same
//! weights, and failures of one replica are reported, not hung on.

use std::time::Duration;

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::InTraining;
use distribute_core::optim::Optimizer;
use distribute_core::{
    Adam, AdamW, CentralStorageStrategy, DefaultStrategy, Error, LogicalDevice, Mirrored,
    MirroredStrategy, OneDeviceStrategy, PerReplica, ReduceOp, ReductionToOneDevice,
    ReplicaContext, Sgd, Strategy, StrategyExt, TrainState,
};

const ONES: Initializer = Initializer::Constant { value: 0.1 };

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    /// Fixed weights, so that tests do not depend on burn's process-wide generator.
    fn new(device: &Device) -> Self {
        let fill = |linear: Linear, seed: f32| {
            let mut linear = linear;
            linear.weight = linear.weight.map(|weight| {
                let shape = weight.shape();
                let count = shape.num_elements();
                let values: Vec<f32> = (0..count)
                    .map(|i| ((i as f32 + seed) * 12.9898).sin() * 0.5)
                    .collect();
                Tensor::from_data(TensorData::new(values, shape), device).require_grad()
            });
            linear
        };
        Self {
            hidden: fill(
                LinearConfig::new(3, 8).with_initializer(ONES).init(device),
                1.0,
            ),
            output: fill(
                LinearConfig::new(8, 1).with_initializer(ONES).init(device),
                2.0,
            ),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(relu(self.hidden.forward(x)))
    }
}

fn rows(step: usize, global_batch: usize) -> Vec<(Vec<f32>, f32)> {
    (0..global_batch)
        .map(|i| {
            let base = (step * global_batch + i) as f32;
            let x: Vec<f32> = (0..3).map(|k| ((base + k as f32) * 78.233).sin()).collect();
            let y = x[0] * 2.0 - x[1] + 0.5 * x[2];
            (x, y)
        })
        .collect()
}

fn split(
    step: usize,
    global_batch: usize,
    strategy: &(impl Strategy + ?Sized),
) -> PerReplica<Batch> {
    let rows = rows(step, global_batch);
    let share = global_batch.div_ceil(strategy.replicas().len());
    let batches = strategy
        .replicas()
        .iter()
        .enumerate()
        .map(|(index, replica)| {
            let from = (index * share).min(rows.len());
            let part = &rows[from..(from + share).min(rows.len())];
            let x: Vec<f32> = part.iter().flat_map(|(x, _)| x.clone()).collect();
            let y: Vec<f32> = part.iter().map(|(_, y)| *y).collect();
            let x = Tensor::from_data(TensorData::new(x, [part.len(), 3]), &replica.device);
            (
                x,
                Tensor::from_data(TensorData::new(y, [part.len(), 1]), &replica.device),
            )
        });
    PerReplica::new(batches.collect())
}

type Batch = (Tensor<2>, Tensor<2>);

fn train(
    strategy: &impl Strategy,
    state: &mut Mirrored<TrainState<Mlp>>,
    steps: std::ops::Range<usize>,
) -> Vec<f32> {
    let global_batch = 12;
    steps
        .map(|step| {
            let batch = split(step, global_batch, strategy);
            let losses = strategy.run((&mut *state, batch), |ctx, (state, (x, y))| {
                let error = state.model.forward(x) - y;
                let loss = (error.clone() * error)
                    .sum()
                    .div_scalar(global_batch as f32);
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(loss)
            });
            strategy
                .reduce(ReduceOp::Sum, losses.unwrap())
                .unwrap()
                .into_scalar::<f32>()
        })
        .collect()
}

fn weights(state: &TrainState<Mlp>) -> Vec<f32> {
    let tensors = state.to_tensors().unwrap();
    let model = tensors
        .iter()
        .filter(|(name, _)| name.starts_with("model/"));
    model
        .flat_map(|(_, data)| data.iter::<f32>().collect::<Vec<_>>())
        .collect()
}

fn trained(
    strategy: &impl Strategy,
    optimizer: impl Optimizer + 'static,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), optimizer))
        .unwrap();
    let losses = train(strategy, &mut state, 0..50);
    (
        losses,
        state.values().unwrap().iter().map(weights).collect(),
    )
}

fn assert_close(a: &[f32], b: &[f32], bound: f32) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!(
            (a - b).abs() <= bound,
            "{a} and {b} differ by more than {bound}"
        );
    }
}

macro_rules! strategies_agree {
    ($name:ident, $optimizer:expr) => {
        #[test]
        fn $name() {
            let (losses, reference) = trained(&DefaultStrategy::new(), $optimizer);
            assert!(losses[49] < losses[0] * 0.5, "the model learns: {losses:?}");
            let check = |(other_losses, copies): (Vec<f32>, Vec<Vec<f32>>)| {
                assert_close(&losses, &other_losses, 1e-5);
                for copy in &copies {
                    assert_close(&reference[0], copy, 1e-5);
                    assert_eq!(&copies[0], copy, "all replicas hold the same bits");
                }
            };
            check(trained(
                &OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap(),
                $optimizer,
            ));
            for replicas in [1, 2, 3, 4] {
                let mirrored = MirroredStrategy::builder()
                    .replicas(replicas)
                    .build()
                    .unwrap();
                check(trained(&mirrored, $optimizer));
                let central = CentralStorageStrategy::with_replicas(replicas).unwrap();
                check(trained(&central, $optimizer));
            }
            let one = ReductionToOneDevice::default();
            let ops = MirroredStrategy::builder()
                .replicas(3)
                .cross_device_ops(one);
            check(trained(&ops.build().unwrap(), $optimizer));
        }
    };
}

strategies_agree!(sgd_agrees_over_strategies, Sgd::new(0.05));
strategies_agree!(
    momentum_agrees_over_strategies,
    Sgd::new(0.02).momentum(0.9)
);
strategies_agree!(nesterov_agrees, Sgd::new(0.02).momentum(0.9).nesterov(true));
strategies_agree!(adam_agrees_over_strategies, Adam::new(0.01));
strategies_agree!(adamw_agrees_over_strategies, AdamW::new(0.01));

#[test]
fn a_panic_in_one_replica_names_it_and_the_strategy_stays_usable() {
    let strategy = MirroredStrategy::builder()
        .replicas(3)
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap();
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.1)))
        .unwrap();
    let batch = split(0, 12, &strategy);
    let error = strategy
        .run((&mut state, batch), |ctx, (state, (x, _))| {
            assert!(ctx.replica_id() != 1, "no more milk");
            let loss = state.model.forward(x).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })
        .unwrap_err();
    let Error::ReplicaPanicked {
        replica: 1,
        message,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(message.contains("no more milk"));
    assert_eq!(
        train(&strategy, &mut state, 0..3).len(),
        3,
        "the next run works"
    );
}

#[test]
fn an_update_on_some_replicas_only_poisons_the_state() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.1)))
        .unwrap();
    let before = weights(state.primary().unwrap());
    let batch = split(0, 12, &strategy);
    let error = strategy.run((&mut state, batch), |ctx, (state, (x, _))| {
        if ctx.replica_id() == 1 {
            return Err(Error::step("disk on fire"));
        }
        let tensors = state.to_tensors()?;
        state.load_tensors(&tensors, 7)?;
        Ok(x.dims()[0])
    });
    assert_eq!(error.unwrap_err().to_string(), "replica 1: disk on fire");
    let batch = split(0, 12, &strategy);
    let again = strategy.run((&mut state, batch), |_, _| Ok(()));
    assert!(matches!(again, Err(Error::Poisoned { .. })), "{again:?}");
    state.resync();
    train(&strategy, &mut state, 0..2);
    assert_ne!(before, weights(state.primary().unwrap()));
}

#[test]
fn a_replica_that_skips_a_collective_is_an_error_on_all() {
    let strategy = MirroredStrategy::builder()
        .replicas(2)
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap();
    let started = std::time::Instant::now();
    let error = strategy.run((), |ctx, ()| {
        if ctx.replica_id() == 0 {
            ctx.all_reduce(ReduceOp::Sum, 1.0_f32)
        } else {
            Ok(0.0)
        }
    });
    assert!(error.is_err());
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "found at once, not at the deadline"
    );
}

#[test]
fn a_state_of_one_strategy_is_refused_by_another() {
    let first = MirroredStrategy::builder().replicas(2).build().unwrap();
    let second = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = first
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.1)))
        .unwrap();
    let error = second.run((&mut state,), |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, Error::MixedStrategies { .. }));
}

/// Of another model of the same shapes too.
#[test]
fn gradients_of_another_model_are_refused_with_the_first_that_differs() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let build = |device: &Device| TrainState::new(Mlp::new(device), Sgd::new(0.1));
    let mut state = strategy.scope(build).unwrap();
    let other = strategy.scope(Mlp::new).unwrap();
    let small = strategy.scope(|device| LinearConfig::new(1, 1).init(device));
    let small: Mirrored<Linear> = small.unwrap();
    let args = (&mut state, InTraining::new(&other), InTraining::new(&small));
    let texts = strategy.run(args, |ctx, (state, other, small)| {
        ctx.loss_is_scaled();
        let own = ctx.gradient(&squares(&state.model), &state.model)?;
        ctx.loss_is_scaled();
        let equal = ctx.gradient(&squares(other), other)?;
        let weight = small.weight.val();
        ctx.loss_is_scaled();
        let smaller = ctx.gradient(&(weight.clone() * weight).sum(), small)?;
        let text = |refused: distribute_core::Result<()>| refused.unwrap_err().to_string();
        let texts = vec![
            text(state.apply_gradients(ctx, equal.clone()).map(drop)),
            text(state.apply_gradients(ctx, smaller.clone()).map(drop)),
            text(equal.clone().into_params(&state.model).map(drop)),
            text(own.clone().accumulate(smaller)),
            text(own.clone().accumulate(equal.clone())),
        ];
        own.clone().accumulate(own.clone())?;
        state.apply_gradients(ctx, own)?;
        Ok(texts)
    });
    let texts = texts.unwrap().into_values().remove(0);
    for (text, expected) in texts.iter().zip([
        "apply_gradients: in the place of `",
        "of shape [1, 1]; compute them with `ctx.gradient(&loss, &state.model)`",
        "into_params: in the place of `",
        "accumulate: the gradients are of different models (parameter 0 is another one",
        "accumulate: the gradients are of different models (parameter 0 is another one",
    ]) {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn batches_of_two_global_sizes_have_none_in_common() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let batch = |size: usize| PerReplica::new(vec![1.0_f32, 2.0]).of_global_batch(size);
    let sizes = |other| {
        let step = |ctx: &ReplicaContext, _: (f32, f32)| ctx.global_batch_size();
        strategy.run((batch(6), batch(other)), step)
    };
    assert_eq!(sizes(6).unwrap().into_values(), [Some(6), Some(6)]);
    let error = sizes(8).unwrap_err().to_string();
    assert!(error.contains("(6 and 8)"), "{error}");
}

/// A loss.
fn squares(model: &Mlp) -> Tensor<1> {
    let weight = model.output.weight.val();
    (weight.clone() * weight).sum()
}

#[test]
fn accumulation_updates_on_the_last_micro_batch_only() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.1)).accumulate(3))
        .unwrap();
    let start = weights(state.primary().unwrap());
    train(&strategy, &mut state, 0..2);
    assert_eq!(start, weights(state.primary().unwrap()));
    train(&strategy, &mut state, 2..3);
    assert_ne!(start, weights(state.primary().unwrap()));
    assert_eq!(state.primary().unwrap().step(), 1);
}

/// Two independent parameters of one element each.
#[derive(Module, Debug)]
struct Pair {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
    third: Param<Tensor<1>>,
}

impl Pair {
    fn new(device: &Device) -> Self {
        let one = || Param::from_tensor(Tensor::from_floats([1.0], device));
        Self {
            first: one(),
            second: one(),
            third: one(),
        }
    }
}

fn value(param: &Param<Tensor<1>>) -> f32 {
    param.val().into_scalar::<f32>()
}

#[test]
fn gradients_are_clipped_to_their_global_norm_after_the_reduction() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = strategy
        .scope(|device| TrainState::new(Pair::new(device), Sgd::new(1.0)).clip_by_global_norm(1.0))
        .unwrap();
    strategy
        .run(&mut state, |ctx, state| {
            // Over both replicas the gradients are 3 and 4: a norm of 5.
            let model = &state.model;
            let loss = model.first.val() * 1.5 + model.second.val() * 2.0;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })
        .unwrap();
    for state in state.values().unwrap() {
        assert!((value(&state.model.first) - (1.0 - 0.6)).abs() < 1e-6);
        assert!((value(&state.model.second) - (1.0 - 0.8)).abs() < 1e-6);
    }
}

#[test]
fn a_parameter_that_some_replicas_do_not_use_gets_the_others_gradients() {
    for strategy in [
        Box::new(MirroredStrategy::builder().replicas(3).build().unwrap()) as Box<dyn Strategy>,
        Box::new(CentralStorageStrategy::with_replicas(3).unwrap()),
    ] {
        let mut state = strategy
            .scope(|device| TrainState::new(Pair::new(device), Adam::new(0.1)))
            .unwrap();
        strategy
            .run(&mut state, |ctx, state| {
                let model = &state.model;
                let loss = match ctx.replica_id() {
                    1 => model.first.val() * 2.0,
                    _ => model.first.val() + model.second.val(),
                };
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(())
            })
            .unwrap();
        for state in state.values().unwrap() {
            assert!((value(&state.model.first) - 0.9).abs() < 1e-5);
            assert!((value(&state.model.second) - 0.9).abs() < 1e-5);
            assert_eq!(value(&state.model.third), 1.0, "it was not used");
        }
    }
}
