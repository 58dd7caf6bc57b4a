//! The relay of posts, in the launcher of host 0: every post goes to all launchers, in one order.
//!
//! Because all see the same posts in the same order, all come to the same decisions, and none of
//! them has to be told. The relay itself decides nothing.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{LaunchError, Result};
use crate::hosts::posts::{Post, PostBody};
use crate::hosts::wire::{
    Answer, Challenge, Frame, HEARTBEAT_INTERVAL, Hello, Side, VERSION, close, prepare, proof,
    random, receive_frame, receive_handshake, send, verify,
};
use crate::job::hosts::Hosts;
use crate::thread_scope::ThreadScope;

/// How many posts wait for one launcher before it counts as lost.
const POSTS_MAX: usize = 1024;
/// How many connections there may be that have not proven anything yet; a new one ends the oldest
/// of those that have said nothing, if there is one, else the oldest.
const PENDING_MAX: usize = 64;
const PENDING_MIN: usize = 4;
/// Pending connections take at most this part of the descriptors that the process may have; each
/// takes two.
const PENDING_PART: u64 = 16;
/// The pause after a connection could not be accepted: the process has no descriptors left, and
/// nothing says when it has.
const ACCEPT_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Runs until it is dropped.
pub struct Relay {
    _stopper: OwnedFd,
}

struct RelayShared {
    hosts: Hosts,
    restarts_max: u32,
    state: Mutex<State>,
}

struct State {
    members: Vec<Member>,
    /// How many members have not been told yet that they are some: they may have to come again.
    welcoming: usize,
    /// All posts until every host has been there, for those that come later.
    posts: Vec<Post>,
    /// All connections, the oldest first.
    streams: Vec<Connection>,
    next_stream: u64,
    pending_connections_max: usize,
    is_over: bool,
}

struct Connection {
    number: u64,
    stream: TcpStream,
    stage: PeerStage,
}

/// What is known of who is at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerStage {
    Nothing,
    /// The peer has sent what a launcher sends first.
    Talks,
    /// The peer has proven that it knows the secret.
    Proven,
}

enum Member {
    Awaited,
    Here(SyncSender<Post>, TcpStream),
    Gone,
}

impl Relay {
    pub fn start(threads: &ThreadScope<'_, '_>, hosts: &Hosts, restarts_max: u32) -> Result<Relay> {
        let address = hosts.address;
        let failed = |source| LaunchError::Rendezvous { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (stop, stopper) =
            pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::system("no pipe"))?;
        let members = (0..hosts.count).map(|_| Member::Awaited);
        let shared = Arc::new(RelayShared {
            hosts: hosts.clone(),
            restarts_max,
            state: Mutex::new(State {
                members: members.collect(),
                welcoming: 0,
                posts: Vec::new(),
                streams: Vec::new(),
                next_stream: 0,
                pending_connections_max: pending_connections_max(),
                is_over: false,
            }),
        });
        let scope = threads.clone();
        threads.spawn("relay", move || accept(&scope, &shared, &listener, &stop))?;
        Ok(Relay { _stopper: stopper })
    }
}

/// How many connections of strangers may be there: a flood must not take the descriptors that the
/// launcher needs for its processes.
fn pending_connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let part = limit.map_or(u64::MAX, |limit| limit / PENDING_PART);
    let part = usize::try_from(part).unwrap_or(usize::MAX);
    part.clamp(PENDING_MIN, PENDING_MAX)
}

