//! Calls that are broken off, or do not go on, over loopback.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use burn::tensor::{DType, TensorData};
use distribute_core::Sgd;
use distribute_net::handshake::Purpose;
use distribute_net::security::Security;

use crate::rpc::clock::new_clock;
use crate::rpc::driver::Driver;
use crate::rpc::message::{Outgoing, framed};
use crate::rpc::{Channel, RpcOptions};
use crate::server::store::Run;
use crate::server::{ParameterServer, ServerOptions};
use crate::update::{RunId, RunOptions, Staleness, StalenessPolicy};
use crate::wire::{Outcome, Part, Push, Request};
use crate::{
    ClientOptions, Gradient, OptimizerSpec, PsError, PushOutcome, Result, RoundRobin, UpdateId,
    VariableClient, VariableRef, VariableSpec,
};

const LIMIT: Duration = Duration::from_secs(60);

/// One server with one variable, whose run lets pushes wait.
struct Job {
    server: ParameterServer,
    client: VariableClient,
    id: RunId,
    w: VariableRef,
}

impl Job {
    fn new(options: ServerOptions, elements: usize, bound: u64, wait_timeout: Duration) -> Self {
        let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
        let client = Self::connect(&server, LIMIT);
        let (id, policy) = (RunId::random().unwrap(), StalenessPolicy::Wait);
        let rules = RunOptions {
            staleness: Some(Staleness { bound, policy }),
            wait_timeout,
            ..RunOptions::default()
        };
        client.attach(id, rules).unwrap();
        let spec = VariableSpec {
            name: "w".to_string(),
            shape: vec![elements],
            dtype: DType::F32,
            optimizer: Some(OptimizerSpec::of(&Sgd::new(1.0))),
        };
        let placement = RoundRobin::new(1).unwrap().place(&spec.shape, 4, None);
        let w = client.create(&spec, &placement.unwrap()).unwrap();
        client.initialize(&w, floats(elements, 0.0)).unwrap();
        Self {
            server,
            client,
            id,
            w,
        }
    }

    fn connect(server: &ParameterServer, timeout: Duration) -> VariableClient {
        let options = ClientOptions {
            timeout,
            ..ClientOptions::default()
        };
        VariableClient::connect(&[server.address().to_string()], options).unwrap()
    }

    fn run(&self) -> Arc<Run> {
        self.server.store.run(self.id).unwrap()
    }

    fn pull(&self, closure: u64) {
        let w = std::slice::from_ref(&self.w);
        self.client.pull(w, &[], Some(closure)).unwrap();
    }

    fn push(&self, client: &VariableClient, closure: u64) -> Result<PushOutcome> {
        let update = UpdateId {
            run: self.id,
            closure,
            sequence: 0,
        };
        let elements = self.w.shape()[0];
        let gradient = Gradient::Dense(floats(elements, -1.0));
        client.push(update, vec![(self.w.clone(), gradient)], &[])
    }

    fn value(&self) -> f32 {
        self.client.read("w").unwrap().as_slice::<f32>().unwrap()[0]
    }
}

fn floats(elements: usize, value: f32) -> TensorData {
    TensorData::new(vec![value; elements], [elements])
}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

/// The call of a push ends while the push is being applied: it counts for the bound of the others,
/// and its gradients for the memory, until it is applied.
#[test]
fn a_push_whose_call_is_broken_off_while_it_is_applied_counts() {
    let job = Job::new(ServerOptions::default(), 4, 1, Duration::from_millis(300));
    let hasty = Job::connect(&job.server, Duration::from_millis(500));
    hasty.join(job.id).unwrap();
    [1, 2].into_iter().for_each(|closure| job.pull(closure));
    let (run, free) = (job.run(), job.server.store.payloads.free());
    let closed = run.closed();
    let error = job.push(&hasty, 1).unwrap_err();
    assert!(matches!(error, PsError::Timeout { .. }), "{error}");
    // The server has read that the call has ended when it answers the next ones.
    (0..3).for_each(|_| drop(hasty.variables().unwrap()));
    assert!(job.server.store.payloads.free() < free, "its gradients");
    drop(closed);
    until("it is applied", || job.value() == 1.0);
    until("memory is free", || {
        job.server.store.payloads.free() == free
    });
    // Closure 2 was overtaken once: by another push it would be overtaken too often.
    job.pull(3);
    let error = job.push(&job.client, 3).unwrap_err();
    assert!(matches!(error, PsError::StalenessTimeout { .. }), "{error}");
    job.push(&job.client, 2).unwrap();
    job.push(&job.client, 3).unwrap();
    assert_eq!(job.value(), 3.0);
}

