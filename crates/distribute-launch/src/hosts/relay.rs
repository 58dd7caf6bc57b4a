//! The relay of posts, in the launcher of host 0: every post goes to all launchers, in one order.
//!
//! Because all see the same posts in the same order, all come to the same decisions, and none of
//! them has to be told. The relay itself decides nothing.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use distribute_net::exchange;
use distribute_net::handshake::{Hello, Secret};
use distribute_net::peers::{self, Connection};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_stream::{Stream, StreamExt};

use crate::error::{LaunchError, Result};
use crate::events::Event;
use crate::hosts::posts::{Post, PostBody};
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{Frame, Settings, Terms, hello, receive, runtime, send, write};
use crate::job::hosts::Hosts;
use crate::job::workers::WorkerRange;
use crate::report::console::Screen;
use crate::thread_scope::ThreadScope;

/// How long to wait before looking again for an address that this host has not got yet.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How many posts wait for one launcher before it counts as lost, and for the relay itself.
const WAITING_MAX: usize = 1024;
/// How many posts of one host are kept for those that may still come. Until then a host has little
/// more to say than that it is ready.
const KEPT_MAX: usize = 1024;

/// Runs until it is dropped.
pub struct Relay {
    _stopper: oneshot::Sender<()>,
}

impl Relay {
    /// Listens where the launchers meet. An address that this host has not got yet is waited for as
    /// long as the other launchers are.
    pub fn start(
        threads: &ThreadScope<'_, '_>,
        hosts: &Hosts,
        terms: Terms,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<Relay>> {
        let address = hosts.address;
        let failed = |source| LaunchError::Rendezvous { address, source };
        let mut report = WaitReport::new(hosts.join_timeout);
        let listener = loop {
            match TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    if report.is_over() {
                        return Err(failed(error));
                    }
                    report.log_if_due(screen, || {
                        format!("host 0 waits for its address {address}: {error}")
                    })?;
                }
                Err(error) => return Err(failed(error)),
            }
            match received.recv_timeout(RETRY_PAUSE) {
                Ok(Event::Signal(signal)) => return Ok(WaitOutcome::Stopped(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                _ => {}
            }
        };
        let tls = hosts.tls()?;
        let runtime = runtime()?;
        let connections = {
            let _entered = runtime.enter();
            peers::accept(listener, tls, |_, _| {}).map_err(failed)?
        };
        let greeting = Greeting {
            hello: own_hello(hosts, terms).map_err(failed)?,
            secret: hosts.security.secret(),
        };
        let members = Members {
            terms,
            all: (0..hosts.count).map(|_| Member::default()).collect(),
            posts: Vec::new(),
        };
        let (stopper, stop) = oneshot::channel();
        threads.spawn("relay", move || {
            runtime.block_on(run(connections, greeting, members, stop));
        })?;
        Ok(WaitOutcome::Done(Relay { _stopper: stopper }))
    }
}

/// What the relay says of itself.
fn own_hello(hosts: &Hosts, terms: Terms) -> io::Result<Hello> {
    let address = hosts.address;
    let settings = Settings {
        terms,
        own_address: address.ip(),
    };
    // One that listens at all addresses does not know which of them others dial.
    let dialled = match address.ip().is_unspecified() {
        true => String::new(),
        false => address.to_string(),
    };
    hello(hosts, dialled, &settings)
}

async fn run(
    mut connections: impl Stream<Item = io::Result<Connection>> + Unpin,
    greeting: Greeting,
    mut members: Members,
    mut stop: oneshot::Receiver<()>,
) {
    let (inbox, mut said) = mpsc::channel(WAITING_MAX);
    let (mut greetings, mut served) = (JoinSet::new(), JoinSet::new());
    loop {
        tokio::select! {
            _ = &mut stop => break,
            Some(Ok(connection)) = connections.next() => {
                greetings.spawn(greeting.clone().exchange(connection));
            }
            Some(greeted) = greetings.join_next() => {
                // Whoever has not proven itself hears no more.
                if let Ok(Ok(peer)) = greeted {
                    let admitted = members.admit(&peer);
                    served.spawn(serve(peer, admitted, inbox.clone()));
                }
            }
            Some((host, frame)) = said.recv() => members.note(host, frame),
            Some(_) = served.join_next() => {}
        }
    }
    // Members still get what was posted before; strangers wait for nothing.
    drop((connections, greetings, members, said));
    while served.join_next().await.is_some() {}
}

/// The relay's side of every handshake.
#[derive(Clone)]
struct Greeting {
    hello: Hello,
    secret: Secret,
}

/// A launcher that has proven itself.
struct ProvenPeer {
    host: usize,
    settings: Settings,
    connection: Connection,
}

impl Greeting {
    /// Both sides prove that they know the token. The guard of the connection sets the deadline.
    async fn exchange(self, mut connection: Connection) -> io::Result<ProvenPeer> {
        let greeted = exchange::listen(&mut connection, self.hello, &self.secret).await;
        let peer = greeted.map_err(io::Error::other)?.peer;
        Ok(ProvenPeer {
            host: usize::try_from(peer.identity.task).map_err(io::Error::other)?,
            settings: peer.read_details().map_err(io::Error::other)?,
            connection,
        })
    }
}

/// The launchers of all hosts, and what they have told.
struct Members {
    terms: Terms,
    all: Vec<Member>,
    /// All posts until every host has been there, for those that come later.
    posts: Vec<Post>,
}

#[derive(Default)]
struct Member {
    stage: Stage,
    /// What is on its way to it.
    frames: Option<mpsc::Sender<Frame>>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Awaited,
    /// It is told that it is a member. If it does not hear of that, it comes again.
    Welcomed,
    /// It has said something as a member.
    Here,
    Gone,
}

impl Members {
    /// Makes a launcher a member, with the posts that it missed; or says why not.
    fn admit(&mut self, peer: &ProvenPeer) -> Result<mpsc::Receiver<Frame>, String> {
        let ProvenPeer { host, settings, .. } = peer;
        if let Some(why) = self.rejection_reason(*host, settings) {
            return Err(format!("{why}; use the same options everywhere"));
        }
        let own: IpAddr = settings.own_address;
        let guard = peer.connection.guard();
        if !guard.channel().is_for_host(&own.to_string()) {
            return Err(format!(
                "the certificate of host {host} is not for its address {own}; give it the one \
                 that was made for it, or name its address"
            ));
        }
        let missed = self.posts.len() + self.terms.hosts;
        let member = match self.all.get_mut(*host) {
            Some(member) if member.stage == Stage::Awaited => member,
            Some(_) => {
                return Err(format!(
                    "there was a launcher for host {host} already; give every host its own number"
                ));
            }
            None => return Err(format!("there is no host {host}; count hosts from 0")),
        };
        // There is room for all that it missed.
        let (frames, queue) = mpsc::channel(1 + missed + WAITING_MAX);
        let _sent = frames.try_send(Frame::Welcome);
        for post in &self.posts {
            let _sent = frames.try_send(Frame::Post(Box::new(post.clone())));
        }
        *member = Member {
            stage: Stage::Welcomed,
            frames: Some(frames.clone()),
        };
        if self.is_elastic() {
            let here = self.all.iter().enumerate();
            for (host, _) in here.filter(|(_, member)| member.stage == Stage::Here) {
                let _sent = frames.try_send(Frame::Post(Box::new(came_or_lost(host, true))));
            }
        }
        Ok(queue)
    }