fn accept(
    threads: &ThreadScope<'_, '_>,
    shared: &Arc<RelayShared>,
    listener: &TcpListener,
    stop: &OwnedFd,
) {
    loop {
        let mut polled = [
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
        if !polled[0].revents().is_empty() {
            break;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => {
                // Whoever waits is still there afterwards, and finds room.
                shared.lock().end_one_pending();
                let mut polled = [PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
                let _woken = poll(&mut polled, Some(&ACCEPT_PAUSE));
                continue;
            }
        };
        let (shared, scope) = (Arc::clone(shared), threads.clone());
        // A connection that gets no thread is closed.
        let _refused = threads.spawn("relay connection", move || {
            let _broken = serve(&scope, &shared, stream);
        });
    }
    let mut state = shared.lock();
    state.is_over = true;
    for member in &mut state.members {
        *member = Member::Gone;
    }
    for connection in &state.streams {
        close(&connection.stream, Shutdown::Read);
    }
}

/// Serves one launcher until it or the relay goes.
fn serve(
    threads: &ThreadScope<'_, '_>,
    shared: &Arc<RelayShared>,
    stream: TcpStream,
) -> io::Result<()> {
    let Some(number) = shared.register(&stream)? else {
        return Ok(());
    };
    let served = shared.handshake(threads, (number, &stream)).map(|host| {
        let is_clean = shared.read(host, &stream);
        shared.leave(host, is_clean);
    });
    shared.lock().streams.retain(|other| other.number != number);
    served
}

impl State {
    /// Ends the connection that is the least likely to be a launcher's. Those that have proven
    /// themselves stay.
    fn end_one_pending(&mut self) {
        let of = |stage| self.streams.iter().position(|one| one.stage == stage);
        if let Some(index) = of(PeerStage::Nothing).or_else(|| of(PeerStage::Talks)) {
            close(&self.streams.remove(index).stream, Shutdown::Both);
        }
    }

    /// Notes what a connection has shown; an error if it had to make room before.
    fn record_stage(&mut self, number: u64, stage: PeerStage) -> io::Result<()> {
        let mut streams = self.streams.iter_mut();
        let found = streams.find(|one| one.number == number);
        found.ok_or(io::ErrorKind::ConnectionAborted)?.stage = stage;
        Ok(())
    }
}

impl RelayShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the connection one that ends with the relay; nothing if that has ended.
    fn register(&self, stream: &TcpStream) -> io::Result<Option<u64>> {
        stream.set_nonblocking(false)?;
        prepare(stream)?;
        let clone = stream.try_clone()?;
        let mut state = self.lock();
        if state.is_over {
            return Ok(None);
        }
        let is_pending = |other: &&Connection| other.stage != PeerStage::Proven;
        if state.streams.iter().filter(is_pending).count() >= state.pending_connections_max {
            state.end_one_pending();
        }
        let number = state.next_stream;
        state.next_stream += 1;
        state.streams.push(Connection {
            number,
            stream: clone,
            stage: PeerStage::Nothing,
        });
        Ok(Some(number))
    }

    /// Both sides prove that they know the secret. Returns who it is, with its posts on their way.
    fn handshake(
        self: &Arc<Self>,
        threads: &ThreadScope<'_, '_>,
        (number, stream): (u64, &TcpStream),
    ) -> io::Result<usize> {
        let secret = &self.hosts.secret;
        let hello: Hello = receive_handshake(stream)?;
        self.lock().record_stage(number, PeerStage::Talks)?;
        let nonce = random().map_err(io::Error::other)?;
        let own = proof(secret, Side::Relay, &hello, &nonce);
        let proof = own.ok_or(io::ErrorKind::InvalidInput)?;
        let challenge = Challenge { nonce, proof };
        send(stream, &challenge)?;
        let received: String = receive_handshake(stream)?;
        if !verify(secret, Side::Launcher, &hello, &challenge.nonce, &received) {
            return refuse(stream, "the secrets differ".to_owned());
        }
        self.lock().record_stage(number, PeerStage::Proven)?;
        if let Some(why) = self.rejection_reason(&hello) {
            return refuse(stream, why);
        }
        let posts = match self.join(hello.host, stream)? {
            Ok(posts) => posts,
            Err(why) => return refuse(stream, why),
        };
        let welcomed = send(stream, &Answer::Welcome).and_then(|()| {
            let writer = stream.try_clone()?;
            threads
                .spawn("relay posts", move || write(&writer, &posts))
                .map_err(io::Error::other)
        });
        let mut state = self.lock();
        state.welcoming -= 1;
        if welcomed.is_err() {
            // The launcher does not know that it is a member, and comes again.
            state.members[hello.host] = Member::Awaited;
        }
        drop(state);
        welcomed.map(|()| hello.host)
    }

    fn rejection_reason(&self, hello: &Hello) -> Option<String> {
        let differ = |what, theirs: String, ours: String| {
            let host = hello.host;
            Some(format!(
                "{what} differ: host {host} has {theirs}, host 0 has {ours}"
            ))
        };
        let (hosts, restarts) = (hello.hosts, hello.restarts_max);
        if hello.version != VERSION {
            let (theirs, ours) = (hello.version.to_string(), VERSION.to_string());
            return differ("the versions of the launchers", theirs, ours);
        }
        if hosts != self.hosts.count {
            return differ(
                "the numbers of hosts",
                hosts.to_string(),
                self.hosts.count.to_string(),
            );
        }
        if restarts != self.restarts_max {
            let ours = self.restarts_max.to_string();
            return differ("the numbers of restarts", restarts.to_string(), ours);
        }
        None
    }

    /// Adds a member, with the posts that it missed; or says why not.
    fn join(&self, host: usize, stream: &TcpStream) -> io::Result<Result<Receiver<Post>, String>> {
        let clone = stream.try_clone()?;
        let mut state = self.lock();
        match state.members.get(host) {
            Some(Member::Awaited) => {}
            Some(_) => return Ok(Err(format!("there was a launcher for host {host} already"))),
            None => return Ok(Err(format!("there is no host {host}"))),
        }
        let (sender, posts) = sync_channel(POSTS_MAX);
        for post in &state.posts {
            if sender.try_send(post.clone()).is_err() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
        }
        state.members[host] = Member::Here(sender, clone);
        state.welcoming += 1;
        Ok(Ok(posts))
    }

    /// Reads a launcher's posts until it goes. Whether it said so.
    fn read(&self, host: usize, stream: &TcpStream) -> bool {
        loop {
            match receive_frame(stream) {
                Ok(Frame::Beat) => {}
                Ok(Frame::Post(post)) => self.publish(Post { host, ..*post }),
                Ok(Frame::Bye) => return true,
                Err(_) => return false,
            }
        }
    }

    fn leave(&self, host: usize, is_clean: bool) {
        let is_over = {
            let mut state = self.lock();
            if let Some(member) = state.members.get_mut(host) {
                *member = Member::Gone;
            }
            state.is_over
        };
        if !is_clean && !is_over {
            let (restart, item) = (0, PostBody::Lost);
            self.publish(Post {
                host,
                restart,
                item,
            });
        }
    }

    /// The lock makes the order the same for everybody.
    fn publish(&self, post: Post) {
        let mut state = self.lock();
        let is_awaited = |member: &Member| matches!(member, Member::Awaited);
        if state.welcoming > 0 || state.members.iter().any(is_awaited) {
            if state.posts.len() < POSTS_MAX {
                state.posts.push(post.clone());
            }
        } else {
            state.posts.clear();
        }
        for member in &state.members {
            if let Member::Here(sender, stream) = member
                && sender.try_send(post.clone()).is_err()
            {
                // Whoever does not read is lost: its connection ends, and its reader says so.
                close(stream, Shutdown::Both);
            }
        }
    }
}

fn refuse<T>(stream: &TcpStream, why: String) -> io::Result<T> {
    send(stream, &Answer::Refused(why))?;
    Err(io::ErrorKind::PermissionDenied.into())
}

/// Sends posts until there are no more to come.
fn write(stream: &TcpStream, posts: &Receiver<Post>) {
    loop {
        let frame = match posts.recv_timeout(HEARTBEAT_INTERVAL) {
            Ok(post) => Frame::Post(Box::new(post)),
            Err(RecvTimeoutError::Timeout) => Frame::Beat,
            Err(RecvTimeoutError::Disconnected) => return close(stream, Shutdown::Write),
        };
        if send(stream, &frame).is_err() {
            return close(stream, Shutdown::Both);
        }
    }
}
