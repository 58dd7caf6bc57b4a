//! The listening side of an offer until a thread has time for it: takes the connections that come,
//! so that unauthenticated peers' connections do not fill the queue in which a member would wait.
//!
//! Everybody on the host can find the name of a Unix socket. Who is another user is turned away at
//! once; of connections that say nothing only a few are kept.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use distribute_net::pending::pending_connections_max;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{self, RecvFlags, SocketFlags};

use crate::shared_memory::layout::MEMBERS_MAX;
use crate::sync::unpoisoned;

/// First bytes of every packet: another program, or another version, is refused.
pub(super) const MAGIC: [u8; 8] = *b"dc-shm-3";
/// How many connections that say nothing are kept: of this host and this user, whose members say
/// something at once.
const SILENT_MAX: usize = 64;
/// The pause after an accept that failed although no unauthenticated peer has a descriptor: nothing
/// says when one is free.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

pub(super) fn same_user(connection: impl AsFd) -> bool {
    sockopt::socket_peercred(connection)
        .is_ok_and(|credentials| credentials.uid == rustix::process::geteuid())
}

/// What a connection has said, as far as can be seen without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstPacket {
    Nothing,
    /// What a member says first.
    Hello,
    /// The peer is no member, or has gone.
    Nonsense,
}

fn peek_first_packet(connection: &OwnedFd) -> FirstPacket {
    let mut start = [0; MAGIC.len()];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match net::recv(connection, &mut start[..], flags) {
        Err(Errno::AGAIN | Errno::INTR) => FirstPacket::Nothing,
        Ok(_) if start == MAGIC => FirstPacket::Hello,
        Ok(_) | Err(_) => FirstPacket::Nonsense,
    }
}

/// Whether something can be read, be it the end.
pub(super) fn has_received(connection: &OwnedFd) -> bool {
    peek_first_packet(connection) != FirstPacket::Nothing
}

/// Connections in the order in which they came.
#[derive(Default)]
struct PendingConnections(Vec<OwnedFd>);

impl PendingConnections {
    /// Ends a connection that sends nonsense, or the oldest one if too many say
    /// nothing; whether there was one.
    fn make_room(&mut self, silent_max: usize) -> bool {
        let said: Vec<FirstPacket> = self.0.iter().map(peek_first_packet).collect();
        let first = |wanted: FirstPacket| said.iter().position(|said| *said == wanted);
        let silent = said
            .iter()
            .filter(|said| **said == FirstPacket::Nothing)
            .count();
        let of_silent = || first(FirstPacket::Nothing).filter(|_| silent > silent_max);
        let index = first(FirstPacket::Nonsense).or_else(of_silent);
        index.map(|index| self.0.remove(index)).is_some()
    }

    /// Takes all connections that wait in the queue; the error of the system if it gives none.
    fn fill(&mut self, listener: &OwnedFd, most: usize) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut look_beyond = most;
        loop {
            match net::accept_with(listener, flags) {
                Ok(connection) if same_user(&connection) => self.0.push(connection),
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(()),
                // Perhaps there are no descriptors left: an unauthenticated peer's is the first to
                // go.
                Err(_) if self.make_room(0) => {}
                Err(error) => return Err(error),
            }
            if self.0.len() > look_beyond && !self.make_room(most) {
                // Members, as it seems, of which there are this many at most.
                self.0.truncate(most + MEMBERS_MAX);
                look_beyond = self.0.len() + most / 2;
            }
        }
    }
}

/// A socket whose connections a thread takes; dropping it ends the thread and closes them.
pub(super) struct BackgroundAcceptor {
    listener: Arc<OwnedFd>,
    waiting: Arc<Mutex<PendingConnections>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundAcceptor {
    /// Takes connections from now on.
    pub(super) fn open(listener: OwnedFd) -> std::io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (listener, waiting) = (
            Arc::new(listener),
            Arc::<Mutex<PendingConnections>>::default(),
        );
        let own = (listener.clone(), waiting.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("distribute-acceptor".to_string())
            .spawn(move || accept_all(&own.0, &own.1, &own.2))?;
        Ok(Self {
            listener,
            waiting,
            stop,
            thread: Some(thread),
        })
    }

    /// The socket, from which the caller takes connections from now on, after these.
    pub(super) fn hand_over(&mut self) -> (&OwnedFd, Vec<OwnedFd>) {
        self.end();
        let taken = std::mem::take(&mut unpoisoned(self.waiting.lock()).0);
        (&self.listener, taken)
    }

    fn end(&mut self) {
        // Fails only when it was told before.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for BackgroundAcceptor {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread.
fn accept_all(listener: &OwnedFd, waiting: &Mutex<PendingConnections>, stop: &OwnedFd) {
    let most = pending_connections_max().min(SILENT_MAX);
    loop {
        let mut fds = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        let filled = unpoisoned(waiting.lock()).fill(listener, most);
        if filled.is_err() {
            // Woken early only to end.
            let _ = poll(&mut fds[..1], Some(&PAUSE));
        }
    }
}
