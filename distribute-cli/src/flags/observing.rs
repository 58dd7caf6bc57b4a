//! The flags for observing a run from outside.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Command, TrainArgs};

/// How often ranks are compared by default, in seconds.
const COMPARE_RANKS: f64 = 2.0;

/// Where a running training publishes its progress.
#[derive(Debug, Args)]
#[command(next_help_heading = "Observing")]
pub(crate) struct ObservingArgs {
    /// Write a trace of all threads for Perfetto (docs/observing.md)
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
    /// Serve metrics for Prometheus on this port, worker i on PORT + i; 0: any free port
    #[arg(long, value_name = "[IP:]PORT", value_parser = address)]
    pub(crate) metrics_addr: Option<SocketAddr>,
    /// How often workers compare their steps, to name a slow one; 0: never [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) compare_ranks: Option<f64>,
    /// Send the same metrics to this OpenTelemetry collector, by OTLP over gRPC
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "http://HOST:PORT", value_parser = endpoint)]
    pub(crate) otlp_endpoint: Option<String>,
}

impl ObservingArgs {
    /// How often ranks are compared.
    pub(crate) fn compare_ranks(&self) -> Duration {
        Duration::from_secs_f64(self.compare_ranks.unwrap_or(COMPARE_RANKS))
    }

    /// Whether metrics are published.
    pub(crate) fn wants_metrics(&self) -> bool {
        #[cfg(feature = "otlp")]
        if self.otlp_endpoint.is_some() {
            return true;
        }
        self.metrics_addr.is_some()
    }
}

impl Command {
    /// Whether the phases of the threads are recorded.
    pub(crate) fn wants_phases(&self) -> bool {
        matches!(self, Self::Train(args) if args.wants_phases())
    }
}

impl TrainArgs {
    fn wants_phases(&self) -> bool {
        self.observing.trace.is_some() || self.observing.wants_metrics()
    }
}

/// A time from 0 to a day.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "seconds from 0 to 86400 are needed, as 2 or 0.5".to_string())
}

/// The gRPC port of a collector, without TLS.
#[cfg(feature = "otlp")]
fn endpoint(text: &str) -> Result<String, String> {
    let is_endpoint =
        |uri: &hyper::Uri| uri.scheme_str() == Some("http") && uri.authority().is_some();
    if text.parse().is_ok_and(|uri| is_endpoint(&uri)) {
        Ok(text.to_string())
    } else {
        Err("http://HOST:PORT is needed, such as http://127.0.0.1:4317".to_string())
    }
}

/// An address, or a port that only this host can reach.
fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().ok();
    let local = port.map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    local
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "a port of this host or IP:PORT is needed, such as 9100".to_string())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_port_alone_is_of_this_host() {
        assert_eq!(address("9100").unwrap().to_string(), "127.0.0.1:9100");
        assert_eq!(address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(address("here:1").is_err() && address("70000").is_err());
    }
}
