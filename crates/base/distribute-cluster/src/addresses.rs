//! Addresses are checked where they are given: what cannot be right is named before anybody waits.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::error::shortened;
use super::{CLUSTER_FILE_VARIABLE, ClusterError, ClusterSpec, Description, Result, TaskType};

/// What is wrong with the name or IP address of a host, without a port.
pub(super) fn check_host(host: &str) -> Result<(), String> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/,@?#'\"`\\".contains(c);
    if host.is_empty() {
        return Err("there is no host".to_string());
    }
    if let Some((scheme, _)) = host.split_once("://") {
        return Err(format!("leave out {scheme}://"));
    }
    if host.chars().any(odd) {
        return Err("a host is a name or an IP address, without spaces or slashes".to_string());
    }
    if ip(host).is_some_and(|ip| ip.is_unspecified()) {
        return Err("all addresses of a host are none that others can connect to".to_string());
    }
    Ok(())
}

/// The IP address that a host is, if it is no name.
fn ip(host: &str) -> Option<IpAddr> {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    // An IPv6 address may name its network interface.
    let address = inner.unwrap_or(host).split('%').next().unwrap_or_default();
    address.parse().ok()
}

fn is_loopback(host: &str) -> bool {
    let name = host.eq_ignore_ascii_case("localhost");
    name || ip(host).is_some_and(|ip| ip.is_loopback())
}

/// Host and port.
fn split(address: &str) -> Result<(&str, &str), String> {
    if let Some((scheme, rest)) = address.split_once("://") {
        return Err(format!("leave out {scheme}://, write {}", shortened(rest)));
    }
    let form = || "write it as host:port".to_string();
    let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
    if host.contains(':') && !host.starts_with('[') {
        return Err(
            "an IPv6 address needs brackets in front of its port: [2001:db8::1]:8888".into(),
        );
    }
    if host.starts_with('[') && ip(host).is_none_or(|ip| ip.is_ipv4()) {
        return Err("in brackets stands an IPv6 address".to_string());
    }
    Ok((host, port))
}

/// What is wrong with the address of a task. This task's own address may mean all interfaces.
fn check_one(address: &str, is_own: bool) -> Result<(), String> {
    let (host, port) = split(address)?;
    match port.parse::<u16>() {
        Ok(0) => return Err("0 is no port that others can connect to".to_string()),
        Ok(_) => {}
        Err(_) => {
            return Err(format!(
                "'{}' is not a port from 1 to 65535",
                shortened(port)
            ));
        }
    }
    if is_own && ip(host).is_some_and(|ip| ip.is_unspecified()) {
        Ok(())
    } else {
        check_host(host)
    }
}

/// Checks the addresses of all tasks that others connect to; nothing connects to a process alone.
pub(super) fn check(
    spec: &ClusterSpec,
    own_type: TaskType,
    own_id: usize,
    description: &Description,
) -> Result<()> {
    let mut tasks = Vec::new();
    for job in ["chief", "worker", "ps"] {
        let addresses = spec.addresses(job).enumerate();
        tasks.extend(addresses.filter_map(|(index, it)| Some((job, index, it?))));
    }
    let count: usize = ["chief", "worker", "ps"]
        .map(|job| spec.task_count(job))
        .iter()
        .sum();
    if count < 2 || own_type == TaskType::Evaluator {
        return Ok(());
    }
    let refuse = |(job, index, address): (&str, usize, &str), why: String| {
        Err(ClusterError::Address {
            from: source(description),
            job: job.to_string(),
            index,
            address: shortened(address),
            why,
        })
    };
    let mut seen = BTreeMap::new();
    for &(job, index, address) in &tasks {
        let is_own = (job, index) == (own_type.as_str(), own_id);
        if let Err(why) = check_one(address, is_own) {
            return refuse((job, index, address), why);
        }
        // If tasks of several jobs share an address, the second one fails to listen there.
        if let Some(other) = seen.insert((job, address), index) {
            let why = format!("{job} {other} has it too; give each task one of its own");
            return refuse((job, index, address), why);
        }
    }
    let hosts = || {
        tasks
            .iter()
            .filter_map(|task| Some((task, split(task.2).ok()?.0)))
    };
    let elsewhere = hosts().find(|(_, host)| check_host(host).is_ok() && !is_loopback(host));
    let Some((other, _)) = elsewhere else {
        return Ok(());
    };
    match hosts().find(|(_, host)| is_loopback(host)) {
        Some((task, _)) => {
            let why = format!(
                "only its own host reaches it, and {} {} is at {}; write the address by which the \
                 other hosts reach it",
                other.0,
                other.1,
                shortened(other.2)
            );
            refuse(*task, why)
        }
        None => Ok(()),
    }
}

/// Where the addresses of a cluster come from.
fn source(description: &Description) -> String {
    let is_given = |(name, _): &(&str, String)| *name == "cluster";
    if description.overrides.iter().any(is_given) {
        "the cluster that was given (--cluster-spec)".to_string()
    } else {
        let mut variables = description.variables.iter();
        let file = variables.find(|(name, _)| name == CLUSTER_FILE_VARIABLE);
        match file {
            Some((name, path)) => format!("{} (named by {name})", shortened(path)),
            None => description.resolver.to_string(),
        }
    }
}
