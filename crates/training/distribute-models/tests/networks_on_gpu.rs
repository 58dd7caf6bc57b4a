//! Networks that people train, on a GPU as on the CPU, and in mixed precision. Needs a GPU, and
//! says SKIPPED without; `scripts/gpu-check` runs it.

#[path = "../../distribute-cuda/tests/cuda/model.rs"]
#[expect(
    dead_code,
    reason = "shared with the tests of distribute-cuda, which use all of it"
)]
mod model;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use distribute_core::{
    LogicalDevice, MirroredStrategy, PerReplica, Policy, ReplicaContext, Result, Sgd, StrategyExt,
    TrainState,
};
use distribute_cuda::cuda;
use distribute_data::prelude::{average_loss, sparse_categorical_crossentropy};
use distribute_models::{Gpt, GptConfig, ResNet, ResNetConfig};

use model::{batch, difference};

const EXAMPLES: usize = 32;

/// The losses of some steps of a network whose initial weights were made on the CPU.
fn losses<M: Module + Sync + 'static>(
    device: LogicalDevice,
    policy: Policy,
    initial: &M,
    steps: usize,
    loss: impl Fn(&ReplicaContext, &M, usize, &Device) -> Result<Tensor<1>> + Sync,
) -> Result<Vec<f32>> {
    let strategy = MirroredStrategy::builder().devices([device]).build()?;
    let mut state = strategy.scope(|device| {
        let optimizer = Sgd::new(0.02).momentum(0.9);
        TrainState::new(initial.clone().fork(device), optimizer)
            .with_loss_scale(policy.loss_scale())
    })?;
    let mut losses = Vec::new();
    for step in 0..steps {
        let found = strategy.run((&mut state, PerReplica::new(vec![step])), |ctx, given| {
            let (state, step) = given;
            let model = policy.model(&state.model)?;
            let loss = loss(ctx, &model, step, ctx.device())?;
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(loss)
        })?;
        losses.push(
            strategy
                .reduce(distribute_core::ReduceOp::Sum, found)?
                .into_scalar::<f32>(),
        );
    }
    Ok(losses)
}

fn of_images(
    policy: Policy,
) -> impl Fn(&ReplicaContext, &ResNet, usize, &Device) -> Result<Tensor<1>> + Sync {
    move |ctx, model, step, device| {
        let (images, labels) = batch(step % 2, 0..EXAMPLES, device);
        let logits = policy.output(model.forward(ctx, policy.cast(images))?);
        average_loss(ctx, sparse_categorical_crossentropy(logits, labels))
    }
}

/// Texts that count up, from other numbers in each step.
fn of_texts(
    policy: Policy,
) -> impl Fn(&ReplicaContext, &Gpt, usize, &Device) -> Result<Tensor<1>> + Sync {
    move |ctx, model, step, device| {
        let numbers = |ahead: usize| {
            let numbers = (0..EXAMPLES * 32).map(|i| ((i / 32 * 5 + i % 32 + ahead) % 61) as i32);
            let data = TensorData::new(numbers.collect::<Vec<_>>(), [EXAMPLES, 32]);
            Tensor::<2, Int>::from_data(data, device)
        };
        let logits = policy.output(model.forward(numbers(step))?);
        let each = sparse_categorical_crossentropy(logits, numbers(step + 1));
        average_loss(ctx, each.mean_dim(1))
    }
}

fn has_gpu() -> bool {
    cuda(0)
        .check()
        .inspect_err(|error| println!("SKIPPED: {error}"))
        .is_ok()
}

fn on_the_cpu() -> Device {
    let device = Device::flex().autodiff();
    device.seed(7);
    device
}

fn cpu() -> LogicalDevice {
    "cpu:0".parse().expect("a CPU")
}

/// Both trained for this many steps; the largest difference of their losses is printed.
fn compare<M: Module + Sync + 'static>(
    name: &str,
    initial: &M,
    steps: usize,
    tolerance: f32,
    loss: impl Fn(&ReplicaContext, &M, usize, &Device) -> Result<Tensor<1>> + Sync,
) {
    let float32 = Policy::float32();
    let expected = losses(cpu(), float32, initial, steps, &loss).expect("training on the CPU");
    let found = losses(cuda(0), float32, initial, steps, &loss).expect("training on the GPU");
    let difference = difference(&expected, &found);
    println!("{name}: losses {expected:?}, on the GPU at most {difference:e} from them");
    assert!(expected[steps - 1] < expected[0], "it learns: {expected:?}");
    assert!(difference < tolerance, "{expected:?} {found:?}");
}

#[test]
fn resnet_18_has_the_losses_of_the_cpu() {
    if has_gpu() {
        let initial = ResNetConfig::resnet18(1, 10)
            .init(&on_the_cpu())
            .expect("a network");
        compare("ResNet-18", &initial, 4, 2e-2, of_images(Policy::float32()));
    }
}

#[test]
fn a_gpt_has_the_losses_of_the_cpu() {
    if has_gpu() {
        let config = GptConfig::new(61)
            .with_length(32)
            .with_width(64)
            .with_layers(2);
        let initial = config.init(&on_the_cpu()).expect("a network");
        compare("GPT", &initial, 8, 2e-2, of_texts(Policy::float32()));
    }
}

/// In half the bits a network learns as in f32, batch normalization, attention and the scale of the
/// loss included.
#[test]
fn mixed_precision_learns_on_the_gpu() {
    if !has_gpu() {
        return;
    }
    let images = ResNetConfig::narrow(1, 10)
        .init(&on_the_cpu())
        .expect("a network");
    let config = GptConfig::new(61)
        .with_length(32)
        .with_width(64)
        .with_layers(2);
    let texts = config.init(&on_the_cpu()).expect("a network");
    let steps = 12;
    let both = |policy: Policy| {
        let images = losses(cuda(0), policy, &images, steps, of_images(policy));
        let texts = losses(cuda(0), policy, &texts, steps, of_texts(policy));
        [images.expect("a ResNet"), texts.expect("a GPT")].map(|losses| losses[steps - 1])
    };
    let full = both(Policy::float32());
    for policy in [Policy::mixed_bfloat16(), Policy::mixed_float16()] {
        let found = both(policy);
        println!("{}: last losses {found:?}, in f32 {full:?}", policy.name());
        assert!(difference(&found, &full) < 0.15, "{found:?} {full:?}");
        // In the same bits it would not have been computed in half of them.
        assert!(found[0] != full[0] && found[1] != full[1], "{found:?}");
    }
}
