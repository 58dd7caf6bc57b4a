//! Every optimizer under strategies, and with its state on the way through a checkpoint.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::optim::{AdafactorConfig, AdanConfig, ModuleOptimizer, MuonConfig, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::checkpoint::CheckpointError;
use distribute_core::optim::{Optimizer, burn_names, from_config, names};
use distribute_core::{
    BurnOptimizer, BurnTrainState, CentralStorageStrategy, Clip, Gradients, Mirrored,
    MirroredStrategy, OneDeviceStrategy, PerReplica, ReplicaContext, Strategy, StrategyExt,
    TrainState,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

/// Parameters of two shapes.
#[derive(Module, Debug)]
struct Two {
    kernel: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

const KERNEL: [usize; 2] = [3, 5];
const BIAS: usize = 5;

fn random(rng: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-1.5..1.5)).collect()
}

impl Two {
    fn new(seed: u64, device: &Device) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let kernel = TensorData::new(random(&mut rng, KERNEL[0] * KERNEL[1]), KERNEL);
        let bias = TensorData::new(random(&mut rng, BIAS), [BIAS]);
        Self {
            kernel: Param::from_tensor(Tensor::from_data(kernel, device).require_grad()),
            bias: Param::from_tensor(Tensor::from_data(bias, device).require_grad()),
        }
    }
}

/// An optimizer with all that can be around it.
fn optimizer(name: &str) -> Arc<dyn Optimizer> {
    let config = json!({
        "learning_rate": 0.05,
        "weight_decay": 0.02,
        "exclude_from_weight_decay": ["bias"],
        "use_ema": true,
        "ema_momentum": 0.75,
        "ema_overwrite_frequency": 3,
    });
    from_config(name, &config).unwrap()
}

fn state(strategy: &impl Strategy, name: &str) -> Mirrored<TrainState<Two>> {
    let state = strategy.scope(|device| {
        TrainState::with_optimizer(Two::new(7, device), optimizer(name)).clip(Clip::Norm(2.0))
    });
    state.unwrap()
}

