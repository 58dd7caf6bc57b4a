//! What the links of a rank are to be, and what it says of them in a handshake.

use std::sync::Arc;
use std::time::Duration;

use distribute_net::handshake::{Hello, Identity, Purpose, Secret};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::json;

use crate::grpc::hello::{FAILED_PRECONDITION, Refusal};
use crate::status::GroupStatus;
use crate::wire::HEADER_BYTES;

/// The version of the messages on a lane.
const VERSION: u32 = 3;

/// The smallest limit of a message that makes sense.
pub(crate) const MESSAGE_BYTES_MIN: usize = HEADER_BYTES + 1024;

/// Certificates of data connections.
#[derive(Clone)]
pub(crate) struct DataTls {
    pub(crate) client: Arc<rustls::ClientConfig>,
    pub(crate) server: Arc<rustls::ServerConfig>,
    /// The name in the certificate of each rank.
    pub(crate) server_names: Vec<ServerName<'static>>,
}

/// What a Hello says about its lane.
#[derive(Deserialize)]
struct LaneDetails {
    world_size: usize,
    lane: usize,
    lanes: usize,
}

/// What the links of a rank are to be.
pub(crate) struct LinkConfig {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) generation: u64,
    pub(crate) group: String,
    /// Connections per pair of ranks, at least 1.
    pub(crate) lanes: usize,
    pub(crate) max_message_bytes: usize,
    /// How long bytes may be on their way without that one of them arrives.
    pub(crate) stall_limit: Duration,
    pub(crate) tls: Option<DataTls>,
    /// What this rank and another one know, by its rank.
    pub(crate) secrets: Vec<Secret>,
    pub(crate) status: Arc<GroupStatus>,
}

impl LinkConfig {
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn example(rank: usize, world_size: usize) -> LinkConfig {
        LinkConfig {
            rank,
            world_size,
            generation: 7,
            group: "tests".to_string(),
            lanes: 1,
            max_message_bytes: 1 << 20,
            stall_limit: Duration::from_secs(60),
            tls: None,
            secrets: vec![Secret::new("let me in"); world_size],
            status: Arc::default(),
        }
    }

    /// What this rank says on a lane to another rank, which it dials at an address or not.
    pub(crate) fn hello(&self, peer: usize, lane: usize, address: &str) -> Hello {
        let mut hello = Hello::new(Purpose::Data, VERSION, env!("CARGO_PKG_VERSION"));
        hello.address = address.to_string();
        hello.identity = Identity {
            group: self.group.clone(),
            task: self.rank as u32,
            run: String::new(),
            generation: self.generation,
        };
        hello.peer_task = Some(peer as u32);
        hello.details = json!({
            "world_size": self.world_size,
            "lane": lane,
            "lanes": self.lanes,
        })
        .to_string();
        hello
    }

    /// As [`check_client`](Self::check_client), without the reason.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn admits(&self, hello: &Hello) -> Option<(usize, usize)> {
        self.check_client(hello).ok()
    }

    /// The rank and the lane of a client that says this, before it has proven anything.
    pub(super) fn check_client(&self, hello: &Hello) -> Result<(usize, usize), Refusal> {
        let refuse = |what: String| Refusal::new(FAILED_PRECONDITION, what);
        let details = hello
            .read_details::<LaneDetails>()
            .map_err(|error| refuse(error.to_string()))?;
        let identity = &hello.identity;
        let (rank, peer) = (identity.task as usize, hello.peer_task);
        let compared: [(&str, &dyn ToString, &dyn ToString); 4] = [
            ("group", &self.group, &identity.group),
            ("generation", &self.generation, &identity.generation),
            ("world size", &self.world_size, &details.world_size),
            ("number of lanes", &self.lanes, &details.lanes),
        ];
        for (what, here, there) in compared {
            let (here, there) = (here.to_string(), there.to_string());
            if here != there {
                return Err(refuse(format!("the {what} here is {here}, not {there}")));
            }
        }
        let is_higher = self.rank < rank && rank < self.world_size;
        if !is_higher || details.lane >= self.lanes || peer != Some(self.rank as u32) {
            return Err(self.unexpected(rank, details.lane));
        }
        Ok((rank, details.lane))
    }

    pub(super) fn unexpected(&self, rank: usize, lane: usize) -> Refusal {
        let what = format!("rank {} expects no lane {lane} of rank {rank}", self.rank);
        Refusal::new(FAILED_PRECONDITION, what)
    }
}
