//! Images per second on a GPU. The documents' CNN: a training loop written by hand with burn, and
//! the same under strategies, in turns. ResNet-18: under a strategy, in f32 and bf16. Prints one
//! JSON object a line; `scripts/gpu-check` makes a table of them and of PyTorch's. Arguments are
//! the batch sizes.

#[path = "../../distribute-cuda/tests/cuda/model.rs"]
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
mod model;

use std::io::Write;
use std::time::Instant;

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Distribution, Int};
use distribute_core::{
    Device, LogicalDevice, Mirrored, MirroredStrategy, Nest, OneDeviceStrategy, PerReplica, Policy,
    ReplicaContext, Result, Sgd, Strategy, StrategyExt, Tensor, TrainState,
};
use distribute_cuda::cuda;
use distribute_data::prelude::{average_loss, sparse_categorical_crossentropy};
use distribute_models::{ResNet, ResNetConfig};
use model::{Batch, Cnn, batch};

/// Batches that every contender cycles through; on the device before the clock starts.
const BATCHES: usize = 8;
const ROUNDS: usize = 5;

/// Trains for some steps; the device has done all of them when it returns.
type Run<'a> = Box<dyn FnMut(usize) -> Result<()> + 'a>;

/// The loop as burn's documents have it.
fn by_hand<'a>(device: &Device, batches: &'a [Batch], size: usize) -> Run<'a> {
    let mut model = Some(Cnn::new(device));
    let mut optimizer = SgdConfig::new().init();
    let device = device.clone();
    Box::new(move |steps| {
        for step in 0..steps {
            let Some(current) = model.take() else { break };
            let loss = current.loss(&batches[step % BATCHES], size);
            let gradients = GradientsParams::from_grads(loss.backward(), &current);
            model = Some(optimizer.step(0.05, current, gradients));
        }
        device.sync().map_err(distribute_core::Error::step)
    })
}

/// Training under a strategy: step `i` has the loss of input `i`.
fn under<'a, M, B>(
    strategy: impl Strategy + 'a,
    mut state: Mirrored<TrainState<M>>,
    input: impl Fn(usize) -> B + 'a,
    loss: impl Fn(&ReplicaContext, &M, B) -> Result<Tensor<1>> + Sync + 'a,
) -> Run<'a>
where
    M: Module + Sync + 'static,
    B: Nest + Send + 'a,
{
    Box::new(move |steps| {
        for step in 0..steps {
            let input = PerReplica::new(vec![input(step)]);
            strategy.run((&mut state, input), |ctx, (state, input)| {
                let loss = loss(ctx, &state.model, input)?;
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(())
            })?;
        }
        // On the replica's thread: `sync` waits for the stream of the thread that calls it.
        strategy.run((), |ctx, ()| {
            ctx.device().sync().map_err(distribute_core::Error::step)
        })?;
        Ok(())
    })
}

/// The documents' CNN.
fn cnn<'a>(strategy: impl Strategy + 'a, batches: &'a [Batch], size: usize) -> Result<Run<'a>> {
    let state = model::state(&strategy)?;
    let input = |step: usize| batches[step % BATCHES].clone();
    let loss = move |_: &ReplicaContext, model: &Cnn, batch| Ok(model.loss(&batch, size));
    Ok(under(strategy, state, input, loss))
}

/// ResNet-18 on colour images of 64 x 64.
fn resnet(gpu: LogicalDevice, policy: Policy, size: usize) -> Result<Run<'static>> {
    let strategy = MirroredStrategy::builder().devices([gpu]).build()?;
    let state = strategy.try_scope(|device| {
        let model = ResNetConfig::resnet18(3, 10).init(device)?;
        Ok(TrainState::new(model, Sgd::new(0.05)))
    })?;
    let device = gpu.burn_device().autodiff();
    let images = Tensor::<4>::random([size, 3, 64, 64], Distribution::Default, &device);
    let labels = Tensor::<1, Int>::arange(0..size as i64, &device) % 10;
    let input = move |_| (images.clone(), labels.clone());
    let loss = move |ctx: &ReplicaContext, model: &ResNet, (images, labels): Batch| {
        let logits = policy.model(model)?.forward(ctx, policy.cast(images))?;
        average_loss(
            ctx,
            sparse_categorical_crossentropy(policy.output(logits), labels),
        )
    };
    Ok(under(strategy, state, input, loss))
}

/// Seconds per step of each, the median of rounds in which all take their turn for about half a
/// second.
fn measure<'a>(contenders: &mut [(&'static str, Run<'a>)]) -> Result<Vec<f64>> {
    let mut steps = Vec::new();
    for (_, run) in &mut *contenders {
        // Kernels are chosen and compiled.
        run(20)?;
        let start = Instant::now();
        run(10)?;
        let seconds = start.elapsed().as_secs_f64() / 10.0;
        steps.push(((0.5 / seconds) as usize).clamp(5, 500));
    }
    let mut times = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for (((_, run), steps), times) in contenders.iter_mut().zip(&steps).zip(&mut times) {
            let start = Instant::now();
            run(*steps)?;
            times.push(start.elapsed().as_secs_f64() / *steps as f64);
        }
    }
    let median = |times: &mut Vec<f64>| *times.select_nth_unstable_by(ROUNDS / 2, f64::total_cmp).1;
    Ok(times.iter_mut().map(median).collect())
}

/// A line for each, with its time against the first one's.
fn report(bench: &str, size: usize, mut contenders: Vec<(&'static str, Run<'_>)>) -> Result<()> {
    let seconds = measure(&mut contenders)?;
    for ((name, _), time) in contenders.iter().zip(&seconds) {
        let (images, over) = (size as f64 / time, time / seconds[0] - 1.0);
        let mut out = std::io::stdout().lock();
        let _ = writeln!(
            out,
            "{{\"bench\":\"{bench}\",\"impl\":\"{name}\",\"batch\":{size},\
             \"images_per_s\":{images:.0},\"overhead\":{over:.4}}}"
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let gpu = cuda(0);
    if let Err(error) = gpu.check() {
        let _ = writeln!(std::io::stdout(), "SKIPPED: {error}");
        return Ok(());
    }
    let device = gpu.burn_device().autodiff();
    let sizes: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|size| size.parse().ok())
        .collect();
    for size in if sizes.is_empty() {
        vec![64, 256, 1024]
    } else {
        sizes
    } {
        let batches: Vec<Batch> = (0..BATCHES)
            .map(|step| batch(step, 0..size, &device))
            .collect();
        let one_device = OneDeviceStrategy::new(gpu)?;
        let mirrored = MirroredStrategy::builder().devices([gpu]).build()?;
        let contenders = vec![
            ("burn-by-hand", by_hand(&device, &batches, size)),
            ("ours-one-device", cnn(one_device, &batches, size)?),
            ("ours-mirrored", cnn(mirrored, &batches, size)?),
        ];
        report("gpu-cnn", size, contenders)?;
    }
    let (float32, bfloat16) = (Policy::float32(), Policy::mixed_bfloat16());
    let contenders = vec![
        ("ours-mirrored", resnet(gpu, float32, 256)?),
        ("ours-mirrored-bf16", resnet(gpu, bfloat16, 256)?),
    ];
    report("gpu-resnet18", 256, contenders)
}
