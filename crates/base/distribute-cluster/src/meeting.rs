//! The address at which ranks meet that a launcher only numbers.

use std::net::Ipv6Addr;

use super::addresses::check_host;
use super::{ClusterError, Result};

/// Where rank 0 listens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// A name or an IP address; an IPv6 address in brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Place {
    /// The same host at another port.
    pub(super) fn with_port(self, port: Option<u16>) -> Self {
        Self {
            port: port.unwrap_or(self.port),
            host: self.host,
        }
    }
}

/// Reads `HOST:PORT` from this variable or flag.
pub(super) fn from_address(name: &str, text: &str) -> Result<Place> {
    let text = text.trim();
    let refuse = |why: &str| Err(ClusterError::invalid_variable(name, text, why));
    let form = "write it as HOST:PORT, as in 192.0.2.10:9000 or [2001:db8::1]:9000";
    let Some((host, port)) = text.rsplit_once(':') else {
        return refuse(form);
    };
    if let Some((scheme, _)) = text.split_once("://") {
        return refuse(&format!("leave out {scheme}://; {form}"));
    }
    let port = match port.parse() {
        Ok(0) => return refuse("0 is no port to meet at: choose one from 1 to 65535"),
        Ok(port) if !host.contains(':') || host.starts_with('[') => port,
        _ => return refuse(form),
    };
    let host = checked(host).map_err(|why| ClusterError::invalid_variable(name, text, why))?;
    Ok(Place { host, port })
}

/// The host in the variable `name`, whose port belongs into the variable `port`.
pub(super) fn host(name: &str, port: &str, text: &str, hint: &str) -> Result<String> {
    let host = text.trim();
    let refuse = |why: String| Err(ClusterError::invalid_variable(name, host, why));
    // An IPv6 address has several colons, or none outside of brackets.
    let is_ipv6 = host.starts_with('[') || host.matches(':').count() > 1;
    let end = host.rsplit_once(':').filter(|(before, port)| {
        let outside = !is_ipv6 || before.ends_with(']');
        outside && port.parse::<u16>().is_ok()
    });
    if let (Some((before, number)), false) = (end, host.contains("://")) {
        let why = format!("a port is not part of it: {name}={before} and {port}={number}");
        return refuse(why);
    }
    checked(host).or_else(|why| refuse(format!("{why}; {hint}")))
}

/// The host as it stands in front of a port: an IPv6 address needs brackets there.
fn checked(host: &str) -> Result<String, String> {
    check_host(host)?;
    let inner = host.trim_start_matches('[').trim_end_matches(']');
    let address = inner.split('%').next().unwrap_or_default();
    if host.contains([':', '[']) && address.parse::<Ipv6Addr>().is_err() {
        return Err("it is neither a name nor an IP address".to_string());
    }
    let is_bare = host.contains(':') && !host.starts_with('[');
    Ok(if is_bare {
        format!("[{host}]")
    } else {
        host.to_string()
    })
}
