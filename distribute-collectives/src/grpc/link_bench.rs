//! An entrance for the example that measures these connections alone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::communicator::{AbortTarget, Communicator};
use crate::error::Result;
use crate::grpc::{DataListener, GrpcTransport, LinkConfig, Links};
use crate::messages::TransportCommunicator;
use crate::options::GroupOptions;
use crate::status::GroupStatus;

struct NoAbort;

impl AbortTarget for NoAbort {
    fn abort(&self, _: usize, _: &str) {}
}

/// One rank that listens on the loopback interface.
#[derive(Debug)]
pub struct Seat(DataListener);

impl Seat {
    /// Listens on a free port.
    pub fn take() -> Result<Seat> {
        DataListener::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).map(Seat)
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Connects to the other ranks, whose addresses are given in rank order.
    pub fn connect(
        self,
        rank: usize,
        lanes: usize,
        addresses: &[SocketAddr],
        options: GroupOptions,
    ) -> Result<Box<dyn Communicator>> {
        let status = Arc::new(GroupStatus::default());
        let config = LinkConfig {
            rank,
            world_size: addresses.len(),
            generation: options.get_generation(),
            group: options.get_name().to_string(),
            lanes,
            max_message_bytes: 4 << 20,
            tls: None,
            proof: std::sync::Arc::new(|_, _| String::new()),
            verify: Arc::new(|_| Ok(())),
            status: status.clone(),
        };
        let addresses: Vec<_> = addresses.iter().copied().map(Some).collect();
        let deadline = Instant::now() + Duration::from_secs(20);
        let links = Links::connect(config, self.0, &addresses, Some(deadline))?;
        let transport = GrpcTransport::new(links, status, Arc::new(NoAbort), options.get_timeout());
        Ok(Box::new(TransportCommunicator::new(transport, options)?))
    }
}
