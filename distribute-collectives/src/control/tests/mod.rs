//! Ranks as threads over real loopback sockets, and as processes where one is killed or stopped.

mod failures;
mod joining;
mod meeting;
mod neighbours;
mod processes;
mod security;
mod services;
pub(super) mod simulation;
mod unauthenticated;

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use distribute_net::address::BoundListener;
use distribute_net::handshake::{Dialer, Hello, Listener, Purpose, Secret};
use distribute_net::security::Security;

use crate::control::{ARITY, Announcement, ControlPlane, JoinOptions};
use crate::error::{CollectiveError, Result};
use crate::failure::Failure;
use crate::status::GroupStatus;
use crate::testing::{on_threads, within_limit};

/// The open sockets of all ranks of a group, and the list of their addresses: on a loopback address
/// of their own, so that a rank that still dials one that is gone never finds another test there.
fn listeners(world_size: usize) -> (Vec<BoundListener>, Vec<String>) {
    static GROUPS: AtomicU16 = AtomicU16::new(0);
    let [high, low] = GROUPS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    listeners_at(&format!("127.77.{high}.{low}:0"), world_size)
}

/// The same on the usual loopback address, for which certificates are made.
fn usual_listeners(world_size: usize) -> (Vec<BoundListener>, Vec<String>) {
    listeners_at("127.0.0.1:0", world_size)
}

fn listeners_at(address: &str, world_size: usize) -> (Vec<BoundListener>, Vec<String>) {
    let bind = |rank| BoundListener::bind(rank, address, &Security::default()).unwrap();
    let listeners: Vec<_> = (0..world_size).map(bind).collect();
    let text = |listener: &BoundListener| listener.local_addr().to_string();
    let addresses = listeners.iter().map(text).collect();
    (listeners, addresses)
}

fn options(rank: usize, addresses: &[String]) -> JoinOptions {
    JoinOptions {
        rank,
        addresses: addresses.iter().cloned().map(Some).collect(),
        told_address: None,
        group: "test".to_string(),
        generation: 0,
        options: "transport grpc".to_string(),
        rendezvous_timeout: Duration::from_secs(20),
        heartbeat_interval: Duration::from_millis(100),
        heartbeat_misses: 20,
        security: Security::default(),
        announcement: Announcement {
            shared_memory: vec![rank as u8; rank],
            ..Announcement::default()
        },
        interruption: Default::default(),
        lanes: 1,
        arity: ARITY,
    }
}

/// A rank that has joined.
struct Member {
    plane: ControlPlane,
    status: Arc<GroupStatus>,
}

impl Member {
    fn abort(&self, reason: &str) {
        self.plane
            .abort_target()
            .abort(self.plane.shared.rank, reason);
    }
}

fn join(options: JoinOptions, listener: BoundListener) -> Result<Member> {
    let status = Arc::new(GroupStatus::default());
    let plane = ControlPlane::join(options, listener, status.clone())?;
    Ok(Member { plane, status })
}

/// All ranks join at once, each with options that `change` has seen.
fn join_all(
    world_size: usize,
    change: impl Fn(usize, &mut JoinOptions) + Sync,
) -> Vec<Result<Member>> {
    let (listeners, addresses) = usual_listeners(world_size);
    on_threads(listeners.into_iter().enumerate(), |(rank, listener)| {
        let mut options = options(rank, &addresses);
        change(rank, &mut options);
        join(options, listener)
    })
}

fn group(world_size: usize) -> Vec<Member> {
    let joined = join_all(world_size, |_, _| {});
    joined.into_iter().map(Result::unwrap).collect()
}

/// The error of a rank that must not have joined.
fn error_of(result: Result<Member>) -> CollectiveError {
    match result {
        Ok(_) => panic!("the rank has joined"),
        Err(error) => error,
    }
}

/// The reason of a refusal.
fn refusal(result: Result<Member>) -> String {
    match error_of(result) {
        CollectiveError::Refused { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

/// Waits for the first failure that `wanted` accepts.
fn failure_where(status: &GroupStatus, wanted: impl Fn(&Failure) -> bool) -> Failure {
    let (sender, receiver) = mpsc::channel();
    status.on_failure(move || {
        let _ = sender.send(());
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(failure) = status.failures().into_iter().find(&wanted) {
            return failure;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = receiver.recv_timeout(left);
        assert!(waited.is_ok(), "no such failure: {:?}", status.failures());
    }
}

fn failure_of(status: &GroupStatus) -> Failure {
    failure_where(status, |_| true)
}

/// Whether two ranks can prove to each other that they know the same.
fn is_same(one: &Secret, other: &Secret) -> bool {
    let hello = || Hello::new(Purpose::Data, 1, "test");
    let (dialer, first) = Dialer::start(hello(), one).unwrap();
    let listener = Listener::receive(&first).unwrap();
    let (_, answer) = listener.answer(hello(), other, &[]).unwrap();
    dialer.finish(&answer, &[]).is_ok()
}

/// All ranks take part in one gathering.
fn gather_once(members: &[&Member]) {
    std::thread::scope(|scope| {
        for member in members {
            scope.spawn(|| {
                let gathered = member.plane.all_gather(b"x").unwrap();
                assert_eq!(gathered, vec![b"x"; members.len()]);
            });
        }
    });
}
