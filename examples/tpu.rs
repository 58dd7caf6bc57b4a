//! The TPU loop of TensorFlow's documents: resolver, connect, initialize, strategy, train, test.
//! A step is captured once, compiled, and run on all cores. This needs a PJRT plugin: libtpu on a
//! TPU VM, elsewhere the CPU plugin that `distribute-tpu-xla/pjrt-cpu/build` builds; see
//! docs/tpu.md.
#![forbid(unsafe_code)]

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use distribute::prelude::*;
use distribute::tpu::{TpuClusterResolver, TpuStrategy};

/// Images with their labels and weights; padding has weight 0.
type Batch = ((Tensor<4>, Tensor<1, Int>), Tensor<1>);
type State = TrainState<Mlp>;

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    output: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(64, 64).init(device),
            output: LinearConfig::new(64, 10).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = self.hidden.forward(images.flatten(1, 3));
        self.output.forward(burn::tensor::activation::relu(hidden))
    }
}

fn train_step(ctx: &ReplicaContext, (state, batch): (&mut State, Batch)) -> Result<Tensor<1>> {
    let ((images, labels), weights) = batch;
    let per_example = sparse_categorical_crossentropy(state.model.forward(images), labels);
    let loss = AverageLoss::new().weights(weights).of(ctx, per_example)?;
    state.minimize(ctx, &loss)?;
    Ok(loss)
}

/// The number of correct predictions, as a tensor: a compiled step cannot read values.
fn test_step(_: &ReplicaContext, (state, batch): (&State, Batch)) -> Result<Tensor<1>> {
    let ((images, labels), weights) = batch;
    let predicted = state.model.forward(images).argmax(1).flatten::<1>(0, 1);
    Ok((predicted.equal(labels).float() * weights).sum())
}

fn main() -> Result<()> {
    // The argument, COLAB_TPU_ADDR, TPU_NAME, or the TPU of this machine.
    let resolver = TpuClusterResolver::new(&std::env::args().nth(1).unwrap_or_default())?;
    let system = resolver.connect().and_then(|tpu| tpu.initialize());
    let system = system.unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    });
    let strategy = TpuStrategy::new(&system)?;
    let devices = strategy.devices().iter().map(|device| device.kind());
    println!("devices: {:?}", devices.collect::<Vec<_>>());
    println!("Running on TPU {:?}", resolver.addresses());
    println!("Number of accelerators: {}", system.num_accelerators());

    // A program needs batches of one size: the short last batch of an epoch is padded.
    let batching = Batching::per_replica(8).pad_remainder(true);
    let digits = Digits::open()?;
    let (train, test) = (
        Weighted::new(digits.train()?),
        Weighted::new(digits.test()?),
    );
    let train = strategy.distribute_dataset(train, batching.shuffle(42))?;
    let test = strategy.distribute_dataset(test, batching)?;

    let mut state = strategy.scope(|device| TrainState::new(Mlp::new(device), Adam::new(3e-3)))?;
    for epoch in 0..5 {
        let (mut loss, mut right) = (0.0, 0.0);
        for batch in train.epoch(epoch) {
            let losses = strategy.run((&mut state, batch?), train_step)?;
            let sum = strategy.reduce(ReduceOp::Sum, losses)?;
            loss += sum.into_scalar::<f32>() * train.global_batch_size() as f32;
        }
        for batch in &test {
            let counts = strategy.run((&state, batch?), test_step)?;
            let sum = strategy.reduce(ReduceOp::Sum, counts)?;
            right += sum.into_scalar::<f32>();
        }
        let (loss, accuracy) = (loss / train.len() as f32, right / test.len() as f32);
        println!("epoch {epoch}: loss {loss:.4}, accuracy {accuracy:.3}");
    }
    println!("programs: {}", strategy.statistics().programs);
    Ok(())
}
