//! A state that a step is lent with `&` is in evaluation mode: burn's `valid()`, bit by bit,
//! without autodiff, and its statistics stay.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use distribute_core::{
    CentralStorageStrategy, Error, InTraining, LocalBatchNorm, LogicalDevice, Mirrored,
    MirroredStrategy, Nest, NestWith, OneDeviceStrategy, PerReplica, ReduceOp, ReplicaContext,
    Replicated, Result, Sgd, Strategy, StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState,
};

use crate::multi_worker::group::{THREADS, workers};
use crate::trace::support::{Recording, batch};

#[derive(Module, Debug)]
struct Net {
    burns: BatchNorm,
    local: LocalBatchNorm,
    all: SyncBatchNorm,
    drop: Dropout,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Result<TrainState<Self>> {
        device.seed(3);
        let net = Self {
            burns: BatchNormConfig::new(4).init(device),
            local: BatchNormConfig::new(4).init(device).into(),
            all: SyncBatchNormConfig::new(4).init(device)?,
            drop: DropoutConfig::new(0.5).init(),
            output: LinearConfig::new(4, 2).init(device),
        };
        Ok(TrainState::new(net, Sgd::new(0.05)))
    }

    fn normalized(&self, x: Tensor<2>) -> Result<Tensor<2>> {
        self.local.forward(self.burns.forward(x))
    }

    fn evaluated(&self, x: Tensor<2>) -> Result<Tensor<2>> {
        let x = self.all.forward_inference(self.normalized(x)?)?;
        Ok(self.output.forward(self.drop.forward(x)))
    }
}

fn parts(strategy: &impl Strategy, salt: usize) -> PerReplica<Tensor<2>> {
    let parts = strategy.replicas().iter().map(|replica| {
        let number = |i: usize| ((i + salt * 91 + replica.id * 17) as f32).sin() * 3.0;
        let data = TensorData::new((0..24).map(number).collect::<Vec<f32>>(), [6, 4]);
        Tensor::from_data(data, &replica.device)
    });
    PerReplica::new(parts.collect())
}

fn bits(tensors: impl IntoIterator<Item = Tensor<2>>) -> Vec<u32> {
    let values = tensors.into_iter().map(Tensor::into_data);
    let values = values.flat_map(|data| data.iter::<f32>().collect::<Vec<_>>());
    values.map(f32::to_bits).collect()
}

fn statistics(state: &Mirrored<TrainState<Net>>) -> Vec<u32> {
    let model = &state.primary().unwrap().model;
    let running = [
        model.burns.running_var.value_sync(),
        model.burns.running_mean.value_sync(),
        model.local.running_var.value_sync(),
        model.all.moving_variance.value_sync(),
    ];
    bits(running.map(|tensor| tensor.inner().unsqueeze::<2>()))
}

/// Trains, evaluates thrice with other data, and trains on.
fn check(strategy: &impl Strategy) -> Result<()> {
    let mut state = strategy.try_scope(Net::new)?;
    let mut before = statistics(&state);
    for step in 0..3 {
        strategy.run((&mut state, parts(strategy, step)), |ctx, (state, x)| {
            let x = state.model.all.forward(state.model.normalized(x)?);
            let outputs = state.model.output.forward(state.model.drop.forward(x));
            let loss = ctx.mean_loss(outputs.powi_scalar(2).mean())?;
            state.minimize(ctx, &loss)
        })?;
        let after = statistics(&state);
        assert_ne!(after, before, "`&mut` trains");
        before = after;

        let given = parts(strategy, 50 + step);
        let model = state.primary()?.model.valid();
        let expected = given.clone().into_values().into_iter();
        let expected: Result<Vec<_>> = expected.map(|x| model.evaluated(x.inner())).collect();
        let expected = bits(expected?);
        for _ in 0..3 {
            let found = strategy.run((&state, given.clone()), |ctx, (state, x)| {
                assert!(!state.model.output.weight.val().device().is_autodiff());
                assert!(!state.model.output.weight.is_require_grad());
                let outputs = state.model.evaluated(x)?;
                let error = ctx.gradient(&outputs.clone().sum(), &state.model);
                let text = error.unwrap_err().to_string();
                assert!(
                    text.contains("InTraining::new(&state)"),
                    "there is no graph: {text}"
                );
                Ok(outputs)
            })?;
            assert_eq!(bits(found.into_values()), expected);
            assert_eq!(statistics(&state), before);
        }

        let found = strategy.run((InTraining::new(&state), given), |ctx, (state, x)| {
            let outputs = state.model.output.forward(state.model.normalized(x)?);
            assert!(ctx.gradient(&outputs.clone().sum(), &state.model).is_ok());
            Ok(outputs)
        })?;
        assert_ne!(bits(found.into_values()), expected);
        assert_eq!(statistics(&state), before);
    }
    Ok(())
}