    fn rejection_reason(&self, host: usize, settings: &Settings) -> Option<String> {
        let differ = |what, theirs: String, ours: String| {
            let text = format!("{what} differ: host {host} has {theirs}, host 0 has {ours}");
            (theirs != ours).then_some(text)
        };
        let (theirs, ours) = (settings.terms, self.terms);
        let workers = |terms: Terms| match terms.workers {
            Some(WorkerRange { least, most }) => format!("{least}..{most}"),
            None => "one number".to_owned(),
        };
        let hosts = |terms: Terms| terms.hosts.to_string();
        let restarts = |terms: Terms| terms.restarts_max.to_string();
        differ("the numbers of hosts", hosts(theirs), hosts(ours))
            .or_else(|| differ("the numbers of restarts", restarts(theirs), restarts(ours)))
            .or_else(|| differ("the ranges of workers", workers(theirs), workers(ours)))
    }

    /// Whether launchers may come later, and again.
    fn is_elastic(&self) -> bool {
        self.terms.workers.is_some()
    }

    /// Notes what a member has said, or that its connection has ended.
    fn note(&mut self, host: usize, said: Option<Frame>) {
        let Some(member) = self.all.get_mut(host) else {
            return;
        };
        let is_elastic = self.terms.workers.is_some();
        match (said, member.stage) {
            // What was on its way when it went.
            (_, Stage::Gone) => {}
            // Of an elastic job it may come again.
            (Some(Frame::Bye) | None, Stage::Here) if is_elastic => {
                *member = Member::default();
                self.publish(came_or_lost(host, false));
            }
            (Some(Frame::Bye), _) => *member = Member::gone(),
            (Some(frame), stage) => {
                member.stage = Stage::Here;
                if is_elastic && stage != Stage::Here {
                    self.publish(came_or_lost(host, true));
                }
                if let Frame::Post(post) = frame {
                    self.relay(host, *post);
                }
            }
            (None, Stage::Here) => {
                *member = Member::gone();
                self.publish(came_or_lost(host, false));
            }
            (None, Stage::Welcomed) => *member = Member::default(),
            (None, Stage::Awaited) => {}
        }
    }

