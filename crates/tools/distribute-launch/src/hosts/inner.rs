//! A launcher that others are connected to: it passes posts of all down to them, and what they
//! say up to its own parent.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use distribute_net::peers;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::StreamExt;

use crate::hosts::branch::{Branch, LinkEvent, Upward};
use crate::hosts::children::{Greeting, Inbox, NO_TLS, ProvenPeer, serve};
use crate::hosts::log::Log;
use crate::hosts::members::Rejection;
use crate::hosts::part::Part;
use crate::hosts::wire::{Frame, Listed, Pace, Session, Settings, Terms, Welcome, hello};
use crate::job::hosts::Hosts;
use crate::job::ports::ReservedPorts;

/// How many frames of the launchers below wait for the connection to the parent, and for this
/// launcher, before the launchers below have to wait.
const WAITING_MAX: usize = 64;
/// How often children that are away for long are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How many refusals wait to be reported; more are left out.
const REFUSALS_MAX: usize = 16;

/// Where other launchers connect to this one.
pub struct Door {
    listener: TcpListener,
    pub address: SocketAddr,
    /// Keeps the port from processes of the job.
    _claim: ReservedPorts,
}

impl Door {
    /// Listens at a port of this range, or at any that is free.
    pub fn open(at: IpAddr, ports: Option<RangeInclusive<u16>>) -> io::Result<Door> {
        let claim = match ports {
            Some(range) => ReservedPorts::within(1, at, range)?,
            None => Some(ReservedPorts::new(1, at)?),
        };
        let claim = claim.ok_or(io::ErrorKind::AddrInUse)?;
        let address = *claim.addresses().first().ok_or(io::ErrorKind::AddrInUse)?;
        Ok(Door {
            listener: TcpListener::bind(address)?,
            address,
            _claim: claim,
        })
    }
}

/// What a launcher knows of those below it.
pub struct Inner {
    branch: Mutex<Branch>,
    arity: usize,
    /// Where frames for the relay go, while there is a parent.
    up: Mutex<Option<mpsc::Sender<Frame>>>,
    /// Whether launchers may connect.
    is_open: AtomicBool,
    /// Something that the parent is to know has changed.
    pub changed: Notify,
    /// A child has gone.
    gone: Notify,
}

impl Inner {
    pub fn new(arity: usize, pace: Pace) -> Arc<Inner> {
        Arc::new(Inner {
            branch: Mutex::new(Branch::new(pace.away())),
            arity,
            up: Mutex::default(),
            is_open: AtomicBool::new(false),
            changed: Notify::new(),
            gone: Notify::new(),
        })
    }

