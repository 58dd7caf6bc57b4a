//! burn's own random layers: what a replica draws follows from a seed, the step and its id.
//!
//! burn's generator is one per process, so these tests run alone in one: each starts itself again.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use distribute_core::{
    MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy, PerReplica, ReduceOp, Result,
    Sgd, Strategy, StrategyExt, TrainState,
};
use hostile::alone::is_alone;

use crate::mirrored;
use crate::multi_worker::group::{SHARED_MEMORY, THREADS, workers};
use crate::sync_batch_norm::linear;

/// Runs a test of this module in a process of its own.
fn alone(name: &str, test: impl FnOnce()) {
    if is_alone(module_path!(), name) {
        test();
    }
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    dropout: Dropout,
    last: Linear,
}

fn without_bias(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let bias = None;
    Linear {
        bias,
        ..linear(inputs, outputs, 0.5, device)
    }
}

fn state(device: &Device, rate: f64) -> TrainState<Net> {
    let net = Net {
        first: without_bias(3, 16, device),
        dropout: DropoutConfig::new(rate).init(),
        last: without_bias(16, 1, device),
    };
    TrainState::new(net, Sgd::new(0.05))
}

/// The masks of a replica in some steps, and the bits of its weights after them.
type Seen = (Vec<Vec<bool>>, Vec<u32>);

/// What each local replica has seen. In every step it draws before and after it waits for others.
fn train(
    strategy: &(impl Strategy + ?Sized),
    steps: std::ops::Range<usize>,
    options: fn(TrainState<Net>) -> TrainState<Net>,
) -> Result<Vec<Seen>> {
    let mut state = strategy.scope(|device| options(state(device, 0.5)))?;
    let mut masks = vec![Vec::new(); strategy.replicas().len()];
    for step in 0..steps.end {
        let replicas = strategy.replicas().iter();
        let batch = PerReplica::new(replicas.map(|it| (it.id + step) as f64).collect());
        let drawn = strategy.run((&mut state, batch), |ctx, (state, offset)| {
            let x = Tensor::<2>::full([4, 3], offset, ctx.device()) * 0.1 + 1.0;
            let hidden = state.model.dropout.forward(state.model.first.forward(x));
            let mut mask: Vec<_> = kept(hidden.clone());
            let loss = state.model.last.forward(hidden).mean();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            ctx.all_reduce(ReduceOp::Sum, 1_i64)?;
            let noise = Tensor::<1>::random([8], Distribution::Default, ctx.device());
            mask.extend(kept(noise.lower_elem(0.5).float()));
            state.apply_gradients(ctx, gradients)?;
            let ones = Tensor::<1>::ones([8], ctx.device());
            mask.extend(kept(state.model.dropout.forward(ones)));
            Ok(mask.into_iter().map(i64::from).collect::<Vec<_>>())
        })?;
        for (masks, drawn) in masks.iter_mut().zip(drawn.into_values()) {
            masks.push(drawn.into_iter().map(|kept| kept == 1).collect());
        }
    }
    let weights = strategy.run(&mut state, |_, state| {
        let weights = state.model.first.weight.val().into_data();
        Ok(weights
            .iter::<f32>()
            .map(|it| i64::from(it.to_bits()))
            .collect::<Vec<_>>())
    })?;
    let bits = |weights: Vec<i64>| weights.into_iter().map(|it| it as u32).collect();
    let all = masks.into_iter().zip(weights.into_values());
    Ok(all.map(|(masks, weights)| (masks, bits(weights))).collect())
}

fn kept<const D: usize>(tensor: Tensor<D>) -> Vec<bool> {
    tensor
        .into_data()
        .iter::<f32>()
        .map(|value| value != 0.0)
        .collect()
}

#[test]
fn two_runs_draw_the_same_and_replicas_differ() {
    alone("two_runs_draw_the_same_and_replicas_differ", || {
        for (replicas, cores) in [(2, 2), (4, 2), (3, 1)] {
            let strategy = MirroredStrategy::builder().replicas(replicas).cores(cores);
            let strategy = strategy.build().unwrap();
            let first = train(&strategy, 0..5, |state| state).unwrap();
            for _ in 0..5 {
                Device::flex().seed(1);
                assert_eq!(train(&strategy, 0..5, |state| state).unwrap(), first);
            }
            let mut masks: Vec<_> = first.iter().flat_map(|(masks, _)| masks.clone()).collect();
            masks.sort_unstable();
            masks.dedup();
            assert_eq!(
                masks.len(),
                replicas * 5,
                "of each replica and step its own"
            );
            let other = train(&strategy, 0..5, |state| state.random_seed(7)).unwrap();
            assert_ne!(other, first);
        }
    });
}

#[test]
fn masks_follow_the_replica_and_not_its_worker() {
    alone("masks_follow_the_replica_and_not_its_worker", || {
        let here = train(&mirrored(4), 0..4, |state| state).unwrap();
        let layouts: [&[usize]; 3] = [&[2, 2], &[1, 1, 1, 1], &[3, 1]];
        for (between, layout) in [THREADS, SHARED_MEMORY]
            .into_iter()
            .flat_map(|between| layouts.map(|layout| (between, layout)))
        {
            let program =
                |strategy: MultiWorkerMirroredStrategy| train(&strategy, 0..4, |state| state);
            let all = workers(between, layout, program);
            assert_eq!(all.concat(), here, "{layout:?}");
        }
    });
}

