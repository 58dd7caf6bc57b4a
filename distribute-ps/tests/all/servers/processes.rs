//! Servers as processes that are killed and stopped.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use distribute_ps::{
    ClientOptions, Gradient, ParameterServer, PsError, RoundRobin, RunId, RunOptions,
    ServerOptions, UpdateId, VariableClient, VariableSpec,
};

use super::common::{floats, sgd, values};
use crate::stopwatch::Stopwatch;
use crate::within_limit;

/// Tells the child to be a server, and at which address.
const SERVE: &str = "DISTRIBUTE_PS_TEST_SERVE";

/// A server process; killed at the end.
struct Process {
    child: Child,
    address: String,
    /// Open as long as the child may write.
    _stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(address: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "servers::processes::serve",
                "--nocapture",
                "--test-threads",
                "1",
            ])
            .env(SERVE, address)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(
                stdout.read_line(&mut line).unwrap(),
                0,
                "the server tells its address"
            );
            if let Some((_, address)) = line.split_once("listens at ") {
                break address.trim().to_string();
            }
        };
        Self {
            child,
            address,
            _stdout: stdout,
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &id])
                .status()
                .unwrap()
                .success()
        );
        // Threads stop one after the other.
        while name == "-STOP" && !is_stopped(&id) {
            std::thread::yield_now();
        }
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(process: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.map_while(Result::ok).all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.trim_start().starts_with('T')
    })
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server of the other tests; does nothing by itself.
#[test]
fn serve() {
    let Ok(address) = std::env::var(SERVE) else {
        return;
    };
    let server = ParameterServer::bind(&address, ServerOptions::default()).unwrap();
    println!("listens at {}", server.address());
    server.wait(Some(Duration::from_secs(300))).unwrap();
}

struct Job {
    client: VariableClient,
    run: RunId,
}

impl Job {
    /// Begins a run with one variable, whose shards lie on all servers.
    fn begin(addresses: &[String]) -> Self {
        let client = VariableClient::connect(addresses, ClientOptions::default()).unwrap();
        let run = RunId::random().unwrap();
        client.attach(run, RunOptions::default()).unwrap();
        let spec = VariableSpec {
            name: "w".to_string(),
            shape: vec![4],
            dtype: floats(&[1], |_| 0.0).dtype(),
            optimizer: sgd(1.0),
        };
        let cut = distribute_ps::partitioners::FixedShardsPartitioner {
            num_shards: addresses.len(),
        };
        let mut round_robin = RoundRobin::new(addresses.len()).unwrap();
        let placement = round_robin.place(&spec.shape, 4, Some(&cut)).unwrap();
        let w = client.create(&spec, &placement).unwrap();
        client.initialize(&w, floats(&[4], |_| 0.0)).unwrap();
        Self { client, run }
    }

    fn push(&self, closure: u64) -> distribute_ps::Result<distribute_ps::PushOutcome> {
        let update = UpdateId {
            run: self.run,
            closure,
            sequence: 0,
        };
        let gradient = Gradient::Dense(floats(&[4], |_| -1.0));
        self.client
            .push(update, vec![(self.client.variable("w")?, gradient)], &[])
    }
}

#[test]
fn a_killed_server_is_unavailable_at_once_and_training_resumes_on_a_new_one() {
    within_limit(|| {
        let mut begin = Stopwatch::start();
        let mut servers: Vec<Process> = (0..2).map(|_| Process::start("127.0.0.1:0")).collect();
        let addresses: Vec<String> = servers.iter().map(|it| it.address.clone()).collect();
        let job = Job::begin(&addresses);
        job.push(0).unwrap();
        let checkpoint = job.client.snapshot().unwrap();
        job.push(1).unwrap();
        servers[1].signal("-KILL");
        begin.restart();
        let error = job.push(2).unwrap_err();
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "{:?}",
            begin.elapsed()
        );
        assert!(
            matches!(&error, PsError::Unavailable { server: 1, address, .. }
                if *address == addresses[1]),
            "{error}"
        );
        assert!(error.to_string().contains("checkpoint"), "{error}");
        // The same address again.
        servers[1] = Process::start(&addresses[1]);
        let error = job.push(3).unwrap_err();
        assert!(
            matches!(error, PsError::OtherRun { server: 1, .. }),
            "{error}"
        );
        drop(job);
        let again = Job::begin(&addresses);
        again.client.restore(&checkpoint).unwrap();
        again.push(1).unwrap();
        assert_eq!(values(&again.client.read("w").unwrap()), [2.0; 4]);
        // Servers end when they are asked to.
        again.client.shut_servers_down().unwrap();
        for server in &mut servers {
            assert!(server.child.wait().unwrap().success());
        }
    });
}

