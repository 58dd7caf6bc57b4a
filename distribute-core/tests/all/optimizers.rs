//! Every optimizer under strategies, and with its state on the way through a checkpoint.

use std::sync::Arc;

use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::{Module, Param, ParamGroup};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, GradientsParams,
    LambConfig, LionConfig, ModuleOptimizer, MuonConfig, OptimizerRecord, RmsPropConfig, SgdConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::checkpoint::CheckpointError;
use distribute_core::optim::{Adam, AdamW, Optimizer, burn_names, from_config, names};
use distribute_core::{
    BurnOptimizer, CentralStorageStrategy, Clip, Gradients, Mirrored, MirroredStrategy,
    OneDeviceStrategy, PerReplica, RateFactors, ReplicaContext, Strategy, StrategyExt, TrainState,
    WeightDecay,
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
            ctx.loss_is_scaled();
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
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        let error = result.unwrap_err().to_string();
        assert!(error.contains("must be a positive number"), "{error}");
    }
}

fn loss(model: &Two, step: u64, device: &Device) -> Tensor<1> {
    let wave = Tensor::<1>::from_floats([0.3, -1.2, 0.7, 0.1, -0.4], device);
    let wave = wave.mul_scalar((step + 1) as f32);
    let kernel = model.kernel.val() * wave.clone().unsqueeze::<2>();
    (kernel.clone() * kernel).sum() + (model.bias.val() * wave).sum()
}

/// A step of one replica, on its parameters.
fn once(ctx: &ReplicaContext, model: &Two, step: u64) -> distribute_core::Result<Gradients> {
    ctx.loss_is_scaled();
    ctx.gradient(&loss(model, step, ctx.device()), model)
}

/// A state of two replicas, and burn's own loop over the same model.
struct Beside {
    strategy: MirroredStrategy,
    ours: Mirrored<TrainState<Two>>,
    burns: (Two, ModuleOptimizer),
    rate: ModuleLearningRate,
}

impl Beside {
    fn new(optimizer: &BurnOptimizer, whole: ModuleOptimizer) -> Self {
        let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
        let build = |device: &Device| TrainState::new(Two::new(3, device), optimizer.clone());
        Self {
            ours: strategy.scope(build).unwrap(),
            strategy,
            burns: (Two::new(3, &Device::flex().autodiff()), whole),
            rate: 0.02.into(),
        }
    }

    fn run_ours(&mut self, step: u64) -> distribute_core::Result<()> {
        let run = self.strategy.run(&mut self.ours, |ctx, ours| {
            let gradients = once(ctx, &ours.model, step)?;
            ours.apply_gradients(ctx, gradients).map(drop)
        });
        run.map(drop)
    }

    fn run_burns(&mut self, step: u64) {
        let (model, optimizer) = &mut self.burns;
        // The sum over two replicas of the same.
        let twice = loss(model, step, &Device::flex().autodiff()).mul_scalar(2.0);
        let gradients = GradientsParams::from_grads(twice.backward(), model);
        *model = optimizer.step(self.rate.clone(), model.clone(), gradients);
    }

    #[track_caller]
    fn assert_equal(&self) {
        let (ours, burns) = (&self.ours.primary().unwrap().model, &self.burns.0);
        let bits = |model: &Two| (model.kernel.val().into_data(), model.bias.val().into_data());
        assert_eq!(bits(ours), bits(burns));
    }

    #[track_caller]
    fn run(mut self, steps: u64) -> Self {
        for step in 0..steps {
            self.run_ours(step).unwrap();
            self.run_burns(step);
            self.assert_equal();
        }
        self
    }
}

