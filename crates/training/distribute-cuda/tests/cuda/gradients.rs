//! Gradients of several GPUs that are views, shared, expanded, made by another thread, or on some
//! replicas only: every way of reducing them gives the weights of CPU replicas.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use distribute_core::{
    Adam, Error, Gradients, HierarchicalCopy, Mirrored, MirroredStrategy, NcclAllReduce, ReduceOp,
    ReplicaContext, Result, Strategy, StrategyExt, TrainState,
};
use distribute_cuda::{all_gpus, cuda};

use crate::gpu::has_gpu;
use crate::model::difference;
use crate::odd_gradients::{Batch, Odd, batches, weights};

const STEPS: usize = 30;

type How = fn(&ReplicaContext, &mut TrainState<Odd>, Batch) -> Result<()>;
type Configure = fn(TrainState<Odd>) -> TrainState<Odd>;

fn plain(ctx: &ReplicaContext, state: &mut TrainState<Odd>, (x, y): Batch) -> Result<()> {
    let loss = state.model.loss(ctx.replica_id(), x, y);
    ctx.loss_is_scaled();
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
    ctx.loss_is_scaled();
    let mut gradients = ctx.gradient(&loss, &state.model)?;
    let norm = gradients.global_norm()?;
    assert!(norm > 0.0 && norm.is_finite(), "{norm}");
    assert_eq!(
        gradients.get(0).unwrap().expect("one").shape().to_vec(),
        [3, 8]
    );
    if ctx.replica_id() == 1 {
        for data in gradients.iter_mut().unwrap().flatten() {
            let values = data.as_mut_slice::<f32>().map_err(Error::step)?;
            values.iter_mut().for_each(|value| *value *= 3.0);
        }
    }
    state.apply_gradients(ctx, gradients)?;
    Ok(())
}

fn mean(ctx: &ReplicaContext, state: &mut TrainState<Odd>, (x, y): Batch) -> Result<()> {
    let loss = state.model.loss(ctx.replica_id(), x, y);
    ctx.loss_is_scaled();
    let mut gradients = ctx.gradient(&loss, &state.model)?;
    gradients.all_reduce(ctx, ReduceOp::Mean)?;
    assert!(gradients.get(gradients.len() - 1).unwrap().is_none());
    state.apply_gradients(ctx, gradients)?;
    Ok(())
}

fn train(strategy: &MirroredStrategy, configure: Configure, how: How) -> Vec<f32> {
    let mut state: Mirrored<TrainState<Odd>> = strategy
        .scope(|device| configure(TrainState::new(Odd::new(device), Adam::new(0.01))))
        .expect("a state");
    for step in 0..STEPS {
        strategy
            .run(
                (&mut state, batches(strategy, step)),
                |ctx, (state, batch)| how(ctx, state, batch),
            )
            .expect("a step");
    }
    let primary = weights(state.primary().unwrap()).expect("weights");
    for copy in state.values().unwrap() {
        assert_eq!(weights(copy).expect("weights"), primary, "replicas differ");
    }
    primary
}

fn compare(configure: Configure, how: How) {
    if !has_gpu() {
        return;
    }
    if all_gpus().expect("GPUs").len() < 2 {
        println!("SKIPPED: one GPU");
        return;
    }
    let cpus = MirroredStrategy::builder()
        .replicas(2)
        .build()
        .expect("CPUs");
    let expected = train(&cpus, configure, how);
    let gpus = [cuda(0), cuda(1)];
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
