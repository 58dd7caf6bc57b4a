//! Gradient checkpointing: the same bits under every strategy, over several steps.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor, TensorData};
use distribute_core::{
    Adam, CentralStorageStrategy, LogicalDevice, Mirrored, MirroredStrategy,
    MultiWorkerMirroredStrategy, OneDeviceStrategy, PerReplica, Result, Strategy, StrategyExt,
    SyncBatchNorm, SyncBatchNormConfig, TrainState, dropout,
};

const BALANCED: Option<GradientCheckpointingStrategy> =
    Some(GradientCheckpointingStrategy::Balanced);

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    norm: SyncBatchNorm,
    output: Linear,
}

type State = Mirrored<TrainState<Net>>;

/// A layer without random numbers: tests at the same time draw from the same generator of burn.
fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(inputs, outputs).init(device);
    let values = (0..inputs * outputs).map(|i| (i as f32 * 1.7).sin() * 0.4);
    let values = TensorData::new(values.collect::<Vec<_>>(), [inputs, outputs]);
    layer.weight = Param::from_tensor(Tensor::from_data(values, device));
    let values: Vec<f32> = (0..outputs).map(|i| (i as f32).cos() * 0.1).collect();
    let values = TensorData::new(values, [outputs]);
    layer.bias = Some(Param::from_tensor(Tensor::from_data(values, device)));
    layer
}

fn state(strategy: &impl Strategy, on: impl Fn(&Device) -> Device) -> State {
    let build = |device: &Device| {
        let device = on(device);
        let net = Net {
            hidden: linear(6, 16, &device),
            norm: SyncBatchNormConfig::new(16).init(&device).unwrap(),
            output: linear(16, 2, &device),
        };
        TrainState::new(net, Adam::new(1e-2))
    };
    strategy.scope(build).unwrap()
}

fn step(strategy: &impl Strategy, state: &mut State, number: usize) -> Result<()> {
    let replicas = strategy.replicas().iter();
    let parts = replicas.map(|replica| {
        let values = (0..24).map(|i| ((i + number + 5 * replica.id) as f32).sin());
        let values = TensorData::new(values.collect::<Vec<_>>(), [4, 6]);
        Tensor::<2>::from_data(values, &replica.device)
    });
    let batch = PerReplica::new(parts.collect());
    let done = strategy.run((state, batch), |ctx, (state, x)| {
        let hidden = relu(state.model.hidden.forward(x));
        let hidden = gelu(state.model.norm.forward(hidden).exp());
        let hidden = dropout(hidden, 0.1, &mut ctx.rng(3, state.step()));
        let loss = state.model.output.forward(hidden).powi_scalar(2).mean();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    done.map(drop)
}

/// What autodiff does with the activations of each float of the first copy.
fn of_parameters(state: &mut State) -> [Option<GradientCheckpointingStrategy>; 3] {
    let model = &state.primary().unwrap().model;
    [
        model.hidden.weight.val().gradient_checkpointing_strategy(),
        model
            .output
            .bias
            .as_ref()
            .unwrap()
            .val()
            .gradient_checkpointing_strategy(),
        model
            .norm
            .beta
            .as_ref()
            .unwrap()
            .val()
            .gradient_checkpointing_strategy(),
    ]
}

fn same_bits<S: Strategy>(plain: &S, checkpointed: &S) {
    assert_eq!(
        checkpointed.replicas()[0]
            .device
            .gradient_checkpointing_strategy(),
        BALANCED
    );
    let mut saved = [plain, checkpointed].map(|strategy| {
        let mut state = state(strategy, Clone::clone);
        for number in 0..3 {
            step(strategy, &mut state, number).unwrap();
        }
        let (steps, saved) = state.primary().unwrap().save().unwrap();
        state
            .update(|state| state.load_tensors(&saved, steps))
            .unwrap();
        step(strategy, &mut state, 3).unwrap();
        let strategy = strategy.replicas()[0]
            .device
            .gradient_checkpointing_strategy();
        assert_eq!(of_parameters(&mut state), [strategy; 3]);
        state.primary().unwrap().save().unwrap().1
    });
    let [plain, checkpointed] = &mut saved;
    assert!(!plain.is_empty());
    for (name, data) in plain {
        assert_eq!(data.as_bytes(), checkpointed[name].as_bytes(), "{name}");
    }
}

#[test]
fn every_strategy_trains_to_the_same_bits_with_it() {
    let mirrored = || MirroredStrategy::builder().replicas(2);
    same_bits(
        &mirrored().build().unwrap(),
        &mirrored().gradient_checkpointing().build().unwrap(),
    );
    let several = || {
        MultiWorkerMirroredStrategy::builder()
            .cluster(None)
            .replicas(2)
    };
    same_bits(
        &several().build().unwrap(),
        &several().gradient_checkpointing().build().unwrap(),
    );
    let central = || CentralStorageStrategy::with_replicas(2).unwrap();
    same_bits(&central(), &central().gradient_checkpointing().unwrap());
    let one = || OneDeviceStrategy::new(LogicalDevice::cpu(0)).unwrap();
    same_bits(&one(), &one().gradient_checkpointing());
}

/// A model that was made on a device of one's own keeps it, too.
#[test]
fn an_update_keeps_it() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = state(&strategy, |device| device.clone().gradient_checkpointing());
    let before = of_parameters(&mut state);
    let update = strategy.run(&mut state, |ctx, state| {
        let device = ctx.device().clone().gradient_checkpointing();
        let loss = state
            .model
            .output
            .forward(Tensor::<2>::ones([1, 16], &device))
            .mean();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients).map(drop)
    });
    update.unwrap();
    assert_eq!(of_parameters(&mut state), before);
    assert_eq!(before[1], BALANCED);
}
