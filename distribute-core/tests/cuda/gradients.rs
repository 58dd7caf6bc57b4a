//! Gradients of several GPUs that are views, shared, expanded, made by another thread, or on some
//! replicas only: every way of reducing them gives the weights of CPU replicas.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Adam, Error, Gradients, HierarchicalCopy, LogicalDevice, Mirrored, MirroredStrategy,
    NcclAllReduce, PerReplica, ReduceOp, ReplicaContext, Result, Strategy, StrategyExt, TrainState,
};

use crate::model::{difference, has_gpu, weights};

#[derive(Module, Debug)]
struct Odd {
    hidden: Linear,
    output: Linear,
    left: Param<Tensor<1>>,
    right: Param<Tensor<1>>,
    wide: Param<Tensor<1>>,
    table: Param<Tensor<2>>,
    cut: Param<Tensor<1>>,
    one: Param<Tensor<1>>,
    first: Param<Tensor<1>>,
    unused: Param<Tensor<1>>,
}

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count)
        .map(|i| ((i as f32 + seed) * 12.9898).sin() * 0.5)
        .collect()
}

impl Odd {
    fn new(device: &Device) -> Self {
        let fill = |mut linear: Linear, seed: f32| {
            linear.weight = linear.weight.map(|weight| {
                let shape = weight.shape();
                let values = numbers(shape.num_elements(), seed);
                Tensor::from_data(TensorData::new(values, shape), device).require_grad()
            });
            linear.bias = linear
                .bias
                .map(|bias| bias.map(|bias| Tensor::zeros(bias.shape(), device).require_grad()));
            linear
        };
        let param = |count: usize, seed| {
            let data = TensorData::new(numbers(count, seed), [count]);
            Param::from_tensor(Tensor::from_data(data, device).require_grad())
        };
        let table = TensorData::new(numbers(12, 9.0), [3, 4]);
        Self {
            hidden: fill(LinearConfig::new(3, 8).init(device), 1.0),
            output: fill(LinearConfig::new(8, 1).init(device), 2.0),
            left: param(5, 3.0),
            right: param(5, 4.0),
            wide: param(7, 7.0),
            table: Param::from_tensor(Tensor::from_data(table, device).require_grad()),
            cut: param(11, 8.0),
            one: param(1, 10.0),
            first: param(4, 5.0),
            unused: param(3, 6.0),
        }
    }

    fn loss(&self, replica: usize, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
        let device = x.device();
        let error = self.output.forward(relu(self.hidden.forward(x))) - y;
        let mut loss = (error.clone() * error).sum();
        let both = self.left.val() + self.right.val();
        loss = loss + (both.clone() * both).sum();
        // Expanded: a gradient with stride 0.
        loss = loss + self.wide.val().sum() * (replica as f32 + 1.0);
        // A transposed gradient.
        let other = Tensor::<2>::from_data(TensorData::new(numbers(12, 2.5), [4, 3]), &device);
        loss = loss + (self.table.val().transpose() * other).sum();
        // Pieces of one tensor.
        let cut = self.cut.val();
        loss = loss + (cut.clone().narrow(0, 2, 3) * 3.0).sum();
        loss = loss + cut.narrow(0, 4, 6).powi_scalar(2).sum() * (replica as f32 - 0.5);
        loss = loss + self.one.val();
        if replica == 0 {
            loss = loss + self.first.val().powi_scalar(2).sum();
        }
        loss.div_scalar(12.0)
    }
}

const STEPS: usize = 30;

type Batch = (Tensor<2>, Tensor<2>);

fn examples(step: usize, replica: usize, device: &Device) -> Batch {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in 0..6 {
        let base = (step * 12 + replica * 6 + row) as f32;
        let x: Vec<f32> = (0..3).map(|k| ((base + k as f32) * 78.233).sin()).collect();
        targets.push(x[0] * 2.0 - x[1] + 0.5 * x[2]);
        inputs.extend(x);
    }
    (
        Tensor::from_data(TensorData::new(inputs, [6, 3]), device),
        Tensor::from_data(TensorData::new(targets, [6, 1]), device),
    )
}

type How = fn(&ReplicaContext, &mut TrainState<Odd>, Batch) -> Result<()>;
type Configure = fn(TrainState<Odd>) -> TrainState<Odd>;

fn plain(ctx: &ReplicaContext, state: &mut TrainState<Odd>, (x, y): Batch) -> Result<()> {
    let loss = state.model.loss(ctx.replica_id(), x, y);
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients)?;
    Ok(())
}

// For each thread another one beside it.
type Work = Box<dyn FnOnce() + Send>;

thread_local! {
    static WORKER: std::sync::mpsc::Sender<Work> = {
        let (send, work) = std::sync::mpsc::channel::<Work>();
        std::thread::spawn(move || work.into_iter().for_each(|work| work()));
        send
    };
}

