//! Jobs on several hosts, all of them this one: a launcher per host, in threads.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use distribute_launch::{Hosts, Job, LaunchError, Outcome, ReservedPorts, Security};
use distribute_launch::{TlsIdentity, Token};
use hostile::alone::is_alone;
use hostile::flood::{Attack, assert_deaf_peers_end, assert_flood_costs_nothing, demands};
use hostile::memory::{forget_peak, peak_bytes};
use serde_json::Value;

use crate::common::{SECRET, Seen, read, script, script_in, security, see};

/// A port that stays free until this is dropped.
pub fn meeting_point() -> (SocketAddr, ReservedPorts) {
    let ports = ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
    (ports.addresses()[0], ports)
}

fn host(address: SocketAddr, count: usize, index: usize) -> Hosts {
    Hosts::new(address, count, index, security()).join_timeout(Duration::from_secs(30))
}

/// Runs these jobs, one per host, at once.
fn see_all(jobs: Vec<Job>) -> Vec<Seen> {
    let (address, _ports) = meeting_point();
    let count = jobs.len();
    let jobs = jobs.into_iter().enumerate();
    let jobs = jobs.map(|(index, job)| job.hosts(host(address, count, index)));
    see_jobs(jobs.collect())
}

pub fn see_jobs(jobs: Vec<Job>) -> Vec<Seen> {
    let threads: Vec<_> = jobs
        .into_iter()
        .map(|job| std::thread::spawn(move || see(job)))
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

#[test]
fn the_processes_of_all_hosts_are_one_cluster() {
    let logs = tempfile::tempdir().unwrap();
    let text = r#"echo $TF_CONFIG; echo $DISTRIBUTE_JOB_TOKEN > "LOGS/$r$i.done"
        while [ "$(ls "LOGS" | grep -c done)" -lt 6 ]; do sleep 0.05; done"#;
    let job = script(&text.replace("LOGS", logs.path().to_str().unwrap()));
    let jobs = vec![
        job.clone().log_directory(logs.path().join("0")).workers(2),
        job.log_directory(logs.path().join("1"))
            .workers(1)
            .parameter_servers(1)
            .evaluator(true),
    ];
    let seen = see_all(jobs);
    for one in &seen {
        assert_eq!(
            *one.outcome(),
            Outcome::Succeeded { restarts: 0 },
            "{}",
            one.stderr
        );
    }
    assert!(seen[0].stdout.starts_with(b"{\"cluster\"") && seen[1].stdout.is_empty());
    let (mut clusters, mut tokens) = (BTreeSet::new(), BTreeSet::new());
    let files = [
        "0/chief-0",
        "0/worker-0",
        "0/worker-1",
        "1/worker-2",
        "1/ps-0",
        "1/evaluator-0",
    ];
    for file in files {
        let log = read(logs.path().join(format!("{file}.log")));
        let config: Value = serde_json::from_str(&log).unwrap();
        let (role, index) = file[2..].split_once('-').unwrap();
        assert_eq!(config["task"]["type"], role);
        assert_eq!(config["task"]["index"].to_string(), index);
        clusters.insert(config["cluster"].to_string());
        tokens.insert(read(logs.path().join(format!("{role}{index}.done"))));
    }
    assert_eq!((clusters.len(), tokens.len()), (1, 1), "{clusters:?}");
    let cluster: Value = serde_json::from_str(clusters.first().unwrap()).unwrap();
    assert_eq!(cluster["worker"].as_array().unwrap().len(), 3);
}

/// Servers need other machines than workers do, and the chief may have one to itself.
#[test]
fn a_host_may_run_servers_only_the_evaluator_only_or_the_chief_only() {
    let text = "if [ $r = chief ]; then echo $TF_CONFIG; exit 0; fi; exec sleep 100";
    let grace = Duration::from_millis(300);
    let job = script(text).workers(0).grace_period(grace);
    let seen = see_all(vec![
        job.clone(),
        job.clone().parameter_servers(2),
        job.clone().workers(2),
        job.clone().evaluator(true),
    ]);
    for one in &seen {
        assert_eq!(
            *one.outcome(),
            Outcome::Succeeded { restarts: 0 },
            "{}",
            one.stderr
        );
    }
    let config: Value = serde_json::from_slice(&seen[0].stdout).unwrap();
    let counts = ["chief", "worker", "ps", "evaluator"].map(|job| {
        let tasks = config["cluster"][job].as_array();
        tasks.map_or(0, Vec::len)
    });
    assert_eq!(counts, [1, 2, 2, 1]);
    let seen = see_all(vec![
        script("exit 0").grace_period(grace),
        job.workers(0).evaluator(true),
    ]);
    for one in &seen {
        assert_eq!(
            *one.outcome(),
            Outcome::Succeeded { restarts: 0 },
            "{}",
            one.stderr
        );
    }
}

#[test]
fn hosts_without_any_worker_or_purpose_are_refused_by_all() {
    let none = script("exec sleep 100").workers(0);
    for (jobs, why) in [
        (
            vec![none.clone(), none.clone().parameter_servers(1)],
            "no host starts a worker",
        ),
        (
            vec![none.clone(), script("exec sleep 100").workers(1)],
            "host 0 starts nothing",
        ),
    ] {
        for one in see_all(jobs) {
            let error = one.result.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
    let (address, _ports) = meeting_point();
    let alone = see(none.clone().parameter_servers(1)).result.unwrap_err();
    assert!(matches!(alone, LaunchError::NoWorkers), "{alone}");
    let purposeless = see(none.hosts(host(address, 2, 1))).result.unwrap_err();
    assert!(
        matches!(purposeless, LaunchError::NoWorkers),
        "{purposeless}"
    );
}

/// As on a machine whose network comes up after the launcher has started.
#[test]
fn an_address_that_is_not_there_yet_is_waited_for() {
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 9000));
    let open = security().insecure();
    let wait = Duration::from_millis(700);
    let hosts = Hosts::new(elsewhere, 2, 0, open).join_timeout(wait);
    let begun = Instant::now();
    let error = see(script("true").hosts(hosts)).result.unwrap_err();
    assert!(matches!(error, LaunchError::Rendezvous { .. }), "{error}");
    assert!(begun.elapsed() >= wait, "{:?}", begun.elapsed());
}

/// As a firewall wants it that passes certain ports only.
#[test]
fn all_ports_of_a_host_are_those_of_a_range() {
    let (at, claims) = meeting_point();
    drop(claims);
    let first = at.port();
    let job = script("echo $TF_CONFIG").workers(2).prefix_output(true);
    let seen = see(job.clone().ports(first..=first.saturating_add(40)));
    assert_eq!(
        *seen.outcome(),
        Outcome::Succeeded { restarts: 0 },
        "{}",
        seen.stderr
    );
    let config: Value = serde_json::from_slice(&seen.stdout).unwrap();
    let port = |text: &str| {
        text.rsplit([':', ' '])
            .next()
            .unwrap()
            .parse::<u16>()
            .unwrap()
    };
    let mut ports: BTreeSet<u16> = BTreeSet::new();
    for address in config["cluster"]["worker"].as_array().unwrap() {
        ports.insert(port(address.as_str().unwrap()));
    }
    assert_eq!(ports.len(), 2, "{ports:?} {}", seen.stderr);
    assert!(
        ports
            .iter()
            .all(|port| (first..=first.saturating_add(40)).contains(port))
    );
    let few = see(job.ports(first..=first)).result.unwrap_err();
    assert!(
        matches!(few, LaunchError::NoPortInRange { needed: 2, .. }),
        "{few}"
    );
}

#[test]
fn a_failure_on_one_host_starts_all_of_them_again() {
    let directory = tempfile::tempdir().unwrap();
    let text = "echo $DISTRIBUTE_RESTART
        if [ $i = 3 ]; then await up$DISTRIBUTE_RESTART; echo why >&2; kill -9 $$; fi
        if [ $i = 0 ]; then > up$DISTRIBUTE_RESTART; fi; exec sleep 100";
    let job = script_in(directory.path(), text);
    let job = job.workers(2).max_restarts(2);
    let seen = see_all(vec![job.clone(), job]);
    assert_eq!(seen[0].outcome(), seen[1].outcome());
    let Outcome::Failed { cause, restarts: 2 } = seen[0].outcome() else {
        panic!("{:?}", seen[0].result);
    };
    assert_eq!(
        (cause.task.index, cause.last_lines.as_slice()),
        (3, &["why".to_owned()][..])
    );
    assert_eq!(seen[0].stdout, b"0\n1\n2\n");
    for one in &seen {
        assert_eq!(
            one.stderr
                .matches("because of rank 3: killed by SIGKILL")
                .count(),
            3
        );
        assert!(
            one.stderr.contains("  rank 0: killed by SIGTERM"),
            "{}",
            one.stderr
        );
    }
}

#[test]
fn workers_that_saved_are_resumed_on_all_hosts() {
    let text = "if [ $DISTRIBUTE_RESTART = 1 ]; then exit 0; fi
        if [ $i = 2 ]; then exit 42; fi; trap 'exit 42' TERM; sleep 100 & wait";
    let job = script(text)
        .workers(1)
        .max_restarts(1)
        .grace_period(Duration::from_millis(500));
    for one in see_all(vec![job.clone(), job.clone(), job]) {
        assert_eq!(
            *one.outcome(),
            Outcome::Succeeded { restarts: 1 },
            "{}",
            one.stderr
        );
    }
}

#[test]
fn that_launchers_talk_in_clear_is_said_once() {
    let (meeting, ports) = meeting_point();
    drop(ports);
    for (address, times) in [("0.0.0.0", 1), ("127.0.0.1", 0)] {
        let address = SocketAddr::new(address.parse().unwrap(), meeting.port());
        let hosts = Hosts::new(address, 2, 0, security().insecure());
        let hosts = hosts.join_timeout(Duration::ZERO);
        let hosts = match times {
            0 => hosts,
            _ => hosts.own_address("192.0.2.1".parse().unwrap()),
        };
        let seen = see(script("exit 0").hosts(hosts));
        let said = format!("warning: the launchers are insecure at {address}: everything but");
        let count = seen.stderr.matches(&said).count();
        assert_eq!(count, times, "{:?}: {}", seen.result, seen.stderr);
    }
}

#[test]
fn a_host_that_never_comes_is_named() {
    let timeout = Duration::from_millis(300);
    let (address, _ports) = meeting_point();
    let missing = host(address, 3, 0).join_timeout(timeout);
    let error = see(script("true").hosts(missing)).result.unwrap_err();
    assert!(matches!(&error, LaunchError::HostsMissing { missing } if *missing == [1, 2]));
    let alone = host(address, 2, 1).join_timeout(timeout);
    let error = see(script("true").hosts(alone)).result.unwrap_err();
    assert!(matches!(error, LaunchError::Rendezvous { .. }), "{error}");
}

#[test]
fn launchers_that_do_not_fit_are_refused() {
    let timeout = Duration::from_secs(2);
    let why = |change: fn(Job, SocketAddr) -> Job| {
        let (address, _ports) = meeting_point();
        let first = script("true").hosts(host(address, 2, 0).join_timeout(timeout));
        let other = change(script("true").hosts(host(address, 2, 1)), address);
        let results = see_jobs(vec![first, other])
            .into_iter()
            .map(|one| one.result.unwrap_err());
        let [first, other]: [LaunchError; 2] = results.collect::<Vec<_>>().try_into().unwrap();
        assert!(matches!(first, LaunchError::HostsMissing { .. }), "{first}");
        assert!(!other.to_string().contains(SECRET));
        other.to_string()
    };
    let secret = why(|job, at| {
        let token = Token::new("another secret of 16 bytes").unwrap();
        job.hosts(Hosts::new(at, 2, 1, Security::default().token(token)))
    });
    assert!(secret.contains("its token is another one"), "{secret}");
    let restarts = why(|job, _| job.max_restarts(7));
    assert!(
        restarts.contains("restarts differ: host 1 has 7, host 0 has 0"),
        "{restarts}"
    );
    let count = why(|job, at| job.hosts(host(at, 3, 1)));
    assert!(count.contains("hosts differ"), "{count}");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let second = host(taken.local_addr().unwrap(), 2, 0);
    let error = see(script("true").hosts(second)).result.unwrap_err();
    assert!(error.to_string().contains("cannot meet at"), "{error}");
}

#[test]
fn a_launcher_that_gives_up_ends_the_others() {
    let logs = tempfile::tempdir().unwrap();
    let first = script("exec sleep 100").log_directory(logs.path());
    let seen = see_all(vec![first, Job::new(["no-such-command-anywhere"])]);
    assert!(matches!(
        seen[1].result,
        Err(LaunchError::CommandNotFound { .. })
    ));
    assert!(matches!(
        seen[0].result,
        Err(LaunchError::HostLost { host: 1 })
    ));

    let start = Instant::now();
    let seen = see_all(vec![
        Job::new(["no-such-command-anywhere"]),
        script("exec sleep 100"),
    ]);
    assert!(matches!(
        seen[0].result,
        Err(LaunchError::CommandNotFound { .. })
    ));
    assert!(matches!(
        seen[1].result,
        Err(LaunchError::HostLost { host: 0 })
    ));
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn options_that_do_not_fit_say_what_to_do() {
    let message = |hosts: Hosts| {
        let error = see(script("true").hosts(hosts)).result.unwrap_err();
        assert!(matches!(error, LaunchError::InvalidHosts { .. }), "{error}");
        error.to_string()
    };
    let (loopback, _ports) = meeting_point();
    assert!(message(host(loopback, 2, 2)).contains("count hosts from 0"));
    let at = |ip: [u8; 4], port| SocketAddr::from((ip, port));
    let zero = message(host(at([127, 0, 0, 1], 0), 2, 0));
    assert!(
        zero.contains("0 is no port") && zero.contains("--rendezvous"),
        "{zero}"
    );
    let everywhere = at([0, 0, 0, 0], 9000);
    assert!(message(host(everywhere, 2, 1)).contains("name the address of host 0"));
    assert!(message(host(everywhere, 2, 0)).contains("--host-address"));
    let there = at([192, 0, 2, 1], 9000);
    let own = |ip: [u8; 4]| message(host(there, 2, 1).own_address(ip.into()));
    assert!(own([127, 0, 0, 1]).contains("other hosts cannot reach"));
    assert!(own([0, 0, 0, 0]).contains("name one"));
    let no_token = Hosts::new(loopback, 1, 0, Security::default());
    assert!(message(no_token).contains("need a common token"));
    let damaged = security().tls(TlsIdentity::new("no PEM", "", ""));
    assert!(message(Hosts::new(loopback, 1, 0, damaged)).contains("CA certificate"));
    assert!(!format!("{:?}", host(loopback, 1, 0)).contains(SECRET));
}

#[test]
fn unauthenticated_peers_at_the_meeting_point_change_nothing() {
    let (address, _ports) = meeting_point();
    let job = |index| script("sleep 0.3").hosts(host(address, 2, index));
    let first = std::thread::spawn({
        let job = job(0);
        move || see(job)
    });
    let connect = || {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    };
    let _silent = connect();
    let mut noisy = connect();
    noisy.write_all(&[0xff; 1000]).unwrap();
    let mut half = connect();
    half.write_all(&[9, 0, 0, 0, b'{']).unwrap();
    let second = see(job(1));
    assert_eq!(*second.outcome(), Outcome::Succeeded { restarts: 0 });
    let start = Instant::now();
    assert_eq!(
        *first.join().unwrap().outcome(),
        Outcome::Succeeded { restarts: 0 }
    );
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "an unauthenticated peer held up the end"
    );
}

/// One connection that comes to nothing.
fn flood_once(address: SocketAddr, bytes: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    // The other side may have closed it already.
    let _ = stream.write_all(bytes);
    Ok(stream)
}

/// Opens `count` connections that fail.
fn flood(address: SocketAddr, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut open = Vec::new();
    while open.len() < count {
        match flood_once(address, bytes) {
            Ok(stream) => open.push(stream),
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    }
    open
}

#[test]
fn a_flood_at_the_meeting_point_delays_no_member() {
    // Nothing, nonsense, and half a greeting.
    let halves: [&[u8]; 3] = [&[], &[0xff; 100], &[9, 0, 0, 0, b'{']];
    for (count, bytes) in [70, 300]
        .into_iter()
        .flat_map(|it| halves.map(|half| (it, half)))
    {
        let (address, _ports) = meeting_point();
        let job = move |index| script("true").hosts(host(address, 2, index));
        let first = std::thread::spawn(move || see(job(0)));
        let _peers = flood(address, count, bytes);
        let start = Instant::now();
        let second = see(job(1));
        assert_eq!(*second.outcome(), Outcome::Succeeded { restarts: 0 });
        let first = first.join().unwrap();
        assert_eq!(*first.outcome(), Outcome::Succeeded { restarts: 0 });
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "{count} of {bytes:?}: {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn unauthenticated_peers_cost_the_meeting_point_nothing() {
    if !is_alone(
        module_path!(),
        "unauthenticated_peers_cost_the_meeting_point_nothing",
    ) {
        return;
    }
    let (address, _ports) = meeting_point();
    let job = move |index| script("true").hosts(host(address, 2, index));
    let first = std::thread::spawn(move || see(job(0)));
    // It listens from now on. What the first connections cost once is not what they keep.
    drop(flood(address, 8, &[]));
    let mut attacks = Attack::all("/launcher");
    // Frames without an end, of the longest kind that is taken.
    attacks.push(Attack::new(4096_u32.to_be_bytes(), [b' '; 1 << 10]));
    attacks.push(Attack::new((4_u32 << 20).to_be_bytes(), [b'['; 1 << 10]));
    forget_peak("self");
    let before = peak_bytes("self");
    for attack in &attacks {
        assert_flood_costs_nothing(address, attack);
    }
    let more = peak_bytes("self") - before;
    println!("{} KiB for all attacks", more >> 10);
    assert!(more < 4 << 20, "{} MiB more", more >> 20);
    let second = see(job(1));
    assert_eq!(*second.outcome(), Outcome::Succeeded { restarts: 0 });
    let first = first.join().unwrap();
    assert_eq!(*first.outcome(), Outcome::Succeeded { restarts: 0 });
}

#[test]
fn unauthenticated_peers_that_never_read_keep_nothing_of_the_meeting_point() {
    if !is_alone(
        module_path!(),
        "unauthenticated_peers_that_never_read_keep_nothing_of_the_meeting_point",
    ) {
        return;
    }
    let (address, _ports) = meeting_point();
    let job = move |index| script("true").hosts(host(address, 2, index));
    let first = std::thread::spawn(move || see(job(0)));
    drop(flood(address, 8, &[]));
    forget_peak("self");
    let before = peak_bytes("self");
    assert_deaf_peers_end(address, &demands());
    let more = peak_bytes("self") - before;
    println!("{} KiB for 24 peers", more >> 10);
    assert!(more < 4 << 20, "{} MiB more", more >> 20);
    let second = see(job(1));
    assert_eq!(*second.outcome(), Outcome::Succeeded { restarts: 0 });
    let first = first.join().unwrap();
    assert_eq!(*first.outcome(), Outcome::Succeeded { restarts: 0 });
}

/// What the launcher of host 1 says before it hears anything.
fn first_words(address: SocketAddr) -> Vec<u8> {
    let listener = TcpListener::bind(address).unwrap();
    let hosts = host(address, 2, 1).join_timeout(Duration::from_secs(1));
    let launcher = std::thread::spawn(move || see(script("true").hosts(hosts)));
    let (mut stream, _) = listener.accept().unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut words = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut words).unwrap();
    drop((stream, listener));
    launcher.join().unwrap().result.unwrap_err();
    [&length[..], &words].concat()
}

#[test]
fn a_flood_that_goes_on_keeps_no_launcher_out() {
    let (address, _ports) = meeting_point();
    // Half a greeting, and a whole one, after which the relay waits for a proof.
    for words in [vec![9, 0, 0, 0, b'{'], first_words(address)] {
        let job = move |index| script("true").hosts(host(address, 2, index));
        let is_over = Arc::new(AtomicBool::new(false));
        let flooding = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                let mut open = VecDeque::new();
                while !is_over.load(Ordering::Relaxed) {
                    open.extend(flood_once(address, &words));
                    if open.len() > 100 {
                        open.pop_front();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        for one in see_jobs(vec![job(0), job(1)]) {
            assert_eq!(*one.outcome(), Outcome::Succeeded { restarts: 0 });
        }
        is_over.store(true, Ordering::Relaxed);
        flooding.join().unwrap();
    }
}

#[test]
fn a_joining_host_tries_again_when_its_connection_breaks() {
    let (address, ports) = meeting_point();
    let timeout = Duration::from_millis(1500);
    let listener = TcpListener::bind(address).unwrap();
    let closing = std::thread::spawn(move || {
        for _ in 0..3 {
            drop(listener.accept().unwrap());
        }
    });
    let job = script("true").hosts(host(address, 2, 1).join_timeout(timeout));
    let joining = std::thread::spawn(move || see(job));
    closing.join().unwrap();
    let error = joining.join().unwrap().result.unwrap_err();
    assert!(matches!(error, LaunchError::Rendezvous { .. }), "{error}");
    drop(ports);
}
