//! The launchers of several hosts as one: this launcher's connection to the relay, and what the
//! posts so far mean. Decisions follow from posts alone, so they are the same on all hosts.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Token};
use crate::console::Screen;
use crate::events::{Event, Events};
use crate::report::AttemptResult;
use crate::thread_scope::ThreadScope;
use crate::verdict::{Verdict, root_cause};
use crate::wire::{
    Answer, Challenge, Frame, HEARTBEAT_INTERVAL, Hello, Post, PostBody, Side, VERSION, close,
    derive, prepare, proof, random, receive_frame, receive_handshake, send, verify,
};
use crate::{Ending, Hosts, LaunchError, Result, Role, Task};

/// How long to wait before connecting again to a host that does not listen yet.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long one attempt to connect takes: a signal is heard after it at the latest.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked for a signal while an attempt is under way.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// When it is said what is waited for, and how often after that.
const FIRST_REPORT: Duration = Duration::from_secs(2);
const NEXT_REPORT: Duration = Duration::from_secs(20);
const OUTBOX_MAX: usize = 1024;

/// The launchers of all hosts, as this launcher sees them.
pub struct LauncherGroup {
    hosts: Hosts,
    outbox: SyncSender<Frame>,
    own_address: IpAddr,
    posts: Vec<Post>,
    /// Everybody's random number, from which the tokens of the attempts are made.
    nonce: String,
}

/// The whole job in one attempt: its cluster, the tasks of this host, and the token.
pub struct AttemptCluster {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    pub token: Token,
}

/// How waiting for the other hosts ended.
pub enum WaitOutcome<T> {
    Done(T),
    /// A launcher got this signal.
    Stopped(i32),
}

impl LauncherGroup {
    /// Connects to the relay, which may not be there yet, and says what it waits for.
    pub fn join(
        threads: &ThreadScope<'_, '_>,
        hosts: &Hosts,
        restarts_max: u32,
        events: &Events,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<LauncherGroup>> {
        let address = hosts.address;
        let failed = |source| LaunchError::Rendezvous { address, source };
        let stream = match connect(threads, hosts, restarts_max, (received, screen))? {
            WaitOutcome::Done(stream) => stream,
            WaitOutcome::Stopped(signal) => return Ok(WaitOutcome::Stopped(signal)),
        };
        let local = stream.local_addr().map_err(failed)?.ip();
        let (outbox, frames) = sync_channel(OUTBOX_MAX);
        let reader = stream.try_clone().map_err(failed)?;
        let events = events.clone();
        threads.spawn("group posts", move || read(&reader, &events))?;
        threads.spawn("group outbox", move || write(&stream, &frames))?;
        Ok(WaitOutcome::Done(LauncherGroup {
            hosts: hosts.clone(),
            outbox,
            own_address: hosts.own_address.unwrap_or(local),
            posts: Vec::new(),
            nonce: random()?,
        }))
    }

    /// The job is over, and the other hosts know as much as this one. Without this call, they take
    /// the end of the connection for the loss of this host.
    pub fn leave(&self) {
        let _gone = self.outbox.try_send(Frame::Bye);
    }

    /// Where the other hosts reach this one.
    pub fn own_address(&self) -> IpAddr {
        self.own_address
    }

    /// Tells all launchers, this one included.
    pub fn post(&self, restart: u32, item: PostBody) {
        let host = self.hosts.index;
        // Never full but with a connection that is about to be given up.
        let _lost = self.outbox.try_send(Frame::Post(Box::new(Post {
            host,
            restart,
            item,
        })));
    }

    /// Remembers what a launcher has told; an error if one is gone.
    pub fn record(&mut self, post: Post) -> Result<()> {
        let lost = matches!(post.item, PostBody::Lost).then_some(post.host);
        self.posts.push(post);
        match lost {
            Some(host) => Err(LaunchError::HostLost { host }),
            None => Ok(()),
        }
    }

    /// Waits until all hosts are ready for an attempt.
    pub fn wait_for_hosts(
        &mut self,
        restart: u32,
        cluster: Cluster,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<AttemptCluster>> {
        let is_stop = |post: &Post| matches!(post.item, PostBody::Stop(_));
        self.posts
            .retain(|post| post.restart >= restart || is_stop(post));
        self.post(restart, PostBody::Ready(self.nonce.clone(), cluster));
        let mut report = WaitReport::new(self.hosts.join_timeout);
        loop {
            let is_stop = |post: &Post| match post.item {
                PostBody::Stop(signal) => Some(signal),
                _ => None,
            };
            if let Some(signal) = self.posts.iter().find_map(is_stop) {
                return Ok(WaitOutcome::Stopped(signal));
            }
            let ready = self.ready(restart);
            if ready.len() == self.hosts.count {
                return self.attempt_cluster(restart, &ready).map(WaitOutcome::Done);
            }
            let missing = (0..self.hosts.count).filter(|host| !ready.contains_key(host));
            let missing: Vec<usize> = missing.collect();
            if report.is_over() {
                return Err(LaunchError::HostsMissing { missing });
            }
            let here: Vec<usize> = ready.keys().copied().collect();
            report.log_if_due(screen, || self.describe(&here, &missing))?;
            match received.recv_timeout(report.left()) {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) => self.post(restart, PostBody::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LaunchError::HostsMissing { missing });
                }
            }
        }
    }