/// Updates with gradients that add up to the same over any number of replicas: the shares are
/// dyadic.
fn train(
    strategy: &impl Strategy,
    state: &mut Mirrored<TrainState<Two>>,
    steps: std::ops::Range<u64>,
) {
    let replicas = strategy.num_replicas_in_sync();
    for step in steps {
        let mut rng = ChaCha8Rng::seed_from_u64(100 + step);
        let kernel = random(&mut rng, KERNEL[0] * KERNEL[1]);
        let bias = random(&mut rng, BIAS);
        let share = 1.0 / replicas as f32;
        let all = PerReplica::new(vec![share; replicas]);
        let result = strategy.run((&mut *state, all), |ctx, (state, share)| {
            let given = |values: &[f32], shape: &[usize]| {
                let data = TensorData::new(values.to_vec(), shape.to_vec());
                Tensor::<1>::from_data(data, ctx.device()).mul_scalar(share)
            };
            let kernel = given(&kernel, &[kernel.len()]).reshape(KERNEL);
            let bias = given(&bias, &[BIAS]);
            let loss =
                (state.model.kernel.val() * kernel).sum() + (state.model.bias.val() * bias).sum();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        result.unwrap();
    }
}

fn all_names() -> Vec<&'static str> {
    names().chain(burn_names()).collect()
}

/// The same after 7 updates in one go and with a checkpoint after 4, on other replicas.
#[test]
fn a_run_that_goes_on_from_a_checkpoint_ends_with_the_same_bits() {
    for name in all_names() {
        let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
        let mut whole = state(&strategy, name);
        train(&strategy, &mut whole, 0..7);
        let mut first = state(&strategy, name);
        train(&strategy, &mut first, 0..4);
        let (step, tensors) = first.primary().unwrap().save().unwrap();
        for slot in optimizer(name).slots() {
            let slot = format!("optimizer/{slot}/kernel");
            assert!(tensors.contains_key(&slot), "{name}: {slot}");
        }
        let records = tensors
            .keys()
            .filter(|it| it.starts_with("optimizer_record/"));
        let is_kept = name.starts_with("burn:") && name != "burn:sgd";
        assert_eq!(records.count() > 0, is_kept, "{name}: {:?}", tensors.keys());
        let mut second = state(&strategy, name);
        second
            .update(|state| state.load_tensors(&tensors, step))
            .unwrap();
        train(&strategy, &mut second, 4..7);
        for (whole, second) in whole.values().unwrap().iter().zip(second.values().unwrap()) {
            let (whole, second) = (whole.to_tensors().unwrap(), second.to_tensors().unwrap());
            assert_eq!(whole, second, "{name}");
        }
    }
}

/// One copy that one replica updates, and copies on any number of replicas.
#[test]
fn every_strategy_gives_the_same() {
    for name in all_names() {
        let one = OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap();
        let mut alone = state(&one, name);
        train(&one, &mut alone, 0..6);
        let wanted = alone.primary().unwrap().to_tensors().unwrap();
        let compare = |found: &Mirrored<TrainState<Two>>| {
            for state in found.values().unwrap() {
                for (path, data) in state.to_tensors().unwrap() {
                    let close = data.iter::<f64>().zip(wanted[&path].iter::<f64>());
                    for (found, wanted) in close {
                        assert!((found - wanted).abs() < 1e-5, "{name}: {path}");
                    }
                }
            }
        };
        for replicas in [2, 4] {
            let strategy = MirroredStrategy::builder().replicas(replicas);
            let strategy = strategy.build().unwrap();
            let mut mirrored = state(&strategy, name);
            train(&strategy, &mut mirrored, 0..6);
            compare(&mirrored);
        }
        let strategy = CentralStorageStrategy::with_replicas(2).unwrap();
        let mut central = state(&strategy, name);
        train(&strategy, &mut central, 0..6);
        compare(&central);
    }
}

#[test]
fn averages_take_the_place_of_the_weights() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut averaged = state(&strategy, "adam");
    train(&strategy, &mut averaged, 0..2);
    let before = averaged.primary().unwrap().to_tensors().unwrap();
    assert!(averaged.primary().unwrap().has_averages());
    averaged.update(TrainState::apply_averages).unwrap();
    for state in averaged.values().unwrap() {
        let after = state.to_tensors().unwrap();
        let values = |data: &TensorData| data.iter::<f32>().collect::<Vec<_>>();
        for path in ["kernel", "bias"] {
            let (weights, average) = (format!("model/{path}"), format!("optimizer/average/{path}"));
            assert_eq!(values(&after[&weights]), values(&before[&average]));
            assert_ne!(values(&after[&weights]), values(&before[&weights]));
            assert_eq!(after[&average], before[&average]);
        }
    }
    let plain = strategy.scope(|device| {
        TrainState::with_optimizer(Two::new(7, device), from_config("sgd", &json!({})).unwrap())
    });
    let error = plain.unwrap().update(TrainState::apply_averages);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("sgd keeps no moving averages"), "{error}");
}

