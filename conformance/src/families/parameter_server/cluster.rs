//! The servers of a case.

use std::sync::Arc;

use distribute_core::partitioners::{
    FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner, Partitioner,
};
use distribute_ps::{
    ClientOptions, ParameterServer, ParameterServerStrategy, PsError, RunOptions, ServerOptions,
};

use crate::case::Case;
use crate::json::{Fields, counts_in};
use crate::outcome::Failure;

/// Parameter servers and a strategy on them. The servers end with it.
pub(super) struct Servers {
    pub(super) strategy: ParameterServerStrategy,
    _servers: Vec<ParameterServer>,
}

impl From<PsError> for Failure {
    fn from(error: PsError) -> Self {
        Failure::got(format!("an error: {error}"))
    }
}

/// As many servers as the case had.
pub(super) fn servers(case: &Case) -> Result<Vec<ParameterServer>, Failure> {
    let bind = |server| {
        let mut options = ServerOptions::default();
        options.server = server;
        Ok(ParameterServer::bind("127.0.0.1:0", options)?)
    };
    (0..case.tasks("ps")?).map(bind).collect()
}

impl Servers {
    pub(super) fn start(case: &Case) -> Result<Self, Failure> {
        let servers = servers(case)?;
        let addresses = servers.iter().map(|server| server.address().to_string());
        let addresses: Vec<String> = addresses.collect();
        let (client, run) = (ClientOptions::default(), RunOptions::default());
        let partitioner = partitioner(case.inputs.text("scenario")?)?;
        let strategy = ParameterServerStrategy::connect(&addresses, client, run, partitioner)?;
        Ok(Self {
            strategy,
            _servers: servers,
        })
    }
}

/// `part_fixed_3_0` and the like; other scenarios have none.
fn partitioner(scenario: &str) -> Result<Option<Arc<dyn Partitioner>>, Failure> {
    let Some(kind) = scenario.strip_prefix("part_") else {
        return Ok(None);
    };
    let [first, second] = counts_in(&kind.replace('_', " "))[..] else {
        return Err(Failure::schema(format!("unknown scenario `{scenario}`")));
    };
    Ok(Some(match kind.split('_').next() {
        Some("fixed") => Arc::new(FixedShardsPartitioner { num_shards: first }),
        Some("min") => Arc::new(MinSizePartitioner::new(first, second)?),
        Some("max") => Arc::new(MaxSizePartitioner::new(first, Some(second))?),
        _ => return Err(Failure::schema(format!("unknown scenario `{scenario}`"))),
    }))
}