    /// The hosts that are there and those that are missing, as a message.
    fn describe(&self, here: &[usize], missing: &[usize]) -> String {
        let Hosts { index, address, .. } = self.hosts;
        format!(
            "host {index} waits for the launchers of the hosts {missing:?} to come to {address}; \
             here are {here:?} of {}",
            self.hosts.count
        )
    }

    fn ready(&self, restart: u32) -> BTreeMap<usize, (&String, &Cluster)> {
        let posts = self.posts.iter().filter(|post| post.restart == restart);
        let ready = posts.filter_map(|post| match &post.item {
            PostBody::Ready(nonce, cluster) => Some((post.host, (nonce, cluster))),
            _ => None,
        });
        ready.collect()
    }

    fn attempt_cluster(
        &self,
        restart: u32,
        ready: &BTreeMap<usize, (&String, &Cluster)>,
    ) -> Result<AttemptCluster> {
        let mut cluster = Cluster::default();
        let mut tasks = Vec::new();
        let restart = restart.to_string();
        let mut parts = vec!["distribute-launch job token", &restart];
        for (host, (nonce, part)) in ready {
            parts.push(nonce);
            let added = cluster.append(part);
            if *host == self.hosts.index {
                tasks = added;
            }
        }
        cluster.reconcile_chief(&mut tasks);
        let is_evaluator = |task: &Task| task.role == Role::Evaluator;
        if cluster.tasks().filter(is_evaluator).count() > 1 {
            let what = "more than one host starts an evaluator: ask for it on one".to_owned();
            return Err(LaunchError::InvalidHosts { what });
        }
        let token = derive(&self.hosts.secret, &parts).and_then(|text| Token::from_text(&text));
        let token = token.ok_or_else(|| LaunchError::InvalidHosts {
            what: "the secret cannot be used as a key: choose another".to_owned(),
        })?;
        Ok(AttemptCluster {
            cluster,
            tasks,
            token,
        })
    }

    /// Whether all workers of all hosts have died for good, this one as the last.
    pub fn is_last_worker(&self, restart: u32, task: Task, workers: usize) -> bool {
        let posts = self.posts.iter().filter(|post| post.restart == restart);
        let gone = posts.filter_map(|post| match &post.item {
            PostBody::WorkerGone(task, _) => Some(*task),
            _ => None,
        });
        let gone: Vec<Task> = gone.collect();
        gone.len() == workers && gone.last() == Some(&task)
    }

    /// Whether the workers of all hosts are done, or the chief of the one that has it.
    pub fn workers_are_done(&self, restart: u32) -> bool {
        let is_done = |host| {
            let mut posts = self.posts.iter();
            posts.any(|post| {
                let is_done = matches!(post.item, PostBody::WorkersDone);
                post.host == host && post.restart == restart && is_done
            })
        };
        (0..self.hosts.count).all(is_done)
    }