#[test]
fn a_step_draws_the_same_after_a_resume() {
    alone("a_step_draws_the_same_after_a_resume", || {
        let strategy = mirrored(2);
        let masks = |updates: u64| {
            let mut state = strategy.scope(|device| state(device, 0.5)).unwrap();
            let mut all = Vec::new();
            for _ in 0..updates {
                let drawn = strategy.run(&mut state, |ctx, state| {
                    let ones = Tensor::<1>::ones([32], ctx.device());
                    let mask = kept(state.model.dropout.forward(ones));
                    let loss = state.model.first.weight.val().sum();
                    ctx.loss_is_scaled();
                    let gradients = ctx.gradient(&loss.unsqueeze(), &state.model)?;
                    state.apply_gradients(ctx, gradients)?;
                    Ok(mask.into_iter().map(i64::from).collect::<Vec<_>>())
                });
                all.push(drawn.unwrap().into_values());
            }
            all
        };
        let whole = masks(6);
        assert_eq!(masks(3), whole[..3]);
        assert_ne!(whole[2], whole[3]);
    });
}

#[test]
fn one_replica_has_burns_own_numbers_unless_it_has_a_seed() {
    alone(
        "one_replica_has_burns_own_numbers_unless_it_has_a_seed",
        || {
            let strategy = OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap();
            let draw = |seed: u64, options: fn(TrainState<Net>) -> TrainState<Net>| {
                let mut state = strategy
                    .scope(|device| options(state(device, 0.5)))
                    .unwrap();
                Device::flex().seed(seed);
                let drawn = strategy.run(&mut state, |ctx, state| {
                    let ones = Tensor::<1>::ones([64], ctx.device());
                    Ok(state
                        .model
                        .dropout
                        .forward(ones)
                        .into_data()
                        .iter::<f32>()
                        .collect::<Vec<f32>>())
                });
                drawn.unwrap().into_values().pop().unwrap()
            };
            let burns = |seed: u64| {
                let device = Device::flex().autodiff();
                device.seed(seed);
                let ones = Tensor::<1>::ones([64], &device);
                let dropout = DropoutConfig::new(0.5).init();
                dropout
                    .forward(ones)
                    .into_data()
                    .iter::<f32>()
                    .collect::<Vec<f32>>()
            };
            assert_eq!(draw(5, |state| state), burns(5));
            assert_ne!(draw(5, |state| state), draw(6, |state| state));
            let own = |state: TrainState<Net>| state.random_seed(1);
            assert_eq!(draw(5, own), draw(6, own));
        },
    );
}

#[test]
fn a_step_without_a_state_draws_by_the_seed_of_its_context() {
    alone(
        "a_step_without_a_state_draws_by_the_seed_of_its_context",
        || {
            let draw = || {
                let drawn = mirrored(3).run((), |ctx, ()| {
                    ctx.seed(3, 1);
                    let values = Tensor::<1>::random([8], Distribution::Default, ctx.device());
                    Ok(values.into_data().iter::<f32>().collect::<Vec<_>>())
                });
                drawn.unwrap().into_values()
            };
            let first = draw();
            assert!((0..5).all(|_| draw() == first));
            assert!(first[0] != first[1] && first[1] != first[2]);
        },
    );
}

/// Its fields are in another order than their use.
#[derive(Module, Debug)]
struct Reversed {
    last: Linear,
    dropout: Dropout,
    first: Linear,
}

impl Reversed {
    fn new(device: &Device) -> Self {
        Self {
            last: LinearConfig::new(5, 2).init(device),
            dropout: DropoutConfig::new(0.5).init(),
            first: LinearConfig::new(3, 5).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.dropout.forward(self.first.forward(x));
        self.last.forward(hidden)
    }

    fn weights(&self) -> Vec<f32> {
        let weights = [&self.first, &self.last].map(|layer| layer.weight.val().into_data());
        weights.iter().flat_map(TensorData::iter::<f32>).collect()
    }
}

#[test]
fn a_forward_pass_in_the_scope_makes_burns_weights() {
    alone("a_forward_pass_in_the_scope_makes_burns_weights", || {
        let device = Device::flex().autodiff();
        device.seed(42);
        let of_burn = Reversed::new(&device);
        let _ = of_burn.forward(Tensor::ones([4, 3], &device));
        let of_scope = |uses_first: bool| {
            let state = mirrored(2).scope(|device| {
                device.seed(42);
                let model = Reversed::new(device);
                if uses_first {
                    let _ = model.forward(Tensor::zeros([4, 3], device));
                }
                TrainState::new(model, Sgd::new(0.1))
            });
            state.unwrap().primary().unwrap().model.weights()
        };
        assert_eq!(of_scope(true), of_burn.weights());
        assert_ne!(
            of_scope(false),
            of_burn.weights(),
            "in the order of the fields"
        );
    });
}