#[test]
fn a_stopped_server_is_unavailable_within_five_seconds() {
    within_limit(|| {
        let mut begin = Stopwatch::start();
        let server = Process::start("127.0.0.1:0");
        let job = Job::begin(std::slice::from_ref(&server.address));
        server.signal("-STOP");
        begin.restart();
        let error = job.push(0).unwrap_err();
        let waited = begin.elapsed();
        // One that begins when the connection has just been given up.
        let again = job.push(1).unwrap_err();
        let waited_again = begin.elapsed();
        server.signal("-CONT");
        assert!(
            matches!(error, PsError::Unavailable { server: 0, .. }),
            "{error}"
        );
        let limit = Duration::from_secs(5);
        assert!(
            waited < limit && waited_again < limit,
            "{waited:?}, {waited_again:?}"
        );
        let reason = again.to_string();
        assert!(
            matches!(again, PsError::Unavailable { server: 0, .. }),
            "{reason}"
        );
        assert!(
            reason.contains("accepts connections and does not answer"),
            "{reason}"
        );
        // It comes back as it was; whether the update arrived is no question.
        job.push(0).unwrap();
        assert_eq!(values(&job.client.read("w").unwrap()), [1.0; 4]);
    });
}

/// A variable that takes a while to send.
const LARGE: usize = 24 << 20;

/// A snapshot that is under way when something happens to one of two servers.
fn a_snapshot_meets(signal: &'static str) {
    within_limit(move || {
        let servers: Vec<Process> = (0..2).map(|_| Process::start("127.0.0.1:0")).collect();
        let addresses: Vec<String> = servers.iter().map(|it| it.address.clone()).collect();
        let job = Job::begin(&addresses);
        let cut = distribute_ps::partitioners::FixedShardsPartitioner { num_shards: 2 };
        let spec = VariableSpec {
            name: "large".to_string(),
            shape: vec![LARGE],
            dtype: floats(&[1], |_| 0.0).dtype(),
            optimizer: None,
        };
        let mut round_robin = RoundRobin::new(2).unwrap();
        let placement = round_robin.place(&spec.shape, 4, Some(&cut)).unwrap();
        let large = job.client.create(&spec, &placement).unwrap();
        job.client
            .initialize(&large, floats(&[LARGE], |_| 1.0))
            .unwrap();
        let mut begun = Stopwatch::start();
        job.client.snapshot().unwrap();
        let whole = begun.elapsed();
        let client = job.client.clone();
        let taking = std::thread::spawn(move || client.snapshot());
        std::thread::sleep(whole / 3);
        servers[1].signal(signal);
        begun.restart();
        let error = match taking.join().unwrap() {
            Err(error) => error,
            // It was quicker; the next one is not.
            Ok(_) => job.client.snapshot().unwrap_err(),
        };
        let took = begun.elapsed();
        assert!(
            matches!(error, PsError::Unavailable { server: 1, .. }),
            "{error}"
        );
        assert!(took < Duration::from_secs(5) + whole, "{took:?}");
    });
}

#[test]
fn a_snapshot_ends_soon_when_a_server_is_killed_in_the_middle() {
    a_snapshot_meets("-KILL");
}

#[test]
fn a_snapshot_ends_soon_when_a_server_is_stopped_in_the_middle() {
    a_snapshot_meets("-STOP");
}
