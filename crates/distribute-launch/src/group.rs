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
use crate::crew::Crew;
use crate::events::{Event, Events};
use crate::report::Ended;
use crate::verdict::{Verdict, root_cause};
use crate::wire::{
    Answer, BEAT, Challenge, Frame, Hello, Item, Post, Side, VERSION, close, derive, prepare,
    proof, random, receive_frame, receive_greeting, send, verify,
};
use crate::{Ending, Hosts, LaunchError, Result, Role, Task};

/// How long to wait before connecting again to a host that does not listen yet.
const RETRY: Duration = Duration::from_millis(200);
/// How long one attempt to connect takes: a signal is heard after it at the latest.
const DIAL: Duration = Duration::from_secs(1);
/// How often it is looked for a signal while an attempt is under way.
const LOOK: Duration = Duration::from_millis(50);
/// When it is said what is waited for, and how often after that.
const FIRST_REPORT: Duration = Duration::from_secs(2);
const NEXT_REPORT: Duration = Duration::from_secs(20);
const OUTBOX_MAX: usize = 1024;

/// This launcher among those of the other hosts.
pub struct Group {
    hosts: Hosts,
    outbox: SyncSender<Frame>,
    own_address: IpAddr,
    posts: Vec<Post>,
    /// Everybody's random number, from which the tokens of the attempts are made.
    nonce: String,
}

/// Where this host's processes stand in the whole job.
pub struct Place {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    pub token: Token,
}

/// What came of waiting for the other hosts.
pub enum Waited<T> {
    Done(T),
    /// A launcher got this signal.
    Stopped(i32),
}