/// burn's own loop over the model gives the same bits.
#[test]
fn a_rule_of_burn_is_what_burn_makes_of_it() {
    let clips = [
        None,
        Some(GradientClippingConfig::Value(0.4)),
        Some(GradientClippingConfig::Norm(0.7)),
    ];
    for clip in clips {
        macro_rules! compare {
            ($($config:expr),*) => {$(
                let config = $config.with_grad_clipping(clip.clone());
                Beside::new(&BurnOptimizer::new(&config, 0.02), config.init()).run(5);
            )*};
        }
        compare!(
            AdafactorConfig::new(),
            AdaGradConfig::new(),
            AdamConfig::new().with_amsgrad(true),
            AdamWConfig::new().with_weight_decay(0.1),
            AdanConfig::new(),
            LambConfig::new(),
            LionConfig::new(),
            RmsPropConfig::new().with_centered(true)
        );
        let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        let sgd = sgd.with_gradient_clipping(clip);
        Beside::new(&BurnOptimizer::new(&sgd, 0.02), sgd.init()).run(5);
    }
}

/// Muon for one parameter, and AdamW with another rate for the rest.
fn groups() -> (BurnOptimizer, ModuleOptimizer, ModuleLearningRate) {
    let kernel = || ParamGroup::from_path("kernel");
    let bias = || ParamGroup::from_predicate("bias");
    let clip = Some(GradientClippingConfig::Norm(0.5));
    let adam = AdamWConfig::new().with_grad_clipping(clip);
    let muon = MuonConfig::new();
    let ours = BurnOptimizer::new(&adam, 0.02)
        .group(kernel(), &muon)
        .rate_factor(bias(), 4.0);
    let burns = adam.init().with_group(kernel(), muon.build(), None);
    let rates = ModuleLrScheduler::new(0.02).with_group(bias(), 0.08).step();
    (ours, burns, rates)
}

#[test]
fn groups_of_parameters_have_their_own_rules_and_rates() {
    let (ours, burns, rates) = groups();
    let mut beside = Beside::new(&ours, burns);
    beside.rate = rates;
    let mut beside = beside.run(4);
    // A checkpoint has the record of each parameter, and goes on.
    let state = beside.ours.primary().unwrap();
    let (tensors, step) = (state.to_tensors().unwrap(), state.step());
    assert!(tensors.contains_key("optimizer_record/momentum.velocity/kernel"));
    assert!(tensors.contains_key("optimizer_record/momentum.moment_2/bias"));
    let build = |device: &Device| TrainState::new(Two::new(9, device), ours.clone());
    let mut restored = beside.strategy.scope(build).unwrap();
    restored
        .update(|state| state.load_tensors(&tensors, step))
        .unwrap();
    beside.ours = restored;
    beside.run(3);
}

