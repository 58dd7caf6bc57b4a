//! Mixed precision: variables in `f32`, forward and backward passes in 16 bits.

use burn::module::{Module, ModuleDisplay, Param, RunningState};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    BatchNormConfig, BiGruConfig, BiLstmConfig, GruConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig, LstmConfig, RnnConfig,
};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::{
    Adam, Applied, CentralStorageStrategy, DefaultStrategy, Error, LocalBatchNorm, LossScale,
    MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy, PerReplica, Policy, ReduceOp,
    Result, Sgd, Strategy, StrategyExt, SyncBatchNorm, SyncBatchNormConfig, TrainState,
};

use crate::multi_worker::group::{THREADS, workers};

const MIXED: [Policy; 2] = [Policy::mixed_bfloat16(), Policy::mixed_float16()];

/// A convolution, a normalization and two layers, with weights that follow from their places.
#[derive(Module, Debug)]
struct Small {
    conv: Conv2d,
    norm: LayerNorm,
    hidden: Linear,
    output: Linear,
}

impl Small {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs, seed: f32| {
            let mut layer = LinearConfig::new(inputs, outputs).init(device);
            layer.weight = placed(&layer.weight, seed);
            layer.bias = layer.bias.map(|bias| placed(&bias, 0.0));
            layer
        };
        let mut conv = Conv2dConfig::new([1, 4], [3, 3]).init(device);
        conv.weight = placed(&conv.weight, 1.0);
        conv.bias = conv.bias.map(|bias| placed(&bias, 0.0));
        Self {
            conv,
            norm: LayerNormConfig::new(16).init(device),
            hidden: linear(16, 8, 2.0),
            output: linear(8, 1, 3.0),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = MaxPool2dConfig::new([2, 2])
            .init()
            .forward(self.conv.forward(x));
        let x = self.norm.forward(x.flatten(1, 3));
        self.output.forward(relu(self.hidden.forward(x)))
    }
}

fn placed<const D: usize>(like: &Param<Tensor<D>>, seed: f32) -> Param<Tensor<D>> {
    let (shape, device) = (like.val().shape(), like.val().device());
    let value = |i: usize| ((i as f32 + seed) * 12.9898).sin() * 0.5 * seed.min(1.0);
    let values: Vec<f32> = (0..shape.num_elements()).map(value).collect();
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), &device).require_grad())
}

const GLOBAL_BATCH: usize = 12;

/// A replica's examples of a step: images and what is to be found.
fn examples(
    step: usize,
    replica: usize,
    replicas: usize,
    device: &Device,
) -> (Tensor<4>, Tensor<2>) {
    let share = GLOBAL_BATCH / replicas;
    let value =
        |i: usize| (((step * GLOBAL_BATCH + replica * share) * 36 + i) as f32 * 78.233).sin();
    let images: Vec<f32> = (0..share * 36).map(value).collect();
    let wanted = images
        .chunks(36)
        .map(|image| image[..9].iter().sum::<f32>() * 0.25);
    let wanted = TensorData::new(wanted.collect::<Vec<_>>(), [share, 1]);
    (
        Tensor::from_data(TensorData::new(images, [share, 1, 6, 6]), device),
        Tensor::from_data(wanted, device),
    )
}

