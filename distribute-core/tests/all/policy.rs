//! Mixed precision: variables in `f32`, forward and backward passes in 16 bits.

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{BatchNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use distribute_core::{
    Adam, Applied, CentralStorageStrategy, DefaultStrategy, Error, LossScale, MirroredStrategy,
    MultiWorkerMirroredStrategy, PerReplica, Policy, ReduceOp, Result, Sgd, Strategy, StrategyExt,
    SyncBatchNormConfig, TrainState,
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

#[test]
fn a_batch_normalization_is_refused_and_stays_as_it_is() {
    let device = Device::flex().autodiff();
    let refused = |error: Error| {
        assert!(matches!(error, Error::Policy { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("batch normalization"), "{text}");
        assert!(text.contains("in bf16"), "{text}");
    };
    let policy = Policy::mixed_bfloat16();
    let norm = BatchNormConfig::new(3).init(&device);
    let synchronized = SyncBatchNormConfig::new(3).init(&device).unwrap();
    refused(policy.model(&norm).unwrap_err());
    refused(policy.model(&synchronized).unwrap_err());
    // Clones share running statistics: a copy in bf16 would have changed these.
    assert_eq!(norm.running_mean.value().dtype(), DType::F32);
    assert!(Policy::float32().model(&norm).is_ok());
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