    /// Sends how this host's part ended, waits for the other hosts, and returns the results of all
    /// hosts as one.
    pub fn gather(
        &mut self,
        restart: u32,
        ended: AttemptResult,
        received: &Receiver<Event>,
    ) -> Result<(AttemptResult, Option<i32>)> {
        self.post(restart, PostBody::Ended(ended));
        loop {
            if let Some(whole) = self.combined(restart) {
                return Ok(whole);
            }
            // The relay says within seconds if a host is gone, and its silence is noticed too.
            match received.recv() {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) => self.post(restart, PostBody::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) => {}
                Err(_) => return Err(LaunchError::HostLost { host: 0 }),
            }
        }
    }

    /// The attempt on all hosts, and the signal that one launcher got before the last host's end.
    fn combined(&self, restart: u32) -> Option<(AttemptResult, Option<i32>)> {
        let mut ended: BTreeMap<usize, &AttemptResult> = BTreeMap::new();
        let mut failures: Vec<(Task, Ending)> = Vec::new();
        let mut signal = None;
        for post in self.posts.iter().filter(|post| post.restart <= restart) {
            match &post.item {
                PostBody::Ended(part) => {
                    ended.insert(post.host, part);
                }
                PostBody::Failed(task, ending) => failures.push((*task, *ending)),
                PostBody::Stop(got) => {
                    signal.get_or_insert(*got);
                }
                _ => {}
            }
            if ended.len() == self.hosts.count {
                break;
            }
        }
        if ended.len() < self.hosts.count {
            return None;
        }
        let parts: Vec<AttemptResult> = ended.into_values().cloned().collect();
        let verdicts: Vec<Verdict> = parts.iter().map(|part| part.verdict).collect();
        let mut whole = AttemptResult::join(parts);
        let number = |task: &Task| whole.number(*task);
        let failures = failures.iter();
        let failures = failures.filter_map(|(task, ending)| Some((number(task)?, *ending)));
        let failures: Vec<(usize, Ending)> = failures.collect();
        whole.verdict = match root_cause(&failures) {
            Some(index) => Verdict::Failed(index),
            None if verdicts.iter().all(|one| *one == Verdict::Succeeded) => Verdict::Succeeded,
            None if signal.is_some() && verdicts.contains(&Verdict::Stopped) => Verdict::Stopped,
            None => Verdict::Preempted,
        };
        Some((whole, signal))
    }
}

/// When to say again what is waited for.
struct WaitReport {
    next: Instant,
    begun: Instant,
    until: Instant,
}

impl WaitReport {
    fn new(timeout: Duration) -> WaitReport {
        let begun = Instant::now();
        WaitReport {
            next: begun + FIRST_REPORT,
            begun,
            until: begun + timeout,
        }
    }