#[test]
fn a_group_without_parameters_is_an_error_of_the_first_update() {
    let ids = ParamGroup::ids_from_module(Two::new(3, &Device::flex().autodiff()));
    for group in [ParamGroup::from_path("kernels"), ids] {
        let ours = BurnOptimizer::new(AdamWConfig::new(), 0.02);
        for ours in [
            ours.clone().group(group.clone(), SgdConfig::new()),
            ours.rate_factor(group.clone(), 2.0),
        ] {
            let error = Beside::new(&ours, SgdConfig::new().init()).run_ours(0);
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains("parameters of the model (kernel, bias): give it by paths"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_record_of_burn_goes_on_exactly() {
    let (ours, burns, rates) = groups();
    let mut beside = Beside::new(&ours, burns);
    beside.rate = rates;
    for step in 0..3 {
        beside.run_burns(step);
    }
    let (model, optimizer) = &beside.burns;
    let take_over = |optimizer: &BurnOptimizer, record| {
        TrainState::new(model.clone(), optimizer.clone()).with_burn_record(record)
    };
    // On the way through a file.
    let bytes = optimizer.to_record().into_bytes().unwrap();
    let record = OptimizerRecord::from_bytes(bytes).unwrap();
    let state = beside.strategy.try_scope(|_| take_over(&ours, record));
    beside.ours = state.unwrap();
    let beside = beside.run(3);

    let (model, optimizer) = &beside.burns;
    let adam = BurnOptimizer::new(AdamConfig::new(), 0.02);
    let refused =
        TrainState::new(model.clone(), adam).with_burn_record(SgdConfig::new().init().to_record());
    let error = refused.err().unwrap().to_string();
    assert!(
        error.contains("has nothing that the optimizer burn:adam keeps"),
        "{error}"
    );
    let keras = TrainState::with_optimizer(model.clone(), from_config("adam", &json!({})).unwrap());
    let error = keras
        .with_burn_record(optimizer.to_record())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("use a `BurnOptimizer`"), "{error}");
}

/// Muon alone takes no vectors; what burn says of it is the error of the step.
#[test]
fn a_rule_that_does_not_fit_a_parameter_is_an_error() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let muon = BurnOptimizer::new(MuonConfig::new(), 0.02);
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

/// Weights after five updates of two replicas.
fn after(optimizer: impl Optimizer + 'static) -> distribute_core::Result<[TensorData; 2]> {
    let strategy = MirroredStrategy::builder().replicas(2).build()?;
    let mut state = strategy.scope(|device| TrainState::new(Two::new(5, device), optimizer))?;
    for step in 0..5 {
        strategy.run(&mut state, |ctx, state| {
            let gradients = once(ctx, &state.model, step)?;
            state.apply_gradients(ctx, gradients).map(drop)
        })?;
    }
    let model = &state.primary()?.model;
    Ok([model.kernel.val().into_data(), model.bias.val().into_data()])
}

/// The loss is a sum over the parameters, so each is trained as if it were alone.
#[test]
fn a_group_has_the_weights_of_its_own_rate() {
    let [kernel, bias] = [0.02, 0.08].map(|rate| after(AdamW::new(rate)).unwrap());
    let factors = RateFactors::of(AdamW::new(0.02));
    let own = factors.clone().factor(["bias"], 4.0);
    assert_eq!(
        after(own.clone()).unwrap(),
        [kernel[0].clone(), bias[1].clone()]
    );
    // The last group of a parameter counts.
    let twice = factors
        .factor(["bias", "kernel"], 9.0)
        .factor(["kernel"], 1.0);
    let twice = twice.factor(["bias"], 4.0);
    assert_eq!(after(twice).unwrap(), after(own).unwrap());
}

#[test]
fn weight_decay_is_of_the_rate_that_it_is_around_or_in() {
    let adam = || Adam::new(0.02);
    let inside = || RateFactors::of(WeightDecay::of(adam(), 0.3)).factor(["kernel"], 0.5);
    let outside = || WeightDecay::of(RateFactors::of(adam()).factor(["kernel"], 0.5), 0.3);
    assert_ne!(after(inside()).unwrap()[0], after(outside()).unwrap()[0]);
    let again = |optimizer: &dyn Optimizer| {
        let again = from_config(optimizer.name(), &optimizer.config()).unwrap();
        assert_eq!(again.config(), optimizer.config());
        after(again).unwrap()
    };
    assert_eq!(again(&inside()), after(inside()).unwrap());
    assert_eq!(again(&outside()), after(outside()).unwrap());
}

#[test]
fn a_rate_of_no_parameter_and_one_that_is_no_number_are_errors_of_the_first_update() {
    let adam = || RateFactors::of(Adam::new(0.02));
    let error = |optimizer: RateFactors<Adam>| after(optimizer).unwrap_err().to_string();
    let none = error(adam().factor(["bias"], 2.0).factor(["gamma"], 2.0));
    assert!(
        none.contains("kernel, bias") && none.contains("gamma"),
        "{none}"
    );
    let around = RateFactors::of(adam().factor(["bias"], 2.0)).factor(["kernel"], 2.0);
    let around = after(around).unwrap_err().to_string();
    assert!(around.contains("to one `RateFactors`"), "{around}");
    for factor in [f64::NAN, -1.0, f64::INFINITY] {
        let wrong = error(adam().factor(["bias"], factor));
        assert!(wrong.contains("of the learning rate of"), "{wrong}");
    }
}
