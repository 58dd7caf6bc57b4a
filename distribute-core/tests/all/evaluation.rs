//! A state that a step is lent with `&` is in evaluation mode: burn's `valid()`, bit by bit,
//! without autodiff, and its statistics stay.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    CentralStorageStrategy, InTraining, LocalBatchNorm, LogicalDevice, Mirrored, MirroredStrategy,
    OneDeviceStrategy, PerReplica, Result, Sgd, Strategy, StrategyExt, SyncBatchNorm,
    SyncBatchNormConfig, TrainState,
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
        let expected: Result<Vec<_>> = expected.map(|x| model.evaluated(x)).collect();
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
