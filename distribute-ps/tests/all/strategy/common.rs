//! What the tests share: servers, a small model, and steps.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_core::{
    Applied, InputContext, Mirrored, Replicated, Result, Strategy, StrategyExt, TrainState,
};
use distribute_ps::partitioners::Partitioner;
use distribute_ps::{
    ClientOptions, ParameterServer, ParameterServerStrategy, RunId, RunOptions, ServerOptions,
    VariableClient,
};

/// Servers on free ports; they end when this is dropped.
pub struct Servers {
    servers: Vec<ParameterServer>,
}

impl Servers {
    pub fn start(count: usize) -> Self {
        let bind = |server| {
            let mut options = ServerOptions::default();
            options.server = Some(server);
            ParameterServer::bind("127.0.0.1:0", options).expect("a server")
        };
        Self {
            servers: (0..count).map(bind).collect(),
        }
    }

    pub fn addresses(&self) -> Vec<String> {
        let servers = self.servers.iter();
        servers.map(|server| server.address().to_string()).collect()
    }

    pub fn client(&self) -> VariableClient {
        VariableClient::connect(&self.addresses(), ClientOptions::default()).expect("servers")
    }

    /// A strategy that begins a run on them.
    pub fn strategy(&self, partitioner: Option<Arc<dyn Partitioner>>) -> ParameterServerStrategy {
        self.with(RunOptions::default(), partitioner)
    }

    pub fn with(
        &self,
        run: RunOptions,
        partitioner: Option<Arc<dyn Partitioner>>,
    ) -> ParameterServerStrategy {
        let client = ClientOptions::default();
        ParameterServerStrategy::connect(&self.addresses(), client, run, partitioner)
            .expect("a strategy")
    }
}

/// Two strategies of one run: the coordinator's and a worker's.
pub fn coordinator_and_worker_of(
    servers: &Servers,
    run: RunId,
    options: RunOptions,
) -> [ParameterServerStrategy; 2] {
    let (first, second) = (servers.client(), servers.client());
    first.attach(run, options).unwrap();
    second.join(run).unwrap();
    let input = InputContext::default();
    [
        ParameterServerStrategy::coordinator(first, run, None).unwrap(),
        ParameterServerStrategy::worker(second, run, input).unwrap(),
    ]
}

/// The same, of a new run.
pub fn coordinator_and_worker(
    servers: &Servers,
    options: RunOptions,
) -> [ParameterServerStrategy; 2] {
    coordinator_and_worker_of(servers, RunId::random().expect("a run"), options)
}

#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Linear,
    pub output: Linear,
}

impl Net {
    /// Numbers that depend on `seed` alone.
    pub fn new(device: &Device, seed: f32) -> Self {
        let layer = |inputs, outputs, seed: f32| {
            let constant = Initializer::Constant { value: 0.125 };
            let config = LinearConfig::new(inputs, outputs).with_initializer(constant);
            let mut layer = config.init(device);
            layer.weight = layer.weight.map(|weight| {
                let shape = weight.shape();
                let values = (0..shape.num_elements()).map(|i| (i as f32 * 0.37 + seed).sin());
                let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
                Tensor::from_data(data, device).require_grad()
            });
            layer
        };
        Self {
            hidden: layer(5, 7, seed),
            output: layer(7, 3, seed + 1.0),
        }
    }
}

pub type Built = Mirrored<TrainState<Net>>;

/// One step with the batch of this number.
pub fn step(strategy: &dyn Strategy, state: &mut Built, number: usize) -> Result<Applied> {
    let updated = strategy.run((state, Replicated(number)), |ctx, (state, number)| {
        let input = (0..20).map(|i| ((i * 7 + number * 5) % 11) as f32 / 4.0 - 1.0);
        let input = TensorData::new(input.collect::<Vec<f32>>(), [4, 5]);
        let input: Tensor<2> = Tensor::from_data(input, ctx.device());
        let hidden = state.model.hidden.forward(input).tanh();
        let output = state.model.output.forward(hidden);
        let loss = (output - 0.5).powf_scalar(2.0).mean();
        let gradients = ctx.gradient(&loss, &state.model)?;
        Ok(match state.apply_gradients(ctx, gradients)? {
            Applied::Updated => 0_i64,
            Applied::Accumulated => 1,
            _ => 2,
        })
    })?;
    Ok(match updated.values()[0] {
        0 => Applied::Updated,
        1 => Applied::Accumulated,
        _ => Applied::Dropped,
    })
}