#[test]
fn a_shared_state_is_in_evaluation_mode_under_every_strategy() {
    for replicas in [1, 2] {
        let mirrored = MirroredStrategy::builder().replicas(replicas).build();
        check(&mirrored.unwrap()).unwrap();
    }
    check(&OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap()).unwrap();
    check(&CentralStorageStrategy::with_replicas(2).unwrap()).unwrap();
    workers(THREADS, &[1, 2], |strategy| check(&strategy));
}

#[test]
fn a_learning_rate_and_an_update_are_seen_by_the_next_evaluation() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = strategy.try_scope(Net::new).unwrap();
    let read = |state: &Mirrored<TrainState<Net>>| {
        let found = strategy.run(state, |_, state| {
            Ok((state.learning_rate(), state.model.output.weight.val()))
        });
        let (rate, weight) = found.unwrap().into_values().swap_remove(1);
        (rate, bits([weight]))
    };
    let (rate, weight) = read(&state);
    assert_eq!(rate, 0.05);
    state.set_learning_rate(0.5);
    assert_eq!(read(&state), (0.5, weight.clone()));
    let zeroed = state.update(|state| {
        let weight = state.model.output.weight.clone();
        state.model.output.weight = weight.map(|weight| weight.zeros_like().require_grad());
        Ok(())
    });
    zeroed.unwrap();
    let (_, found) = read(&state);
    assert!(found.iter().all(|bits| *bits == 0) && found != weight);
}

/// A captured step has no autodiff either, and its dropout is no part of the program.
#[test]
fn a_captured_step_is_lent_a_model_in_evaluation_mode() {
    let strategy = Recording::new(2);
    let state = strategy.try_scope(Net::new).unwrap();
    let ran = strategy.run((&state, batch(2, 2)), |_, (state, (x, _))| {
        assert!(!state.model.output.weight.is_require_grad());
        let normalized = state.model.normalized(x)?;
        state.model.all.forward_inference(normalized)
    });
    ran.unwrap();
    assert_eq!(strategy.last().outputs.len(), 1, "the result alone");
}

/// A type of another crate.
#[derive(Debug, Clone)]
struct Foreign {
    x: Tensor<1>,
}

/// A batch with tensors of all kinds, nested.
#[derive(Debug, Clone, Nest)]
struct Mixed {
    x: Tensor<2>,
    labels: Vec<Tensor<1, Int>>,
    mask: Option<Tensor<2, Bool>>,
    foreign: NestWith<Foreign>,
    names: Vec<String>,
    /// Too large to travel: it cannot be walked.
    last: u64,
}

impl Mixed {
    fn new(device: &Device, last: u64) -> Self {
        let x = Tensor::ones([3, 4], device);
        let foreign = Foreign {
            x: Tensor::ones([2], device),
        };
        Self {
            labels: vec![Tensor::ones([3], device)],
            mask: Some(x.clone().lower_elem(0.5)),
            foreign: NestWith::new(foreign, |foreign, field| field("x", &mut foreign.x)),
            names: vec!["a".to_string()],
            x,
            last,
        }
    }