/// The losses of 80 steps, and the bits of all replicas' weights, which must be equal.
fn train(strategy: &impl Strategy, policy: Policy) -> Result<(Vec<f32>, Vec<u32>)> {
    let mut state = strategy.scope(|device| {
        TrainState::new(Small::new(device), Adam::new(0.01)).with_loss_scale(policy.loss_scale())
    })?;
    let replicas = strategy.num_replicas_in_sync();
    let mut losses = Vec::new();
    for step in 0..80 {
        let parts = strategy.replicas().iter();
        let parts = parts.map(|replica| examples(step % 4, replica.id, replicas, &replica.device));
        let batch = PerReplica::new(parts.collect());
        let loss = strategy.run((&mut state, batch), |ctx, (state, (x, y))| {
            let model = policy.model(&state.model)?;
            let found = model.forward(policy.cast(x));
            assert_eq!(found.dtype(), DType::from(policy.compute_dtype()));
            let error = policy.output(found) - y;
            let loss = (error.clone() * error).sum() / GLOBAL_BATCH as f32;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            for index in 0..gradients.len() {
                let gradient = gradients.get(index)?.expect("the loss depends on all");
                assert_eq!(gradient.dtype(), DType::F32);
            }
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })?;
        losses.push(strategy.reduce(ReduceOp::Sum, loss)?);
    }
    let weights = |state: &TrainState<Small>| -> Result<Vec<u32>> {
        let tensors = state.to_tensors()?;
        let model = tensors
            .iter()
            .filter(|(name, _)| name.starts_with("model/"));
        assert!(model.clone().all(|(_, data)| data.dtype() == DType::F32));
        Ok(model
            .flat_map(|(_, data)| data.iter::<f32>().map(f32::to_bits))
            .collect())
    };
    let all = state
        .values()?
        .iter()
        .map(weights)
        .collect::<Result<Vec<_>>>()?;
    assert!(all.iter().all(|one| *one == all[0]), "replicas differ");
    Ok((losses, all[0].clone()))
}

/// The mean of the last losses, one for each of the four batches.
fn last(losses: &[f32]) -> f32 {
    losses[losses.len() - 4..].iter().sum::<f32>() / 4.0
}

#[test]
fn mixed_precision_learns_as_f32_does_under_every_strategy() {
    let (reference, _) = train(&DefaultStrategy::new(), Policy::float32()).unwrap();
    assert!(last(&reference) < 0.2 * reference[0], "{reference:?}");
    for policy in MIXED {
        let check = |(losses, _): (Vec<f32>, Vec<u32>)| {
            assert_ne!(losses, reference, "{policy} computes in another type");
            let (found, wanted) = (last(&losses), last(&reference));
            // Of the loss that was learned away; a hundredth of what there was.
            let bound = 0.01 * reference[0];
            assert!((found - wanted).abs() < bound, "{policy}: {found} {wanted}");
        };
        check(train(&DefaultStrategy::new(), policy).unwrap());
        for replicas in [2, 3] {
            let mirrored = MirroredStrategy::builder()
                .replicas(replicas)
                .build()
                .unwrap();
            let found = train(&mirrored, policy).unwrap();
            assert_eq!(
                train(&mirrored, policy).unwrap(),
                found,
                "equal settings, equal bits"
            );
            check(found);
            check(
                train(
                    &CentralStorageStrategy::with_replicas(replicas).unwrap(),
                    policy,
                )
                .unwrap(),
            );
        }
    }
}

#[test]
fn workers_train_in_mixed_precision() {
    for policy in MIXED {
        let program = move |strategy: MultiWorkerMirroredStrategy| train(&strategy, policy);
        let all = workers(THREADS, &[1, 2], program);
        assert_eq!(all[0], all[1], "workers differ");
        assert!(last(&all[0].0) < 0.2 * all[0].0[0]);
    }
}

/// Gradients that are zero in `f16` are not with a loss scale.
#[test]
fn a_loss_scale_keeps_small_gradients() {
    let policy = Policy::mixed_float16();
    let moved = |scale: LossScale| {
        let strategy = DefaultStrategy::new();
        let state = strategy.scope(|device| {
            TrainState::new(Small::new(device), Sgd::new(1e9)).with_loss_scale(scale)
        });
        let mut state = state.unwrap();
        let before = state
            .primary()
            .unwrap()
            .model
            .output
            .weight
            .val()
            .into_data();
        let done = strategy.run(&mut state, |ctx, state| {
            let (x, _) = examples(0, 0, 1, ctx.device());
            let found = policy.model(&state.model)?.forward(policy.cast(x));
            // In f16, where small numbers become zero.
            let loss = policy.output(found.mul_scalar(1e-4)).sum().mul_scalar(1e-6);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            Ok(i64::from(
                state.apply_gradients(ctx, gradients)? == Applied::Updated,
            ))
        });
        assert_eq!(done.unwrap().into_values(), [1]);
        let after = state
            .primary()
            .unwrap()
            .model
            .output
            .weight
            .val()
            .into_data();
        before != after
    };
    assert!(!moved(LossScale::default()));
    assert!(moved(policy.loss_scale()));
}