/// As [`a_push_whose_call_is_broken_off_while_it_is_applied_counts`], of an assignment.
#[test]
fn an_assignment_whose_call_is_broken_off_while_it_is_applied_holds_its_memory() {
    let job = Job::new(ServerOptions::default(), 4, 1, LIMIT);
    let hasty = Job::connect(&job.server, Duration::from_millis(500));
    hasty.join(job.id).unwrap();
    let (run, free) = (job.run(), job.server.store.payloads.free());
    let closed = run.closed();
    let error = hasty.initialize(&job.w, floats(4, 7.0)).unwrap_err();
    assert!(matches!(error, PsError::Timeout { .. }), "{error}");
    (0..3).for_each(|_| drop(hasty.variables().unwrap()));
    assert!(job.server.store.payloads.free() < free, "its values");
    drop(closed);
    until("it is applied", || job.value() == 7.0);
    until("memory is free", || {
        job.server.store.payloads.free() == free
    });
}

/// Pushes that wait for their turn leave their gradients unread, and those that wait for memory,
/// too: however many of one connection do, the one that they wait for comes through.
#[test]
fn pushes_that_wait_leave_room_for_the_one_that_they_wait_for() {
    const ELEMENTS: usize = 3 << 19;
    const OTHERS: u64 = 6;
    let options = ServerOptions {
        // One gradient at a time.
        max_payload_bytes: 4 * ELEMENTS as u64,
        ..ServerOptions::default()
    };
    let job = Job::new(options, ELEMENTS, OTHERS, LIMIT);
    let shared = Job::connect(&job.server, Duration::from_secs(20));
    shared.join(job.id).unwrap();
    job.pull(0);
    for closure in 0..OTHERS {
        let closure = 100 + closure;
        job.pull(closure);
        job.push(&job.client, closure).unwrap();
    }
    (1..=OTHERS).for_each(|closure| job.pull(closure));
    // Closure 0 was overtaken as often as it may be: the others wait for it.
    std::thread::scope(|scope| {
        let (done, waiting) = channel();
        for closure in 1..=OTHERS {
            let (done, job, shared) = (done.clone(), &job, &shared);
            scope.spawn(move || done.send(job.push(shared, closure)).unwrap());
        }
        let early = waiting.recv_timeout(Duration::from_secs(1));
        assert!(early.is_err(), "it has overtaken: {early:?}");
        job.push(&shared, 0).unwrap();
        for _ in 1..=OTHERS {
            waiting.recv().unwrap().unwrap();
        }
    });
    assert_eq!(job.value(), (2 * OTHERS + 1) as f32);
}

/// Makes a push whose gradient of `w` comes byte by byte, one in 20 ms; what is answered.
fn trickles(job: &Job) -> Result<Vec<Outcome>> {
    let clock = new_clock();
    let driver = Driver::start("trickle".to_string(), "", clock.clone()).unwrap();
    let mut options = RpcOptions::new(Purpose::ParameterServer, None, Security::default());
    options.clock = clock;
    let address = job.server.address().to_string();
    let bytes = 4 * job.w.shape()[0] as u64;
    let part = Part {
        id: 0,
        dtype: DType::F32,
        base: None,
        rows: None,
        bytes,
    };
    let request = Request::Push(Push {
        update: (1, 0),
        parts: vec![part],
        is_prepared: false,
    });
    let message = framed(&(job.id, request)).freeze();
    driver.run(async move {
        let mut channel = Channel::connect(&address, &options, LIMIT).await.unwrap();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        sender.send(message).await.unwrap();
        tokio::spawn(async move {
            for _ in 0..bytes {
                if sender.send(bytes::Bytes::from_static(&[0])).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut reader = channel.call(Outgoing::stream(receiver)).await.unwrap();
        reader.header::<Result<Vec<Outcome>>>().await.unwrap()
    })
}

/// A member that has been given all memory and sends slowly does not hold up all others: its push
/// fails, and may come again.
#[test]
fn a_push_that_comes_too_slowly_gives_its_memory_and_its_turn_back() {
    const ELEMENTS: usize = 1 << 12;
    let options = ServerOptions {
        max_payload_bytes: 4 * ELEMENTS as u64,
        progress_timeout: Duration::from_secs(1),
        ..ServerOptions::default()
    };
    let job = Job::new(options, ELEMENTS, 0, LIMIT);
    job.pull(1);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| trickles(&job));
        until("it has the memory", || {
            job.server.store.payloads.free() == 0
        });
        // Needs the memory, and its turn.
        job.push(&job.client, 1).unwrap();
        let error = slow.join().unwrap().unwrap_err();
        assert!(matches!(error, PsError::Deadline { .. }), "{error}");
    });
    assert_eq!(job.value(), 1.0);
}
