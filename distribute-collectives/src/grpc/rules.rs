//! Which lanes a rank has with the others, and what it says of them in a handshake.

use distribute_net::handshake::{Hello, Identity, Purpose};
use serde::Deserialize;
use serde_json::json;

/// The version of the messages on a lane.
const VERSION: u32 = 4;

/// What a Hello says about its lane.
#[derive(Deserialize)]
struct LaneDetails {
    world_size: usize,
    lane: usize,
    lanes: usize,
}

/// The lanes of a rank.
#[derive(Debug, Clone)]
pub(crate) struct LaneRules {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) generation: u64,
    pub(crate) group: String,
    /// Connections per pair of ranks, at least 1.
    pub(crate) lanes: usize,
}

impl LaneRules {
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn example(rank: usize, world_size: usize) -> LaneRules {
        LaneRules {
            rank,
            world_size,
            generation: 7,
            group: "tests".to_string(),
            lanes: 1,
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

    /// The rank and the lane of a client that says this, or why there is no such lane here.
    pub(crate) fn check_client(&self, hello: &Hello) -> Result<(usize, usize), String> {
        let details = hello.read_details::<LaneDetails>();
        let details = details.map_err(|error| error.to_string())?;
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
                return Err(format!("the {what} here is {here}, not {there}"));
            }
        }
        let is_higher = self.rank < rank && rank < self.world_size;
        if !is_higher || details.lane >= self.lanes || peer != Some(self.rank as u32) {
            let (own, lane) = (self.rank, details.lane);
            return Err(format!("rank {own} expects no lane {lane} of rank {rank}"));
        }
        Ok((rank, details.lane))
    }
}