/// Batch normalizations of all replicas' parts together and of each one's own.
#[derive(Module, Debug)]
struct Normalized {
    inputs: SyncBatchNorm,
    hidden: Linear,
    norm: LocalBatchNorm,
    output: Linear,
}

impl Normalized {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs, seed: f32| {
            let mut layer = LinearConfig::new(inputs, outputs).init(device);
            layer.weight = placed(&layer.weight, seed);
            layer.bias = layer.bias.map(|bias| placed(&bias, 0.5));
            layer
        };
        let inputs = SyncBatchNormConfig::new(36).with_momentum(0.9);
        Self {
            inputs: inputs.init(device).unwrap(),
            hidden: linear(36, 6, 2.0),
            norm: BatchNormConfig::new(6).init(device).into(),
            output: linear(6, 1, 3.0),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Result<Tensor<2>> {
        let x = self.hidden.forward(self.inputs.forward(x));
        Ok(self.output.forward(relu(self.norm.forward(x)?)))
    }

    fn statistics(&self) -> Vec<f32> {
        let all = [
            &self.inputs.moving_mean,
            &self.inputs.moving_variance,
            &self.norm.running_mean,
            &self.norm.running_var,
        ];
        let values = all.map(|state| {
            let value = state.value_sync();
            assert_eq!(value.dtype(), DType::F32);
            value.into_data().iter::<f32>().collect::<Vec<_>>()
        });
        values.concat()
    }
}

/// The losses of 20 steps and the statistics after them.
fn normalized(strategy: &impl Strategy, policy: Policy) -> Result<Vec<f32>> {
    let scale = if policy.loss_scale().is_dynamic() {
        LossScale::fixed(128.0)?
    } else {
        LossScale::default()
    };
    let mut state = strategy.scope(|device| {
        TrainState::new(Normalized::new(device), Sgd::new(0.05)).with_loss_scale(scale)
    })?;
    let replicas = strategy.num_replicas_in_sync();
    let mut found = Vec::new();
    for step in 0..20 {
        let parts = strategy.replicas().iter();
        let parts = parts.map(|replica| examples(step % 4, replica.id, replicas, &replica.device));
        let batch = PerReplica::new(parts.collect());
        let loss = strategy.run((&mut state, batch), |ctx, (state, (x, y))| {
            let model = policy.model(&state.model)?;
            assert_eq!(model.norm.gamma.val().dtype(), DType::F32);
            let found = model.forward(policy.cast(x).flatten(1, 3))?;
            assert_eq!(found.dtype(), DType::from(policy.compute_dtype()));
            let error = policy.output(found) - y;
            let loss = (error.clone() * error).sum() / GLOBAL_BATCH as f32;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss.into_scalar::<f32>())
        })?;
        found.push(strategy.reduce(ReduceOp::Sum, loss)?);
    }
    found.extend(state.primary()?.model.statistics());
    Ok(found)
}

fn assert_near(found: &[f32], wanted: &[f32], policy: Policy) {
    assert_ne!(found, wanted, "{policy} computes in another type");
    assert!(wanted[19] < 0.7 * wanted[0], "it learns: {wanted:?}");
    for (found, wanted) in found.iter().zip(wanted) {
        let bound = 1e-2 * wanted.abs().max(1.0);
        assert!((found - wanted).abs() < bound, "{policy}: {found} {wanted}");
    }
}

#[test]
fn batch_normalizations_keep_f32_in_mixed_precision() {
    let mirrored = MirroredStrategy::builder().replicas(2).build().unwrap();
    for policy in MIXED {
        let one = OneDeviceStrategy::new("cpu:0".parse().unwrap()).unwrap();
        let wanted = normalized(&one, Policy::float32()).unwrap();
        assert_near(&normalized(&one, policy).unwrap(), &wanted, policy);
        let wanted = normalized(&mirrored, Policy::float32()).unwrap();
        assert_near(&normalized(&mirrored, policy).unwrap(), &wanted, policy);
        let program = move |strategy: MultiWorkerMirroredStrategy| {
            let wanted = normalized(&strategy, Policy::float32())?;
            Ok((normalized(&strategy, policy)?, wanted))
        };
        let all = workers(THREADS, &[1, 2], program);
        assert_eq!(all[0], all[1], "workers differ");
        assert_near(&all[0].0, &all[0].1, policy);
    }
}