#[test]
fn clipping_needs_a_positive_number() {
    for clip in [
        Clip::Norm(0.0),
        Clip::Value(f64::NAN),
        Clip::GlobalNorm(-1.0),
    ] {
        let strategy = OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap();
        let state = strategy.scope(|device| {
            TrainState::with_optimizer(Two::new(7, device), optimizer("sgd")).clip(clip)
        });
        let result = strategy.run(&mut state.unwrap(), |ctx, state| {
            let loss = state.model.bias.val().sum();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        let error = result.unwrap_err().to_string();
        assert!(error.contains("must be a positive number"), "{error}");
    }
}

/// A step of one replica, on its parameters.
fn once(ctx: &ReplicaContext, model: &Two, step: u64) -> distribute_core::Result<Gradients> {
    let wave = ctx.device();
    let wave =
        Tensor::<1>::from_floats([0.3, -1.2, 0.7, 0.1, -0.4], wave).mul_scalar((step + 1) as f32);
    let kernel = model.kernel.val() * wave.clone().unsqueeze::<2>();
    let loss = (kernel.clone() * kernel).sum() + (model.bias.val() * wave).sum();
    ctx.gradient(&loss, model)
}

/// burn's own loop over the model gives the same bits.
#[test]
fn a_rule_of_burn_is_what_burn_makes_of_it() {
    fn compare(optimizer: BurnOptimizer, whole: ModuleOptimizer) {
        let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
        let build = |device: &Device| TrainState::new(Two::new(3, device), optimizer.clone());
        let mut ours = strategy.scope(build).unwrap();
        let build = |device: &Device| BurnTrainState::new(Two::new(3, device), whole.clone(), 0.02);
        let mut burns = strategy.scope(build).unwrap();
        for step in 0..5 {
            let run = strategy.run((&mut ours, &mut burns), |ctx, (ours, burns)| {
                let gradients = once(ctx, &ours.model, step)?;
                ours.apply_gradients(ctx, gradients)?;
                let gradients = once(ctx, &burns.model, step)?;
                burns.apply_gradients(ctx, gradients)
            });
            run.unwrap();
        }
        let (ours, burns) = (
            &ours.primary().unwrap().model,
            &burns.primary().unwrap().model,
        );
        assert_eq!(
            ours.kernel.val().into_data(),
            burns.kernel.val().into_data()
        );
        assert_eq!(ours.bias.val().into_data(), burns.bias.val().into_data());
    }
    let (sgd, adan, adafactor) = (SgdConfig::new(), AdanConfig::new(), AdafactorConfig::new());
    compare(BurnOptimizer::new("sgd", sgd.build(), 0.02), sgd.init());
    compare(BurnOptimizer::new("adan", adan.build(), 0.02), adan.init());
    compare(
        BurnOptimizer::new("adafactor", adafactor.build(), 0.02),
        adafactor.init(),
    );
}

/// Muon alone takes no vectors; what burn says of it is the error of the step.
#[test]
fn a_rule_that_does_not_fit_a_parameter_is_an_error() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let muon = BurnOptimizer::new("muon", MuonConfig::new().build(), 0.02);
    let build = |device: &Device| TrainState::new(Two::new(3, device), muon.clone());
    let mut state = strategy.scope(build).unwrap();
    let result = strategy.run(&mut state, |ctx, state| {
        let gradients = once(ctx, &state.model, 0)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("requires 2D tensors, got 1D"), "{error}");
}

#[test]
fn what_an_optimizer_of_burn_keeps_is_refused_by_others() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut trained = state(&strategy, "burn:adam");
    train(&strategy, &mut trained, 0..2);
    let (step, tensors) = trained.primary().unwrap().save().unwrap();
    for name in ["adam", "sgd"] {
        let mut other = state(&strategy, name);
        let error = other.update(|state| state.load_tensors(&tensors, step));
        let error = error.unwrap_err();
        let cause = error.root_cause().wrapped();
        let cause = cause.and_then(|it| it.downcast_ref::<CheckpointError>());
        let wrong = matches!(cause, Some(CheckpointError::WrongOptimizer { .. }));
        assert!(wrong, "{name}: {error}");
    }
}

#[test]
fn a_record_that_is_not_whole_is_refused() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut trained = state(&strategy, "burn:adan");
    train(&strategy, &mut trained, 0..2);
    let (step, mut tensors) = trained.primary().unwrap().save().unwrap();
    let time = "optimizer_record/momentum.time/kernel";
    assert_eq!(tensors.remove(time), Some(TensorData::from([2_i64])));
    let error = trained.update(|state| state.load_tensors(&tensors, step));
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("burn:adan for the parameter `kernel` is not whole"),
        "{error}"
    );
    // Without any it begins anew.
    tensors.retain(|name, _| !name.starts_with("optimizer_record/"));
    trained
        .update(|state| state.load_tensors(&tensors, step))
        .unwrap();
    train(&strategy, &mut trained, 2..3);
    let tensors = trained.primary().unwrap().to_tensors().unwrap();
    assert_eq!(tensors[time], TensorData::from([1_i64]));
}
