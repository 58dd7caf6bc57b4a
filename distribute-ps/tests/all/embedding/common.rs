//! What the tests share: servers, a small model with a table, and steps.

use std::sync::Arc;

use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::optim::Optimizer;
use distribute_core::{InputContext, Mirrored, StrategyExt, TrainState};
use distribute_ps::partitioners::{FixedShardsPartitioner, Partitioner};
use distribute_ps::{
    EmbeddingTable, ParameterServerStrategy, RunId, RunOptions, TableInitializer, TableSpec,
};

use crate::strategy::common::Servers;

pub const ROWS: usize = 11;
pub const WIDTH: usize = 3;

pub fn fixed(num_shards: usize) -> Option<Arc<dyn Partitioner>> {
    Some(Arc::new(FixedShardsPartitioner { num_shards }))
}

impl Servers {
    /// A strategy that begins a run on them and cuts variables into this many shards.
    pub fn in_shards(&self, shards: usize) -> ParameterServerStrategy {
        self.strategy(fixed(shards))
    }

    /// The coordinator's strategy of a new run, and the workers' strategies.
    pub fn run(
        &self,
        workers: usize,
        shards: usize,
        options: RunOptions,
    ) -> (RunId, ParameterServerStrategy, Vec<ParameterServerStrategy>) {
        let run = RunId::random().expect("a run");
        let client = self.client();
        client.attach(run, options).expect("free servers");
        let worker = |_| {
            let client = self.client();
            client.join(run).expect("a run");
            ParameterServerStrategy::worker(client, run, InputContext::default()).expect("a worker")
        };
        let chief = ParameterServerStrategy::coordinator(client, run, fixed(shards));
        let workers = (0..workers).map(worker).collect();
        (run, chief.expect("a coordinator"), workers)
    }
}

/// Numbers that depend on their place alone.
pub fn number(at: usize) -> f32 {
    (at as f32 * 0.37 + 0.2).sin()
}

pub fn table_values() -> Vec<f32> {
    (0..ROWS * WIDTH).map(|at| number(at + 5)).collect()
}

/// A table of [`ROWS`] times [`WIDTH`] with [`table_values`].
pub fn spec(optimizer: impl Optimizer + 'static) -> TableSpec {
    let values = |rows: std::ops::Range<usize>| {
        Ok(table_values()[rows.start * WIDTH..rows.end * WIDTH].to_vec())
    };
    TableSpec::new(ROWS, WIDTH, optimizer).initializer(TableInitializer::rows(values))
}

fn param<const D: usize>(shape: [usize; D], first: usize, device: &Device) -> Param<Tensor<D>> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (first..first + count).map(number).collect();
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device).require_grad())
}

/// The dense part: [`WIDTH`] inputs, 2 outputs.
pub fn dense(device: &Device) -> Linear {
    let mut layer = LinearConfig::new(WIDTH, 2).init(device);
    layer.weight = param([WIDTH, 2], 100, device);
    layer.bias = Some(param([2], 200, device));
    layer
}

/// The table as a parameter.
pub fn whole_table(device: &Device) -> Param<Tensor<2>> {
    let values = TensorData::new(table_values(), [ROWS, WIDTH]);
    Param::from_tensor(Tensor::from_data(values, device).require_grad())
}

/// The loss of rows that were looked up: `[batch, length, WIDTH]`.
pub fn loss(model: &Linear, rows: Tensor<3>, batch: usize) -> Tensor<1> {
    let bags: Tensor<2> = rows.sum_dim(1).squeeze_dim(1);
    let output = model.forward(bags).tanh();
    (output - number(batch)).powf_scalar(2.0).mean()
}

/// Ids of a batch, `[4, 3]`, with repetitions.
pub fn ids(batch: usize) -> TensorData {
    let ids = (0..12).map(|i| ((i * i + 3 * i * batch + batch) % (ROWS - 2)) as i64);
    TensorData::new(ids.collect::<Vec<_>>(), [4, 3])
}

pub type Dense = Mirrored<TrainState<Linear>>;

/// One step of the model with the table.
pub fn step(
    strategy: &ParameterServerStrategy,
    state: &mut Dense,
    table: &EmbeddingTable,
    batch: usize,
) -> distribute_core::Result<distribute_core::Applied> {
    let rows = table.lookup(ids(batch))?;
    let applied = std::sync::Mutex::new(None);
    strategy.run(state, |ctx, state| {
        let loss = loss(&state.model, rows.tensor(ctx)?, batch);
        let gradients = ctx.gradient(&loss, &state.model)?;
        let done = state.apply_gradients(ctx, gradients)?;
        *applied.lock().expect("no panic") = Some(done);
        Ok(())
    })?;
    let applied = applied.into_inner().expect("no panic");
    Ok(applied.expect("the step ran"))
}

/// All values of a table.
pub fn read(strategy: &ParameterServerStrategy, table: &EmbeddingTable) -> Vec<f32> {
    let data = strategy
        .variables()
        .read(table.variable().name())
        .expect("a table");
    data.try_to_vec::<f32>().expect("f32")
}

pub fn floats(data: &TensorData) -> Vec<f32> {
    data.clone().try_to_vec::<f32>().expect("f32")
}