#[test]
fn of_f32_inputs_it_is_the_layer_of_burn() {
    let device = Device::flex().autodiff();
    let burn = BatchNormConfig::new(3).init(&device);
    let ours = LocalBatchNorm::from(BatchNormConfig::new(3).init(&device));
    for step in 0..3 {
        let x = placed(
            &Param::from_tensor(Tensor::<3>::ones([4, 3, 2], &device)),
            0.1,
        )
        .val();
        let x = x + step as f32;
        let (expected, found) = (burn.forward(x.clone()), ours.forward(x).unwrap());
        assert_eq!(found.into_data(), expected.into_data());
    }
    let of = |state: &RunningState<Tensor<1>>| state.value_sync().into_data();
    assert_eq!(of(&ours.running_mean), of(&burn.running_mean));
    assert_eq!(of(&ours.running_var), of(&burn.running_var));
    // Inference where there are gradients, too.
    let x = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [-0.5, 7.0, 0.25]], &device);
    let expected = burn.valid().forward(x.clone().without_autodiff());
    let [once, again] = [(); 2].map(|()| ours.forward_inference(x.clone()).unwrap());
    assert!(once.is_autodiff());
    assert_eq!(once.into_data(), expected.clone().into_data());
    assert_eq!(again.into_data(), expected.into_data());
    let error = ours
        .forward(Tensor::<2>::ones([4, 2], &device))
        .unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    let wide = Tensor::<2>::ones([4, 3], &device).cast(DType::F64);
    let error = ours.forward(wide).unwrap_err();
    assert!(matches!(error, Error::DType { .. }), "{error}");
}

/// A layer with a path of its own, and one of a type that only this test knows.
#[derive(Module, Debug)]
struct Within<L> {
    block: Vec<L>,
}

#[derive(Module, Debug)]
struct Counter {
    seen: RunningState<Tensor<1>>,
}

#[test]
fn layers_that_cannot_are_refused_by_name_and_stay_as_they_are() {
    let device = Device::flex().autodiff();
    fn refused<L: Module + ModuleDisplay>(layer: L, parts: &[&str]) {
        let model = Within { block: vec![layer] };
        for policy in MIXED {
            let error = policy.model(&model).unwrap_err();
            assert!(matches!(error, Error::Policy { .. }), "{error:?}");
            let text = error.to_string();
            for part in [&["`block.0`", policy.name(), "float32"], parts].concat() {
                assert!(text.contains(part), "{text} does not say {part}");
            }
        }
        assert!(Policy::float32().model(&model).is_ok());
    }
    let norm = BatchNormConfig::new(3).init(&device);
    refused(norm.clone(), &["batch normalization", "LocalBatchNorm"]);
    // Clones share running statistics: a copy in bf16 would have changed these.
    assert_eq!(norm.running_mean.value().dtype(), DType::F32);
    let seen = RunningState::new(Tensor::zeros([1], &device));
    refused(Counter { seen }, &["batch normalization"]);
    let recurrent = ["recurrent layer", "f32"];
    refused(LstmConfig::new(2, 3, true).init(&device), &recurrent);
    refused(BiLstmConfig::new(2, 3, true).init(&device), &recurrent);
    refused(GruConfig::new(2, 3, true).init(&device), &recurrent);
    refused(BiGruConfig::new(2, 3, true).init(&device), &recurrent);
    refused(RnnConfig::new(2, 3, true).init(&device), &recurrent);
}

#[test]
fn policies_have_keras_names() {
    for policy in [MIXED[0], MIXED[1], Policy::default()] {
        assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        assert_eq!(
            policy.loss_scale().is_dynamic(),
            policy == Policy::mixed_float16()
        );
    }
    let error = "mixed_int8".parse::<Policy>().unwrap_err().to_string();
    assert!(
        error.contains("`mixed_int8`") && error.contains("mixed_bfloat16"),
        "{error}"
    );
}