    /// Whether each tensor has autodiff.
    fn autodiff(&self) -> [bool; 4] {
        [
            self.x.is_autodiff(),
            self.labels[0].is_autodiff(),
            self.mask.as_ref().is_some_and(Tensor::is_autodiff),
            self.foreign.x.is_autodiff(),
        ]
    }

    fn on_all(strategy: &impl Strategy, last: u64) -> PerReplica<Self> {
        let replicas = strategy.replicas().iter();
        PerReplica::new(replicas.map(|it| Self::new(&it.device, last)).collect())
    }
}

fn check_autodiff(strategy: &impl Strategy) -> Result<()> {
    let mut state = strategy.try_scope(Net::new)?;
    let mut other = strategy.try_scope(Net::new)?;
    let device = strategy.replicas()[0].device.clone();
    let own = Mixed::on_all(strategy, 7);
    let has = |ctx: &ReplicaContext, wanted: bool, batch: &[&Mixed]| {
        assert_eq!(ctx.device().is_autodiff(), wanted);
        for batch in batch {
            assert_eq!(batch.autodiff(), [wanted; 4]);
        }
        let made = Tensor::<2>::zeros([3, 2], ctx.device());
        assert_eq!(made.is_autodiff(), wanted);
        Ok(made)
    };
    let has = &has;

    // All ways into a step, in a step of two shared states.
    let given = || {
        let same = Replicated(Mixed::new(&device, 7));
        (&state, &other, Mixed::on_all(strategy, 7), &own, same)
    };
    let returned = strategy.run(given(), |ctx, (state, other, a, b, c)| {
        assert!(!state.model.output.weight.val().is_autodiff());
        assert!(!other.model.burns.gamma.val().is_autodiff());
        assert!(!other.model.burns.running_var.value_sync().is_autodiff());
        let made = has(ctx, false, &[&a, b, &c])?;
        Ok((made, a, state.model.evaluated(c.x)?.argmax(1)))
    })?;
    // What it returns is as other steps return it, and the caller's own is as it was.
    for (made, batch, largest) in returned.values() {
        assert!(made.is_autodiff() && largest.is_autodiff());
        assert!(!made.is_require_grad());
        assert_eq!(batch.autodiff(), [true; 4]);
        let strategy = made.gradient_checkpointing_strategy();
        assert_eq!(strategy, device.gradient_checkpointing_strategy());
    }
    assert!(own.values().iter().all(|own| own.autodiff() == [true; 4]));

    // A number that cannot travel is no reason to fail.
    let large = Mixed::on_all(strategy, u64::MAX);
    let found = strategy.run((&state, large), |_, (_, batch)| Ok(batch))?;
    assert!(found.values().iter().all(|batch| batch.last == u64::MAX));

    // Every other step has autodiff, also after one that evaluates and one that fails, which ends
    // a group of workers.
    let batch = || Mixed::on_all(strategy, 7);
    strategy.run(batch(), |ctx, x| has(ctx, true, &[&x]))?;
    if strategy.workers().is_none() {
        let failed = strategy.run(&state, |_, _| Err::<(), _>(Error::invalid("on purpose")));
        assert!(failed.unwrap_err().to_string().contains("on purpose"));
    }
    let training = (InTraining::new(&state), &other, batch());
    strategy.run(training, |ctx, (_, _, x)| has(ctx, true, &[&x]))?;
    let mixed = (&mut other, &state, batch(), &own);
    strategy.run(mixed, |ctx, (other, state, x, y)| {
        assert!(!state.model.output.weight.val().is_autodiff());
        assert!(other.model.output.weight.val().is_autodiff());
        has(ctx, true, &[&x, y])
    })?;
    trains_on_results(strategy, &mut state)
}

