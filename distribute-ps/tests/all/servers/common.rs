//! Servers on loopback ports, and what tests do with them.

use distribute_core::optim::Optimizer;
use distribute_core::{Adam, Sgd, TensorData};
use distribute_ps::{
    ClientOptions, OptimizerSpec, ParameterServer, Placement, RoundRobin, RunId, RunOptions,
    ServerOptions, UpdateId, VariableClient, VariableRef, VariableSpec,
};

/// Servers, and the client of a coordinator that has begun a run.
pub struct Cluster {
    pub client: VariableClient,
    pub servers: Vec<ParameterServer>,
    pub run: RunId,
    round_robin: RoundRobin,
}

impl Cluster {
    pub fn new(servers: usize) -> Self {
        Self::with(servers, RunOptions::default())
    }

    pub fn with(servers: usize, rules: RunOptions) -> Self {
        Self::start(
            servers,
            rules,
            ServerOptions::default(),
            ClientOptions::default(),
        )
    }

    pub fn start(
        servers: usize,
        rules: RunOptions,
        options: ServerOptions,
        client: ClientOptions,
    ) -> Self {
        let bind = |server| {
            let mut options = options.clone();
            options.server = Some(server);
            ParameterServer::bind("127.0.0.1:0", options).unwrap()
        };
        let servers: Vec<ParameterServer> = (0..servers).map(bind).collect();
        let client = VariableClient::connect(&addresses(&servers), client).unwrap();
        let run = RunId::random().unwrap();
        client.attach(run, rules).unwrap();
        let round_robin = RoundRobin::new(servers.len()).unwrap();
        Self {
            client,
            servers,
            run,
            round_robin,
        }
    }

    /// Another client of the same run.
    pub fn worker(&self) -> VariableClient {
        self.worker_with(ClientOptions::default())
    }

    pub fn worker_with(&self, options: ClientOptions) -> VariableClient {
        let client = VariableClient::connect(&addresses(&self.servers), options).unwrap();
        client.join(self.run).unwrap();
        client
    }

    pub fn place(&mut self, shape: &[usize], shards: usize) -> Placement {
        let partitioner =
            distribute_ps::partitioners::FixedShardsPartitioner { num_shards: shards };
        self.round_robin
            .place(shape, 4, Some(&partitioner))
            .unwrap()
    }

    /// A variable with a value, in `shards` shards.
    pub fn variable(
        &mut self,
        name: &str,
        shards: usize,
        value: TensorData,
        optimizer: Option<OptimizerSpec>,
    ) -> VariableRef {
        let spec = VariableSpec {
            name: name.to_string(),
            shape: value.shape().to_vec(),
            dtype: value.dtype(),
            optimizer,
        };
        let placement = self.place(&spec.shape, shards);
        let variable = self.client.create(&spec, &placement).unwrap();
        self.client.initialize(&variable, value).unwrap();
        variable
    }

    pub fn id(&self, closure: u64) -> UpdateId {
        UpdateId {
            run: self.run,
            closure,
            sequence: 0,
        }
    }
}

pub fn addresses(servers: &[ParameterServer]) -> Vec<String> {
    servers
        .iter()
        .map(|server| server.address().to_string())
        .collect()
}

pub fn sgd(learning_rate: f64) -> Option<OptimizerSpec> {
    Some(OptimizerSpec::of(&Sgd::new(learning_rate)))
}

pub fn adam(learning_rate: f64) -> Option<OptimizerSpec> {
    Some(OptimizerSpec::of(
        &Adam::new(learning_rate) as &dyn Optimizer
    ))
}

/// A tensor of `f32`.
pub fn floats(shape: &[usize], value: impl Fn(usize) -> f32) -> TensorData {
    let count: usize = shape.iter().product();
    TensorData::new((0..count).map(value).collect::<Vec<f32>>(), shape.to_vec())
}

pub fn values(data: &TensorData) -> Vec<f32> {
    data.as_slice::<f32>().unwrap().to_vec()
}