    fn branch(&self) -> MutexGuard<'_, Branch> {
        self.branch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) -> MutexGuard<'_, Option<mpsc::Sender<Frame>>> {
        self.up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This launcher has a parent: returns what those below have for the relay.
    pub fn plug(&self) -> mpsc::Receiver<Frame> {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        *self.up() = Some(sender);
        self.is_open.store(true, Ordering::Relaxed);
        // What was sent over an earlier connection may be lost.
        self.branch().ask_again();
        receiver
    }

    /// The connection to the parent is broken. What those below say is dropped; they say it again
    /// later.
    pub fn unplug(&self) {
        *self.up() = None;
    }

    /// Who is below this launcher.
    pub fn census(&self) -> Vec<Listed> {
        self.branch().census()
    }

    pub fn ask_again(&self) {
        self.branch().ask_again();
    }

    pub fn cut(&self, host: usize, member: u64) {
        self.branch().cut(host, member);
    }

    /// This launcher has no parent: its children look for others.
    pub fn let_go(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.branch().let_go();
        self.gone.notify_waiters();
    }

    /// This launcher leaves: takes no more children. If the job is over, they leave by themselves,
    /// else they find other parents once they have the posts before number `after`.
    pub fn dismiss(&self, is_over: bool, after: u64) {
        self.is_open.store(false, Ordering::Relaxed);
        if !is_over {
            self.branch().move_all(after);
        }
    }

    /// Waits until no child is connected.
    pub async fn is_alone(&self) {
        loop {
            let gone = self.gone.notified();
            if self.branch().is_empty() {
                return;
            }
            gone.await;
        }
    }

    /// Sends a frame up. Waits for room; drops the frame while there is no parent.
    async fn forward(&self, frame: Frame) {
        let up = self.up().clone();
        if let Some(up) = up {
            let _broken = up.send(frame).await;
        }
    }

    async fn note(&self, host: usize, connection: u64, said: LinkEvent) {
        let upward = self.branch().note(host, connection, said, Instant::now());
        match upward {
            Upward::Nothing => {}
            Upward::Changed => self.changed.notify_one(),
            // Its place is free again; the relay notices by its own connection.
            Upward::Silent { .. } => {}
            Upward::Forward(frame) => {
                let has_left = matches!(*frame, Frame::Left { .. });
                self.forward(*frame).await;
                if has_left {
                    self.changed.notify_one();
                }
            }
        }
        self.gone.notify_waiters();
    }

    /// Takes a connection of a launcher that the relay has sent here, or says why not.
    fn meet(
        &self,
        peer: ProvenPeer,
        log: &Arc<Log>,
        inbox: &Inbox,
        pace: Pace,
        served: &mut JoinSet<()>,
    ) {
        let may_pass = true;
        let refusal = |why: &str| Rejection {
            why: why.to_owned(),
            may_pass,
        };
        let session = &peer.settings.session;
        let own = peer.settings.own_address.to_string();
        let next = session.has;
        let (attach, known) = (session.attach, session.member);
        let rejection = match known {
            None => Some("the launchers meet at host 0 first"),
            _ if !peer.is_for_host(&own) => Some("its certificate is not for its address"),
            _ if !self.is_open.load(Ordering::Relaxed) => Some("it has lost host 0 itself"),
            _ if self.branch().count_besides(peer.host) >= self.arity => Some("it has no room"),
            _ if !log.reaches(next) => Some("it has not all posts"),
            _ => None,
        };
        let (member, None) = (known.unwrap_or_default(), rejection) else {
            let why = refusal(rejection.unwrap_or_default());
            served.spawn(peer.refuse(why, pace));
            return;
        };
        let taken = self.branch().take(peer.host, member, attach, next);
        if let Some(taken) = taken {
            let welcome = Welcome {
                member,
                received: 0,
                next,
                here: Vec::new(),
                parent: None,
            };
            let (log, inbox) = (Arc::clone(log), inbox.clone());
            served.spawn(serve(peer, taken, welcome, log, inbox, pace));
        }
    }

    /// Serves the launchers that come through a door.
    pub fn start(
        self: &Arc<Self>,
        door: &Door,
        hosts: &Hosts,
        terms: Terms,
        log: &Arc<Log>,
    ) -> io::Result<JoinHandle<()>> {
        let tls = hosts.tls().map_err(io::Error::other)?;
        let settings = Settings {
            terms,
            part: Part::default(),
            own_address: door.address.ip(),
            session: Session::new().map_err(io::Error::other)?,
        };
        let (turned_away, refused) = mpsc::channel(REFUSALS_MAX);
        let greeting = Greeting {
            hello: hello(hosts, door.address.to_string(), &settings)?,
            secret: hosts.security.secret(),
            turned_away: turned_away.clone(),
        };
        let refuse = move |address: String, why: Option<String>| {
            // In a flood only a few are reported.
            let why = why.unwrap_or_else(|| NO_TLS.to_owned());
            let _many = turned_away.try_send((address, why));
        };
        let lacks = |why| tracing::warn!(why, "cannot take connections of other launchers");
        let listener = door.listener.try_clone()?;
        let connections = peers::accept_or_say(listener, tls, refuse, lacks)?;
        let (inner, log) = (Arc::clone(self), Arc::clone(log));
        Ok(tokio::spawn(async move {
            inner
                .run(connections, greeting, refused, &log, terms.pace())
                .await;
        }))
    }

    async fn run(
        &self,
        mut connections: impl tokio_stream::Stream<Item = io::Result<peers::Connection>> + Unpin,
        greeting: Greeting,
        mut refused: mpsc::Receiver<(String, String)>,
        log: &Arc<Log>,
        pace: Pace,
    ) {
        let (inbox, mut said) = mpsc::channel(WAITING_MAX);
        let (mut greetings, mut served) = (JoinSet::new(), JoinSet::new());
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(Ok(connection)) = connections.next() => {
                    greetings.spawn(greeting.clone().exchange(connection));
                }
                Some(greeted) = greetings.join_next() => {
                    if let Ok(Ok(peer)) = greeted {
                        self.meet(peer, log, &inbox, pace, &mut served);
                    }
                }
                Some((host, connection, said)) = said.recv() => {
                    self.note(host, connection, said).await;
                }
                Some((who, why)) = refused.recv() => {
                    tracing::warn!(who, why, "turned away a launcher");
                }
                _ = looks.tick() => self.branch().look(Instant::now()),
                Some(_) = served.join_next() => {}
            }
        }
    }
}
