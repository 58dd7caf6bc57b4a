//! Write your own strategy: mirrored training that records how long every run took.
//!
//! It implements four methods: its identity (`id`), the devices of its replicas (`replicas`),
//! another handle to itself (`handle`), and running a step on its replicas (`run_replicas`).
//! `ReplicaThreads` implements the last one for replicas in this process, with options for a group
//! of workers, your own algorithm for sums, and central variables. The trait provides `scope`,
//! `run` and `reduce`.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distribute::burn;
use distribute::burn::nn::{Linear, LinearConfig};
use distribute::{
    Device, LogicalDevice, MirroredStrategy, Replica, ReplicaStep, ReplicaThreads, Result, Sgd,
    Strategy, StrategyExt, StrategyId, Tensor, TrainState,
};

#[derive(Debug, Clone)]
struct Timed {
    id: StrategyId,
    threads: Arc<ReplicaThreads>,
    runs: Arc<Mutex<Vec<Duration>>>,
}

impl Timed {
    fn new(replicas: usize) -> Result<Self> {
        let replicas: Vec<_> = (0..replicas)
            .map(|id| Replica::new(id, LogicalDevice::cpu(id)))
            .collect();
        Ok(Self {
            id: StrategyId::new("timed", replicas.len()),
            threads: Arc::new(ReplicaThreads::builder().build(replicas)?),
            runs: Arc::default(),
        })
    }
}

impl Strategy for Timed {
    fn id(&self) -> StrategyId {
        self.id.clone()
    }

    fn replicas(&self) -> &[Replica] {
        self.threads.replicas()
    }

    fn handle(&self) -> Arc<dyn Strategy> {
        Arc::new(self.clone())
    }

    fn run_replicas(&self, step: ReplicaStep<'_>) -> Result<()> {
        let started = Instant::now();
        let outcome = self.threads.run(&self.handle(), step);
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.push(started.elapsed());
        outcome
    }
}

/// The weight after three steps; the argument of replica i is i + 1.
fn train(strategy: &dyn Strategy) -> Result<f32> {
    let build = |device: &Device| {
        let init = burn::module::Initializer::Constant { value: 0.5 };
        let model = LinearConfig::new(1, 1).with_bias(false);
        TrainState::new(model.with_initializer(init).init(device), Sgd::new(0.01))
    };
    let mut state = strategy.scope(build)?;
    for _ in 0..3 {
        let numbers = strategy.values_from(|replica| replica as f32 + 1.0);
        strategy.run((&mut state, numbers), |ctx, (state, number)| {
            let state: &mut TrainState<Linear> = state;
            let x = Tensor::<2>::full([1, 1], number, ctx.device());
            let loss = (state.model.forward(x.clone()) - x.mul_scalar(3.0)).square();
            // A sum over the replicas is wanted here, not a mean.
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss.sum(), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
            Ok(())
        })?;
    }
    let weight = state
        .into_primary()?
        .model
        .weight
        .val()
        .into_scalar::<f32>();
    Ok(weight)
}

fn main() -> Result<()> {
    let timed = Timed::new(2)?;
    let weight = train(&timed)?;
    println!("{}: weight {weight}", timed.name());
    let runs = timed.runs.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{} runs were timed", runs.len());
    let mirrored = MirroredStrategy::builder().replicas(2).build()?;
    println!("same weight: {}", weight == train(&mirrored)?);
    Ok(())
}
