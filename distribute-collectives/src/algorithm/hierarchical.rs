//! Hierarchical: inside each host, then a ring of one rank per host, then inside each host again.
//!
//! Host `h` has the ranks from `h * ranks_per_host`; its first rank is the leader. The members send
//! their vectors to the leader, which combines them in rank order, segment by segment; the leaders
//! run a [ring](super::ring); the leader sends the result to its members. The slow links between
//! hosts carry what a ring of hosts carries, however many ranks a host has.
//!
//! - Steps: `1 + 2(H - 1) + 1` for `H` hosts. Bytes that a host sends: `2S(H - 1)/H`; a leader also
//!   receives and sends `S` per member, inside the host.
//! - Order: rank order inside a host, then the ring's order over the hosts.
//! - Half types are rounded once per rank of a host and once per step of the ring.

use crate::algorithm::exchange::Exchange;
use crate::algorithm::ring;
use crate::buffer::Element;
use crate::error::Result;

/// All-reduce.
pub(crate) fn all_reduce<T: Element>(
    exchange: &mut Exchange<'_, '_>,
    ranks_per_host: usize,
) -> Result<()> {
    let (rank, size, vector) = (exchange.rank(), exchange.size, 0..exchange.len);
    let leader = rank / ranks_per_host * ranks_per_host;
    let members = leader + 1..size.min(leader + ranks_per_host);
    let hosts = size.div_ceil(ranks_per_host);
    for range in exchange.segments(&vector) {
        if rank != leader {
            exchange.send::<T>(leader, range)?;
            continue;
        }
        for member in members.clone() {
            let last = hosts == 1 && member + 1 == members.end;
            exchange.receive_reduce::<T>(member, range.clone(), last)?;
        }
    }
    if rank == leader && hosts > 1 {
        (exchange.stride, exchange.size) = (ranks_per_host, hosts);
        let reduced = ring::all_reduce::<T>(exchange);
        (exchange.stride, exchange.size) = (1, size);
        reduced?;
    }
    for range in exchange.segments(&vector) {
        if rank != leader {
            exchange.receive::<T>(leader, range)?;
            continue;
        }
        for member in members.clone() {
            exchange.send::<T>(member, range.clone())?;
        }
    }
    Ok(())
}