impl Group {
    /// Connects to the relay, which may not be there yet, and says what it waits for.
    pub fn join(
        crew: &Crew<'_, '_>,
        hosts: &Hosts,
        restarts_max: u32,
        events: &Events,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<Waited<Group>> {
        let address = hosts.address;
        let failed = |source| LaunchError::Rendezvous { address, source };
        let stream = match connect(crew, hosts, restarts_max, (received, screen))? {
            Waited::Done(stream) => stream,
            Waited::Stopped(signal) => return Ok(Waited::Stopped(signal)),
        };
        let local = stream.local_addr().map_err(failed)?.ip();
        let (outbox, frames) = sync_channel(OUTBOX_MAX);
        let reader = stream.try_clone().map_err(failed)?;
        let events = events.clone();
        crew.spawn("group posts", move || read(&reader, &events))?;
        crew.spawn("group outbox", move || write(&stream, &frames))?;
        Ok(Waited::Done(Group {
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
    pub fn post(&self, restart: u32, item: Item) {
        let host = self.hosts.index;
        // Never full but with a connection that is about to be given up.
        let _lost = self.outbox.try_send(Frame::Post(Box::new(Post {
            host,
            restart,
            item,
        })));
    }

    /// Remembers what a launcher has told; an error if one is gone.
    pub fn take(&mut self, post: Post) -> Result<()> {
        let lost = matches!(post.item, Item::Lost).then_some(post.host);
        self.posts.push(post);
        match lost {
            Some(host) => Err(LaunchError::HostLost { host }),
            None => Ok(()),
        }
    }

    /// Waits until all hosts are ready for an attempt.
    pub fn meet(
        &mut self,
        restart: u32,
        cluster: Cluster,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<Waited<Place>> {
        let is_stop = |post: &Post| matches!(post.item, Item::Stop(_));
        self.posts
            .retain(|post| post.restart >= restart || is_stop(post));
        self.post(restart, Item::Ready(self.nonce.clone(), cluster));
        let mut report = Report::new(self.hosts.join_timeout);
        loop {
            let is_stop = |post: &Post| match post.item {
                Item::Stop(signal) => Some(signal),
                _ => None,
            };
            if let Some(signal) = self.posts.iter().find_map(is_stop) {
                return Ok(Waited::Stopped(signal));
            }
            let ready = self.ready(restart);
            if ready.len() == self.hosts.count {
                return self.place(restart, &ready).map(Waited::Done);
            }
            let missing = (0..self.hosts.count).filter(|host| !ready.contains_key(host));
            let missing: Vec<usize> = missing.collect();
            if report.is_over() {
                return Err(LaunchError::HostsMissing { missing });
            }
            let here: Vec<usize> = ready.keys().copied().collect();
            report.say(screen, || self.describe(&here, &missing))?;
            match received.recv_timeout(report.left()) {
                Ok(Event::Post(post)) => self.take(*post)?,
                Ok(Event::Signal(signal)) => self.post(restart, Item::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LaunchError::HostsMissing { missing });
                }
            }
        }
    }

    /// Who is there and who is not.
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
            Item::Ready(nonce, cluster) => Some((post.host, (nonce, cluster))),
            _ => None,
        });
        ready.collect()
    }

    fn place(&self, restart: u32, ready: &BTreeMap<usize, (&String, &Cluster)>) -> Result<Place> {
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
        cluster.settle(&mut tasks);
        let is_evaluator = |task: &Task| task.role == Role::Evaluator;
        if cluster.tasks().filter(is_evaluator).count() > 1 {
            let what = "more than one host starts an evaluator: ask for it on one".to_owned();
            return Err(LaunchError::InvalidHosts { what });
        }
        let token = derive(&self.hosts.secret, &parts).and_then(|text| Token::from_text(&text));
        let token = token.ok_or_else(|| LaunchError::InvalidHosts {
            what: "the secret cannot be used as a key: choose another".to_owned(),
        })?;
        Ok(Place {
            cluster,
            tasks,
            token,
        })
    }

    /// Whether all workers of all hosts have died for good, this one as the last.
    pub fn is_last_worker(&self, restart: u32, task: Task, workers: usize) -> bool {
        let posts = self.posts.iter().filter(|post| post.restart == restart);
        let gone = posts.filter_map(|post| match &post.item {
            Item::WorkerGone(task, _) => Some(*task),
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
                let is_done = matches!(post.item, Item::WorkersDone);
                post.host == host && post.restart == restart && is_done
            })
        };
        (0..self.hosts.count).all(is_done)
    }

    /// Tells how this host's part ended and waits for the other hosts; then all as one.
    pub fn gather(
        &mut self,
        restart: u32,
        ended: Ended,
        received: &Receiver<Event>,
    ) -> Result<(Ended, Option<i32>)> {
        self.post(restart, Item::Ended(ended));
        loop {
            if let Some(whole) = self.whole(restart) {
                return Ok(whole);
            }
            // The relay says within seconds if a host is gone, and its silence is noticed too.
            match received.recv() {
                Ok(Event::Post(post)) => self.take(*post)?,
                Ok(Event::Signal(signal)) => self.post(restart, Item::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) => {}
                Err(_) => return Err(LaunchError::HostLost { host: 0 }),
            }
        }
    }

    /// The attempt on all hosts, and the signal that one launcher got before the last host's end.
    fn whole(&self, restart: u32) -> Option<(Ended, Option<i32>)> {
        let mut ended: BTreeMap<usize, &Ended> = BTreeMap::new();
        let mut failures: Vec<(Task, Ending)> = Vec::new();
        let mut signal = None;
        for post in self.posts.iter().filter(|post| post.restart <= restart) {
            match &post.item {
                Item::Ended(part) => {
                    ended.insert(post.host, part);
                }
                Item::Failed(task, ending) => failures.push((*task, *ending)),
                Item::Stop(got) => {
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
        let parts: Vec<Ended> = ended.into_values().cloned().collect();
        let verdicts: Vec<Verdict> = parts.iter().map(|part| part.verdict).collect();
        let mut whole = Ended::join(parts);
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
struct Report {
    next: Instant,
    begun: Instant,
    until: Instant,
}

impl Report {
    fn new(patience: Duration) -> Report {
        let begun = Instant::now();
        Report {
            next: begun + FIRST_REPORT,
            begun,
            until: begun + patience,
        }
    }

    /// Says it, if it is time. `what` is what is waited for.
    fn say(&mut self, screen: &Screen<'_>, what: impl FnOnce() -> String) -> Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + NEXT_REPORT;
        let waited = self.begun.elapsed().as_secs();
        let left = self.until.saturating_duration_since(now).as_secs();
        screen.say(&format!(
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
    crew: &Crew<'_, '_>,
    hosts: &Hosts,
    restarts_max: u32,
    (received, screen): (&Receiver<Event>, &Screen<'_>),
) -> Result<Waited<TcpStream>> {
    let address = hosts.address;
    let mut report = Report::new(hosts.join_timeout);
    let index = hosts.index;
    let mut last = "it has not answered".to_owned();
    loop {
        let attempt = Attempt::start(crew, hosts, restarts_max)?;
        let source = loop {
            match attempt.outcome.recv_timeout(LOOK) {
                Ok(Ok(stream)) => return Ok(Waited::Done(stream)),
                Ok(Err(LaunchError::Rendezvous { source, .. })) => break source,
                Ok(Err(refused)) => return Err(refused),
                Err(RecvTimeoutError::Disconnected) => break io::ErrorKind::Other.into(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match received.try_recv() {
                Ok(Event::Signal(signal)) => return Ok(Waited::Stopped(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                _ => {}
            }
            report.say(screen, || {
                format!("host {index} waits for the launcher of host 0 at {address}: {last}")
            })?;
        };
        if report.is_over() {
            return Err(LaunchError::Rendezvous { address, source });
        }
        last = source.to_string();
        match received.recv_timeout(RETRY) {
            Ok(Event::Signal(signal)) => return Ok(Waited::Stopped(signal)),
            Ok(Event::Broken(error)) => return Err(error),
            _ => {}
        }
    }
}

/// One attempt to become a member, on a thread of its own so that a signal is heard meanwhile.
/// Dropping it ends it.
struct Attempt {
    outcome: Receiver<Result<TcpStream>>,
    stream: Arc<InProgress>,
}

impl Attempt {
    fn start(crew: &Crew<'_, '_>, hosts: &Hosts, restarts_max: u32) -> Result<Attempt> {
        let (sender, outcome) = sync_channel(1);
        let stream = Arc::new(InProgress::default());
        let (place, hosts) = (stream.clone(), hosts.clone());
        crew.spawn("join the group", move || {
            let _gone = sender.send(attempt(&hosts, restarts_max, &place));
        })?;
        Ok(Attempt { outcome, stream })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.stream.end();
    }
}

/// The connection of an attempt, from its begin to the end of the handshake.
#[derive(Default)]
struct InProgress(Mutex<Progress>);

#[derive(Default)]
enum Progress {
    /// Dialing, or through with it.
    #[default]
    Nothing,
    Handshake(TcpStream),
    /// The attempt was given up: a connection that is made after that ends at once.
    Ended,
}

impl InProgress {
    fn state(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, stream: TcpStream) {
        let mut state = self.state();
        match &*state {
            Progress::Ended => close(&stream, Shutdown::Both),
            _ => *state = Progress::Handshake(stream),
        }
    }

    fn finish(&self) {
        let mut state = self.state();
        if let Progress::Handshake(_) = &*state {
            *state = Progress::Nothing;
        }
    }

    fn end(&self) {
        let before = std::mem::replace(&mut *self.state(), Progress::Ended);
        if let Progress::Handshake(stream) = before {
            close(&stream, Shutdown::Both);
        }
    }
}

fn attempt(hosts: &Hosts, restarts_max: u32, place: &InProgress) -> Result<TcpStream> {
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
    let stream = TcpStream::connect_timeout(address, DIAL)?;
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
    let challenge: Challenge = receive_greeting(stream).map_err(failed)?;
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
    match receive_greeting(stream).map_err(failed)? {
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
                item: Item::Lost,
            }),
        };
        let is_last = matches!(post.item, Item::Lost);
        if !events.deliver(Event::Post(post)) || is_last {
            return close(stream, Shutdown::Both);
        }
    }
}

fn write(stream: &TcpStream, frames: &Receiver<Frame>) {
    loop {
        let frame = match frames.recv_timeout(BEAT) {
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
