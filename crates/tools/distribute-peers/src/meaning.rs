//! What a failed attempt means, and what to do.

use std::net::{IpAddr, SocketAddr};

use distribute_net::address::split;

use crate::attempt::{Attempt, Outcome};
use crate::interfaces::{Interface, having};
use crate::messages::Card;

/// What is known of the host at one end.
pub(crate) struct Side<'a> {
    pub(crate) rank: usize,
    /// Tells hosts apart; empty if it is not known.
    pub(crate) network: &'a str,
    pub(crate) interfaces: &'a [Interface],
    /// The address from which it reaches rank 0.
    pub(crate) from: Option<IpAddr>,
}

impl<'a> Side<'a> {
    pub(crate) fn of(card: &'a Card) -> Self {
        Self {
            rank: card.rank,
            network: &card.facts.network,
            interfaces: &card.interfaces,
            from: card.from,
        }
    }

    /// Whether the other one is known to be on another host.
    fn is_apart(&self, other: &Side<'_>) -> bool {
        !self.network.is_empty() && !other.network.is_empty() && self.network != other.network
    }

    /// The address that this rank should have: the one by which it reaches rank 0.
    fn better_address(&self, than: IpAddr) -> Option<String> {
        let from = self.from.filter(|ip| !ip.is_loopback() && *ip != than)?;
        let interface = having(self.interfaces, from);
        let name = interface.map_or(String::new(), |it| format!(" ({})", it.name));
        Some(format!("{from}{name}"))
    }
}

/// The whole sentence without a subject: what was tried, from where, what it means, what to do.
/// `to` is the other end, if it has come to the check.
pub(crate) fn meaning(attempt: &Attempt, from: Option<&Side<'_>>, to: Option<&Side<'_>>) -> String {
    let tried = tried(attempt);
    let cause = cause(attempt);
    let advice = wrong_interface(attempt, from, to).unwrap_or_else(|| advice(attempt));
    if advice.is_empty() {
        format!("{tried}: {cause}")
    } else {
        format!("{tried}: {cause}; {advice}")
    }
}

/// The address that was tried, and from where.
fn tried(attempt: &Attempt) -> String {
    let Attempt { address, .. } = attempt;
    let resolved = attempt.resolved.filter(|it| it.to_string() != *address);
    let resolved = resolved.map_or(String::new(), |it| format!(" ({it})"));
    let from = match (&attempt.interface, attempt.from) {
        (Some(name), Some(ip)) => format!(" from {name} ({ip})"),
        (None, Some(ip)) => format!(" from {ip}"),
        _ => String::new(),
    };
    format!("{address}{resolved}{from}")
}

/// What the outcome says.
fn cause(attempt: &Attempt) -> String {
    match &attempt.outcome {
        Outcome::Reached => "reached".to_string(),
        Outcome::Unknown => "no address is known".to_string(),
        Outcome::Unresolved(why) => format!("the address does not resolve: {why}"),
        Outcome::Refused => "connection refused: the host answers, and no process listens on this \
                             port there"
            .to_string(),
        Outcome::NoAnswer => "no answer to the attempt to connect".to_string(),
        Outcome::NoRoute(why) => format!("no way there: {why}"),
        Outcome::Lacking(why) => format!("cannot connect: {why}"),
        Outcome::Silent => "the connection is accepted, and then nothing comes".to_string(),
        Outcome::Closed(why) => format!("the connection is accepted and ends ({why})"),
        Outcome::NotDoctor(why) => format!("another program answers there ({why})"),
        Outcome::Untrusted(why) => why.clone(),
        Outcome::OtherRank(other) => format!("rank {other} answers there"),
    }
}

fn port(attempt: &Attempt) -> u16 {
    let resolved = attempt.resolved.map(|it| it.port());
    let given = || split(&attempt.address).map_or(0, |(_, port)| port);
    resolved.unwrap_or_else(given)
}