    /// Tells all what a member says. If one says more than can be kept for hosts that may still
    /// come, it is lost: late hosts would decide otherwise than the others.
    fn relay(&mut self, host: usize, post: Post) {
        let from_host = self.posts.iter().filter(|kept| kept.host == host);
        if from_host.count() < KEPT_MAX {
            return self.publish(Post { host, ..post });
        }
        self.all[host] = Member::gone();
        self.publish(came_or_lost(host, false));
    }

    /// Tells all members, and keeps it for those that may still come.
    fn publish(&mut self, post: Post) {
        let may_come = |member: &Member| matches!(member.stage, Stage::Awaited | Stage::Welcomed);
        // Who comes late to an elastic job waits for its next start.
        if self.is_elastic() || !self.all.iter().any(may_come) {
            self.posts.clear();
        } else {
            self.posts.push(post.clone());
        }
        for member in &mut self.all {
            let frame = Frame::Post(Box::new(post.clone()));
            if let Some(frames) = &member.frames
                && frames.try_send(frame).is_err()
            {
                // Whoever does not read is lost: its connection ends after what is under way.
                member.frames = None;
            }
        }
    }
}

/// That the launcher of a host is there, or is gone.
fn came_or_lost(host: usize, is_here: bool) -> Post {
    let item = match is_here {
        true => PostBody::Came,
        false => PostBody::Lost,
    };
    Post {
        host,
        restart: 0,
        item,
    }
}

impl Member {
    fn gone() -> Member {
        Member {
            stage: Stage::Gone,
            frames: None,
        }
    }
}

/// Serves one launcher until it or the relay goes.
async fn serve(
    peer: ProvenPeer,
    admitted: Result<mpsc::Receiver<Frame>, String>,
    inbox: mpsc::Sender<(usize, Option<Frame>)>,
) {
    let ProvenPeer {
        host,
        mut connection,
        ..
    } = peer;
    let frames = match admitted {
        Ok(frames) => frames,
        Err(why) => {
            let _gone = send(&mut connection, &Frame::Refused(why)).await;
            return;
        }
    };
    let (mut reader, writer) = tokio::io::split(connection);
    let read = async {
        while let Ok(frame) = receive(&mut reader).await {
            let is_last = matches!(frame, Frame::Bye);
            let _over = inbox.send((host, Some(frame))).await;
            if is_last {
                return true;
            }
        }
        false
    };
    let has_left = tokio::select! {
        has_left = read => has_left,
        () = write(writer, frames) => false,
    };
    // Who has said good-bye may be there again by now.
    if !has_left {
        let _over = inbox.send((host, None)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts 0 and 1 are there, host 2 may still come; the queue of host 0.
    fn members() -> (Members, mpsc::Receiver<Frame>) {
        let terms = Terms {
            hosts: 3,
            restarts_max: 0,
            workers: None,
        };
        let (frames, queue) = mpsc::channel(4 * KEPT_MAX);
        let here = |frames| Member {
            stage: Stage::Here,
            frames,
        };
        let members = Members {
            terms,
            all: vec![here(Some(frames)), here(None), Member::default()],
            posts: Vec::new(),
        };
        (members, queue)
    }

    fn done(restart: u32) -> Option<Frame> {
        Some(Frame::Post(Box::new(Post {
            host: 0,
            restart,
            item: PostBody::WorkersDone,
        })))
    }

    #[test]
    fn all_posts_are_kept_for_a_host_that_comes_late() {
        let (mut members, mut queue) = members();
        for restart in 0..800 {
            members.note(0, done(restart));
            members.note(1, done(restart));
        }
        assert_eq!(members.posts.len(), 1600);
        let told = std::iter::from_fn(|| queue.try_recv().ok());
        assert_eq!(told.count(), 1600);
    }

    #[test]
    fn a_host_that_says_more_than_is_kept_is_lost_for_all() {
        let (mut members, mut queue) = members();
        for restart in 0..=KEPT_MAX as u32 + 5 {
            members.note(1, done(restart));
        }
        assert!(members.all[1].stage == Stage::Gone);
        assert_eq!(members.posts.len(), KEPT_MAX + 1);
        let last = std::iter::from_fn(|| queue.try_recv().ok()).last().unwrap();
        let Frame::Post(last) = last else {
            panic!("no post");
        };
        assert!(matches!(last.item, PostBody::Lost) && last.host == 1);
        // The others go on.
        members.note(0, done(0));
        assert_eq!(members.posts.len(), KEPT_MAX + 2);
    }

    #[test]
    fn what_was_on_its_way_revives_nobody() {
        let (mut members, _queue) = members();
        members.note(1, Some(Frame::Bye));
        for said in [Some(Frame::Beat), done(0), None] {
            members.note(1, said);
            assert!(members.all[1].stage == Stage::Gone);
        }
        assert!(members.posts.is_empty());
    }
}