/// Gradients whose backward pass runs on another thread, which has a stream of its own.
fn made_elsewhere(
    state: &TrainState<Odd>,
    loss: impl FnOnce(&Odd) -> Tensor<1> + Send + 'static,
) -> Result<Gradients> {
    let model = state.model.clone();
    let (send, answer) = std::sync::mpsc::channel();
    let work: Work = Box::new(move || {
        let params = GradientsParams::from_grads(loss(&model).backward(), &model);
        drop(send.send(Gradients::from_params(params, &model)));
    });
    WORKER.with(|worker| worker.send(work)).expect("a thread");
    answer.recv().expect("a thread")
}

fn elsewhere(ctx: &ReplicaContext, state: &mut TrainState<Odd>, (x, y): Batch) -> Result<()> {
    let replica = ctx.replica_id();
    let gradients = made_elsewhere(state, move |model| model.loss(replica, x, y))?;
    state.apply_gradients(ctx, gradients)?;
    Ok(())
}

/// Few tensors: with more of them burn waits for other streams now and then by itself.
fn few_elsewhere(ctx: &ReplicaContext, state: &mut TrainState<Odd>, (x, _): Batch) -> Result<()> {
    let gradients = made_elsewhere(state, move |model| {
        let both = model.left.val() * x.sum() + model.right.val();
        both.powi_scalar(2).sum()
    })?;
    state.apply_gradients(ctx, gradients)?;
    Ok(())
}

fn read_and_change(ctx: &ReplicaContext, state: &mut TrainState<Odd>, (x, y): Batch) -> Result<()> {
    let loss = state.model.loss(ctx.replica_id(), x, y);
    let mut gradients = ctx.gradient(&loss, &state.model)?;
    let norm = gradients.global_norm()?;
    assert!(norm > 0.0 && norm.is_finite(), "{norm}");
    assert_eq!(gradients.get(0).expect("one").shape().to_vec(), [3, 8]);
    if ctx.replica_id() == 1 {
        for data in gradients.iter_mut().flatten() {
            let values = data.as_mut_slice::<f32>().map_err(Error::step)?;
            values.iter_mut().for_each(|value| *value *= 3.0);
        }
    }
    state.apply_gradients(ctx, gradients)?;
    Ok(())
}

fn mean(ctx: &ReplicaContext, state: &mut TrainState<Odd>, (x, y): Batch) -> Result<()> {
    let loss = state.model.loss(ctx.replica_id(), x, y);
    let mut gradients = ctx.gradient(&loss, &state.model)?;
    gradients.all_reduce(ctx, ReduceOp::Mean)?;
    assert!(gradients.get(gradients.len() - 1).is_none());
    state.apply_gradients(ctx, gradients)?;
    Ok(())
}

fn train(strategy: &MirroredStrategy, configure: Configure, how: How) -> Vec<f32> {
    let mut state: Mirrored<TrainState<Odd>> = strategy
        .scope(|device| configure(TrainState::new(Odd::new(device), Adam::new(0.01))))
        .expect("a state");
    for step in 0..STEPS {
        let batches = strategy.replicas().iter();
        let batches = batches.map(|replica| examples(step, replica.id, &replica.device));
        let batches = PerReplica::new(batches.collect());
        strategy
            .run((&mut state, batches), |ctx, (state, batch)| {
                how(ctx, state, batch)
            })
            .expect("a step");
    }
    let primary = weights(state.primary()).expect("weights");
    for copy in state.values() {
        assert_eq!(weights(copy).expect("weights"), primary, "replicas differ");
    }
    primary
}

fn compare(configure: Configure, how: How) {
    if !has_gpu() {
        return;
    }
    if LogicalDevice::all_gpus().expect("GPUs").len() < 2 {
        println!("SKIPPED: one GPU");
        return;
    }
    let cpus = MirroredStrategy::builder()
        .replicas(2)
        .build()
        .expect("CPUs");
    let expected = train(&cpus, configure, how);
    let gpus = [LogicalDevice::cuda(0), LogicalDevice::cuda(1)];
    let on = || MirroredStrategy::builder().devices(gpus);
    let all = [
        ("host", on().cross_device_ops(HierarchicalCopy::default())),
        ("auto", on()),
        ("nccl", on().cross_device_ops(NcclAllReduce::new())),
        ("burn", on().cross_device_ops(NcclAllReduce::by_burn())),
    ];
    for (name, builder) in all {
        let strategy = builder.build().expect("GPUs");
        let found = train(&strategy, configure, how);
        let difference = difference(&expected, &found);
        println!("{name}: {difference:e} ({:?})", strategy.device_reduction());
        assert!(difference < 1e-3, "{name}: {difference:e}");
    }
}

#[test]
fn odd_gradients() {
    compare(|state| state, plain);
}

#[test]
fn gradients_of_another_thread() {
    compare(|state| state, elsewhere);
}

#[test]
fn gradients_that_the_step_reads_and_changes() {
    compare(|state| state, read_and_change);
}

#[test]
fn gradients_that_the_step_reduces() {
    compare(|state| state, mean);
}

#[test]
fn clipped_gradients() {
    compare(|state| state.clip_by_global_norm(0.05), plain);
}

#[test]
fn accumulated_gradients() {
    compare(|state| state.accumulate(3), plain);
}

#[test]
fn few_gradients_of_another_thread() {
    compare(|state| state, few_elsewhere);
}
