//! `doctor --peers`: who reaches whom among the processes of a job, and how fast.

use std::net::IpAddr;
use std::time::Duration;

use distribute_core::available_cores;
use distribute_core::cluster::TaskType;
use distribute_net::address::split;
use distribute_peers::{Facts, PeersError, PeersOptions, Report, check};
use serde_json::{Value, json};

use crate::cluster::{PlaceFlags, security};
use crate::cpu_features::cpu_features;
use crate::events::{self, EventName};
use crate::failure::Failure;
use crate::flags::{DoctorArgs, OutputFormat, PeersArgs, VERSION};
use crate::notes::note;

/// What to do where nothing says who the others are.
const NO_CLUSTER: &str = "--peers is about the processes of a job, and no cluster is described: \
    start it as the command of `launch`, SLURM, Kubernetes, torchrun or MPI, give TF_CONFIG or \
    --cluster-spec, or --rendezvous HOST:PORT, --hosts and --host on each host";

pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let Some(options) = options(&args.peers)? else {
        note("an evaluator connects to no other process: it takes no part in --peers");
        return Ok(());
    };
    let wait = args.peers.rendezvous_timeout.unwrap_or(60);
    let options = options
        .security(security(args.certs.as_deref(), args.peers.insecure)?)
        .timeout(Duration::from_secs(wait))
        .facts(facts())
        .note(|line| note(&format!("doctor: {line}")));
    let (mut shown, mut is_leader) = (Ok(()), false);
    let checked = check(options, |report| {
        is_leader = true;
        shown = show(report, args.output());
    });
    let problems = checked.map_err(failure)?;
    shown?;
    let what = match problems {
        0 => return Ok(()),
        1 => "1 problem keeps a job of these processes from working".to_string(),
        count => format!("{count} problems keep a job of these processes from working"),
    };
    let place = if is_leader {
        "the report above"
    } else {
        "the output of rank 0"
    };
    Err(Failure::failed(format!("{what}: see {place}")))
}

fn failure(error: PeersError) -> Failure {
    if error.is_permanent() {
        Failure::usage(error)
    } else {
        Failure::failed(error)
    }
}

/// What this process says of itself. (The version without the features, which may differ.)
fn facts() -> Facts {
    let features = VERSION
        .split_once("features: ")
        .map_or("", |(_, names)| names);
    let mut facts =
        Facts::of_this_process(env!("CARGO_PKG_VERSION"), features.trim_end_matches(')'));
    facts.cores = available_cores();
    facts.with_cpu_features(cpu_features())
}

/// The processes and this one's place; `None` for one that connects to no other.
fn options(args: &PeersArgs) -> Result<Option<PeersOptions>, Failure> {
    if let Some(rendezvous) = &args.rendezvous {
        return by_hand(args, rendezvous).map(Some);
    }
    let place = PlaceFlags {
        cluster: args.cluster,
        cluster_spec: args.cluster_spec.as_deref(),
        task_type: args.task_type.as_deref(),
        task_id: args.task_id,
        port: args.port,
        address: args.address.as_deref(),
        rendezvous: None,
    };
    let (_, cluster) = place.resolve()?;
    let cluster = cluster.ok_or_else(|| Failure::usage(NO_CLUSTER))?;
    let workers = cluster.workers();
    let rank = match cluster.task_type() {
        TaskType::Evaluator => return Ok(None),
        TaskType::ParameterServer => workers.len() + cluster.task_id(),
        _ => cluster.rank().unwrap_or_else(|| cluster.task_id()),
    };
    let servers = cluster.parameter_servers();
    let options = PeersOptions::new(rank, workers.into_iter().chain(servers))
        .name(format!("{} {}", cluster.task_type(), cluster.task_id()))
        .own_host(args.address.clone())
        .own_port(cluster.own_port().unwrap_or(0));
    Ok(Some(options))
}

/// One process on each host, which nothing but the flags describes.
fn by_hand(args: &PeersArgs, rendezvous: &str) -> Result<PeersOptions, Failure> {
    let (hosts, host) = (args.hosts.unwrap_or(1), args.host.unwrap_or(0));
    let wrong = |what: &str| Failure::usage(format!("--rendezvous {rendezvous}: {what}"));
    let (name, port) = split(rendezvous).map_err(|error| wrong(&error))?;
    if port == 0 {
        return Err(wrong("0 is no port to meet at: choose one from 1 to 65535"));
    }
    let is_everywhere = name.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if is_everywhere && host > 0 {
        return Err(wrong("give the address by which this host reaches host 0"));
    }
    if host >= hosts {
        return Err(Failure::usage(format!(
            "--host {host} is not below --hosts {hosts}; hosts are numbered from 0"
        )));
    }
    let leader = [Some(rendezvous.to_string())].into_iter();
    let addresses = leader.chain(std::iter::repeat_n(None, hosts - 1));
    Ok(PeersOptions::new(host, addresses)
        .name(format!("host {host}"))
        .own_host(args.address.clone())
        .own_port(args.port.unwrap_or(0)))
}

fn show(report: &Report, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => events::line(&event(report)),
        OutputFormat::Text => events::line(&report.to_string()),
    }
}

fn event(report: &Report) -> String {
    let fields: [(&str, Value); 7] = [
        ("seconds", json!(report.seconds)),
        ("met_seconds", json!(report.met_seconds)),
        ("method", json!(report.method)),
        ("ranks", json!(report.ranks)),
        ("edges", json!(report.edges)),
        ("problems", json!(report.problems)),
        ("notes", json!(report.notes)),
    ];
    events::event(EventName::Peers, fields)
}