    /// Says it, if it is time. `what` is what is waited for.
    fn log_if_due(&mut self, screen: &Screen<'_>, what: impl FnOnce() -> String) -> Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + NEXT_REPORT;
        let waited = self.begun.elapsed().as_secs();
        let left = self.until.saturating_duration_since(now).as_secs();
        screen.log(&format!(
            "{} (for {waited} s, at most {left} s more)",
            what()
        ))
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Until something is to be said, or the wait is over.
    fn left(&self) -> Duration {
        let wake = self.until.min(self.next);
        wake.saturating_duration_since(Instant::now())
    }
}

/// Connects and proves itself, again and again until the deadline: a connection that breaks says
/// nothing about whether this launcher is welcome.
fn connect(
    threads: &ThreadScope<'_, '_>,
    hosts: &Hosts,
    restarts_max: u32,
    (received, screen): (&Receiver<Event>, &Screen<'_>),
) -> Result<WaitOutcome<TcpStream>> {
    let address = hosts.address;
    let mut report = WaitReport::new(hosts.join_timeout);
    let index = hosts.index;
    let mut last = "it has not answered".to_owned();
    loop {
        let attempt = JoinAttempt::start(threads, hosts, restarts_max)?;
        let source = loop {
            match attempt.outcome.recv_timeout(POLL_INTERVAL) {
                Ok(Ok(stream)) => return Ok(WaitOutcome::Done(stream)),
                Ok(Err(LaunchError::Rendezvous { source, .. })) => break source,
                Ok(Err(refused)) => return Err(refused),
                Err(RecvTimeoutError::Disconnected) => break io::ErrorKind::Other.into(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match received.try_recv() {
                Ok(Event::Signal(signal)) => return Ok(WaitOutcome::Stopped(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                _ => {}
            }
            report.log_if_due(screen, || {
                format!("host {index} waits for the launcher of host 0 at {address}: {last}")
            })?;
        };
        if report.is_over() {
            return Err(LaunchError::Rendezvous { address, source });
        }
        last = source.to_string();
        match received.recv_timeout(RETRY_PAUSE) {
            Ok(Event::Signal(signal)) => return Ok(WaitOutcome::Stopped(signal)),
            Ok(Event::Broken(error)) => return Err(error),
            _ => {}
        }
    }
}

/// One attempt to become a member, on a thread of its own so that a signal is heard meanwhile.
/// Dropping it ends it.
struct JoinAttempt {
    outcome: Receiver<Result<TcpStream>>,
    stream: Arc<JoinConnection>,
}

impl JoinAttempt {
    fn start(
        threads: &ThreadScope<'_, '_>,
        hosts: &Hosts,
        restarts_max: u32,
    ) -> Result<JoinAttempt> {
        let (sender, outcome) = sync_channel(1);
        let stream = Arc::new(JoinConnection::default());
        let (place, hosts) = (stream.clone(), hosts.clone());
        threads.spawn("join the group", move || {
            let _gone = sender.send(try_join(&hosts, restarts_max, &place));
        })?;
        Ok(JoinAttempt { outcome, stream })
    }
}

impl Drop for JoinAttempt {
    fn drop(&mut self) {
        self.stream.end();
    }
}

/// The connection of an attempt, from its begin to the end of the handshake.
#[derive(Default)]
struct JoinConnection(Mutex<JoinProgress>);

#[derive(Default)]
enum JoinProgress {
    /// Dialing, or through with it.
    #[default]
    Nothing,
    Handshake(TcpStream),
    /// The attempt was given up: a connection that is made after that ends at once.
    Ended,
}

impl JoinConnection {
    fn state(&self) -> MutexGuard<'_, JoinProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, stream: TcpStream) {
        let mut state = self.state();
        match &*state {
            JoinProgress::Ended => close(&stream, Shutdown::Both),
            _ => *state = JoinProgress::Handshake(stream),
        }
    }

    fn finish(&self) {
        let mut state = self.state();
        if let JoinProgress::Handshake(_) = &*state {
            *state = JoinProgress::Nothing;
        }
    }

    fn end(&self) {
        let before = std::mem::replace(&mut *self.state(), JoinProgress::Ended);
        if let JoinProgress::Handshake(stream) = before {
            close(&stream, Shutdown::Both);
        }
    }
}

fn try_join(hosts: &Hosts, restarts_max: u32, place: &JoinConnection) -> Result<TcpStream> {
    let address = hosts.address;
    let failed = |source| LaunchError::Rendezvous { address, source };
    let stream = dial(&address).map_err(failed)?;
    place.begin(stream.try_clone().map_err(failed)?);
    handshake(hosts, restarts_max, &stream)?;
    place.finish();
    Ok(stream)
}

/// Connects to somebody who listens there.
fn dial(address: &SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, DIAL_TIMEOUT)?;
    if stream.local_addr()? == stream.peer_addr()? {
        // The system drew this very port for the attempt, which makes TCP answer itself.
        return Err(io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "nobody listens there",
        ));
    }
    Ok(stream)
}

/// Proves to the relay that this launcher knows the secret, and makes sure that the relay does.
fn handshake(hosts: &Hosts, restarts_max: u32, stream: &TcpStream) -> Result<()> {
    let address = hosts.address;
    let failed = |source| LaunchError::Rendezvous { address, source };
    prepare(stream).map_err(failed)?;
    let hello = Hello {
        version: VERSION,
        host: hosts.index,
        hosts: hosts.count,
        restarts_max,
        nonce: random()?,
    };
    send(stream, &hello).map_err(failed)?;
    let challenge: Challenge = receive_handshake(stream).map_err(failed)?;
    let nonce = &challenge.nonce;
    let refused = |why: &str| LaunchError::HostRefused {
        why: why.to_owned(),
    };
    if !verify(&hosts.secret, Side::Relay, &hello, nonce, &challenge.proof) {
        return Err(refused("the secrets differ"));
    }
    let own = proof(&hosts.secret, Side::Launcher, &hello, nonce);
    let own = own.ok_or_else(|| refused("the secret cannot be used as a key"))?;
    send(stream, &own).map_err(failed)?;
    match receive_handshake(stream).map_err(failed)? {
        Answer::Welcome => Ok(()),
        Answer::Refused(why) => Err(refused(&why)),
    }
}

/// Turns posts into events until the connection ends.
fn read(stream: &TcpStream, events: &Events) {
    loop {
        let post = match receive_frame(stream) {
            Ok(Frame::Post(post)) => post,
            Ok(Frame::Beat | Frame::Bye) => continue,
            Err(_) => Box::new(Post {
                host: 0,
                restart: u32::MAX,
                item: PostBody::Lost,
            }),
        };
        let is_last = matches!(post.item, PostBody::Lost);
        if !events.deliver(Event::Post(post)) || is_last {
            return close(stream, Shutdown::Both);
        }
    }
}

fn write(stream: &TcpStream, frames: &Receiver<Frame>) {
    loop {
        let frame = match frames.recv_timeout(HEARTBEAT_INTERVAL) {
            Ok(frame) => frame,
            Err(RecvTimeoutError::Timeout) => Frame::Beat,
            Err(RecvTimeoutError::Disconnected) => return close(stream, Shutdown::Both),
        };
        if send(stream, &frame).is_err() {
            return close(stream, Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Two ports next to each other: Linux gives connections those of one parity first.
    #[test]
    fn a_socket_connected_to_itself_is_no_relay() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port() & !1;
        drop(free);
        let pair = [port, port + 1].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let is_drawn = pair.iter().cycle().take(300_000).any(|at| match dial(at) {
            Ok(stream) => {
                assert_ne!(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
                false
            }
            Err(error) => error.to_string() == "nobody listens there",
        });
        assert!(is_drawn, "chance never drew the port");
    }
}