/// What to do about it, as far as the outcome alone says.
fn advice(attempt: &Attempt) -> String {
    let (rank, port) = (attempt.rank, port(attempt));
    let host = attempt.resolved.as_ref().map(SocketAddr::ip);
    let host = host.map_or("that host".to_string(), |ip| ip.to_string());
    match &attempt.outcome {
        Outcome::Reached | Outcome::Lacking(_) | Outcome::Untrusted(_) => String::new(),
        Outcome::Unknown => format!("start rank {rank}, which tells it to rank 0"),
        Outcome::Unresolved(_) => {
            "correct the name, or enter it into the name service of this host".to_string()
        }
        Outcome::Refused => format!(
            "start rank {rank} there, or correct its address; if it runs, a firewall rejects the \
             connection, or its address is that of another host"
        ),
        Outcome::NoAnswer => format!(
            "a firewall drops it, or the address is wrong: let connections from this host to TCP \
             port {port} of {host} pass, or correct the address of rank {rank}"
        ),
        Outcome::NoRoute(_) => format!(
            "add a route to {host}, correct the address of rank {rank}, or let a firewall pass TCP \
             port {port}"
        ),
        Outcome::Silent | Outcome::Closed(_) | Outcome::NotDoctor(_) => format!(
            "something else listens there, or forwards the connection to nowhere: end it, or give \
             rank {rank} another port"
        ),
        Outcome::OtherRank(_) => {
            "list the same addresses in the same order for all ranks".to_string()
        }
    }
}

/// An address that other hosts cannot use, named with its interface.
fn wrong_interface(
    attempt: &Attempt,
    from: Option<&Side<'_>>,
    to: Option<&Side<'_>>,
) -> Option<String> {
    if matches!(attempt.outcome, Outcome::Untrusted(_) | Outcome::Lacking(_)) {
        return None;
    }
    let ip = attempt.resolved?.ip().to_canonical();
    let from = from?;
    let rank = attempt.rank;
    let Some(to) = to else {
        let own = having(from.interfaces, ip)?;
        return Some(format!(
            "{}; {ip} is an address of the host of rank {} itself ({}): if rank {rank} is on another \
             host, give it the address of an interface that the other hosts reach",
            advice(attempt),
            from.rank,
            described(own)
        ));
    };
    if !from.is_apart(to) {
        return None;
    }
    let instead = to.better_address(ip).map_or_else(
        || format!("give rank {rank} the address of an interface that the other hosts reach"),
        |better| format!("give rank {rank} the address {better}, from which it reaches rank 0"),
    );
    if ip.is_loopback() {
        return Some(format!(
            "{ip} is the loopback interface of each host: rank {} can reach only its own host there; \
             {instead}",
            from.rank
        ));
    }
    if let Some(own) = having(from.interfaces, ip) {
        return Some(format!(
            "{ip} is also an address of rank {}'s own host ({}): the attempt never left that host; \
             {instead}",
            from.rank,
            described(own)
        ));
    }
    match having(to.interfaces, ip) {
        Some(it) if it.is_bridge => Some(format!(
            "on rank {rank}'s host {ip} is {}; {instead}",
            described(it)
        )),
        None if !to.interfaces.is_empty() => Some(format!(
            "{ip} is no address of rank {rank}'s host (it has {}); {instead}, or check what \
             translates the address",
            list(to.interfaces)
        )),
        _ => None,
    }
}

fn described(interface: &Interface) -> String {
    if interface.is_bridge {
        format!(
            "{}, a bridge for the containers of one host",
            interface.name
        )
    } else {
        format!("interface {}", interface.name)
    }
}

/// The addresses that others may reach.
fn list(interfaces: &[Interface]) -> String {
    let open = interfaces.iter().filter(|it| !it.address.is_loopback());
    let all: Vec<String> = open
        .take(6)
        .map(|it| format!("{} {}", it.name, it.address))
        .collect();
    all.join(", ")
}