/// What a step that evaluates returns is a batch of a training step, with a gradient.
fn trains_on_results(
    strategy: &impl Strategy,
    state: &mut Mirrored<TrainState<Net>>,
) -> Result<()> {
    let outputs = strategy.run((&*state, parts(strategy, 1)), |_, (state, x)| {
        assert!(!x.is_autodiff());
        Ok((x.clone() * 2.0, state.model.evaluated(x)?))
    })?;
    let sum = strategy.reduce(ReduceOp::Sum, outputs.clone())?;
    assert_eq!(sum.1.dims(), [6, 2]);
    strategy.run((&mut *state, outputs), |ctx, (state, (x, targets))| {
        let x = x.require_grad();
        let loss = (state.model.output.forward(x.clone()) - targets).powi_scalar(2);
        let loss = ctx.mean_loss(loss.mean())?;
        let gradients = loss.clone().backward();
        assert!(x.grad(&gradients).is_some());
        Ok(())
    })?;
    Ok(())
}

#[test]
fn a_step_of_shared_states_alone_has_no_autodiff_under_every_strategy() {
    for replicas in [1, 2] {
        let mirrored = MirroredStrategy::builder().replicas(replicas);
        check_autodiff(&mirrored.clone().build().unwrap()).unwrap();
        check_autodiff(&mirrored.gradient_checkpointing().build().unwrap()).unwrap();
    }
    check_autodiff(&OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap()).unwrap();
    check_autodiff(&CentralStorageStrategy::with_replicas(2).unwrap()).unwrap();
    workers(THREADS, &[1, 2], |strategy| check_autodiff(&strategy));
}

/// Dropout is off and statistics stay, which `InTraining` would not give.
#[test]
fn the_gradient_of_an_input_is_there_in_a_step_that_evaluates() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let state = strategy.try_scope(Net::new).unwrap();
    let model = state.primary().unwrap().model.valid();
    let saliency = |model: &Net, x: Tensor<2>| -> Result<Tensor<2>> {
        let x = x.autodiff().require_grad();
        let loss = model.evaluated(x.clone())?.powi_scalar(2).sum();
        x.grad(&loss.backward())
            .ok_or_else(|| Error::invalid("no gradient"))
    };
    let given = parts(&strategy, 3);
    let alone = given.clone().into_values().into_iter();
    let alone: Result<Vec<_>> = alone.map(|x| saliency(&model, x)).collect();
    let found = strategy.run((&state, given), |_, (state, x)| saliency(&state.model, x));
    let found = bits(found.unwrap().into_values());
    assert_eq!(found, bits(alone.unwrap()));
    assert!(found.iter().any(|bits| *bits != 0));
}

#[test]
fn a_gradient_without_autodiff_is_an_error_that_names_the_ways_out() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let state = strategy.try_scope(Net::new).unwrap();
    let steps: [fn(&Net, Tensor<2>) -> Result<()>; 2] = [
        |_, x| {
            drop(x.require_grad());
            Ok(())
        },
        |model, x| {
            drop(model.evaluated(x)?.sum().backward());
            Ok(())
        },
    ];
    for step in steps {
        let given = (&state, parts(&strategy, 3));
        let error = strategy.run(given, |_, (state, x)| step(&state.model, x));
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Replica { .. }), "{error:?}");
        let text = error.to_string();
        for way in [
            "x.autodiff().require_grad()",
            "`&mut state`",
            "InTraining::new(&state)",
        ] {
            assert!(text.contains(way), "{way} is not in: {text}");
        }
    }
    // Another panic stays one.
    let panicked = strategy.run(&state, |_, _| -> Result<()> { panic!("on purpose") });
    let panicked = panicked.unwrap_err();
    assert!(
        matches!(panicked, Error::ReplicaPanicked { .. }),
        "{panicked:?}"
    );
    let found = strategy.run(&state, |ctx, _| Ok(ctx.device().is_autodiff().into()));
    let found: Vec<i64> = found.unwrap().into_values();
    assert_eq!(found, [0, 0], "the strategy goes on");
}
