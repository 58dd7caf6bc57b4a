//! The relay's view of the launchers of all hosts: which are connected, briefly disconnected or
//! lost, and the posts on their way to each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::hosts::outbox::{Farewell, Outbox};
use crate::hosts::part::Part;
use crate::hosts::wire::{Frame, Session, Settings, Terms};
use crate::job::workers::WorkerRange;
use crate::posts::{Post, PostBody};

/// The launchers of all hosts.
pub struct Members {
    terms: Terms,
    all: Vec<Member>,
    /// Whether all launchers have been connected at once, so that the job may have begun.
    were_all_here: bool,
    /// When a process last failed.
    failed: Option<Instant>,
}

#[derive(Default)]
struct Member {
    stage: Stage,
    part: Part,
    link: Option<MemberLink>,
}

/// What the successive connections of one member share.
struct MemberLink {
    session: Session,
    /// Posts on their way to the member.
    outbox: Arc<Outbox>,
    /// How many of the member's posts have arrived.
    received: Arc<AtomicU64>,
    /// The number of the current connection; older ones are ignored.
    connection: u64,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Awaited,
    /// It was sent a welcome. If that gets lost, it connects again.
    Welcomed,
    /// It has sent a frame as a member.
    Here,
    /// Its connection is broken; it may connect again until `until`.
    Away {
        until: Instant,
        /// Whether the other end has closed it, as the system does for a launcher that was killed.
        is_closed: bool,
    },
}

/// What a connection reports.
pub enum LinkEvent {
    Frame(Frame),
    /// The connection is broken: closed by the other end, or silent.
    Broken {
        is_closed: bool,
    },
}

/// Why a launcher was not admitted.
#[derive(Debug)]
pub struct Rejection {
    pub why: String,
    /// Whether a later attempt may succeed.
    pub may_pass: bool,
}

impl From<String> for Rejection {
    fn from(why: String) -> Rejection {
        let may_pass = false;
        Rejection { why, may_pass }
    }
}

/// A connection of a member.
pub struct Admitted {
    pub outbox: Arc<Outbox>,
    pub received: Arc<AtomicU64>,
    pub connection: u64,
    /// The number of the first post that it has not received.
    pub next: u64,
}

impl Members {
    /// Creates the members of a job; none is connected yet.
    pub fn new(terms: Terms) -> Members {
        Members {
            terms,
            all: (0..terms.hosts).map(|_| Member::default()).collect(),
            were_all_here: false,
            failed: None,
        }
    }

    /// Admits a launcher as a member, new or after a broken connection, or says why not.
    /// `is_for_host` tells whether its certificate names an address.
    pub fn admit(
        &mut self,
        host: usize,
        settings: &Settings,
        is_for_host: impl Fn(&str) -> bool,
    ) -> Result<Admitted, Rejection> {
        if let Some(why) = self.rejection_reason(host, settings) {
            return Err(format!("{why}; use the same options everywhere").into());
        }
        let own = settings.own_address;
        if !is_for_host(&own.to_string()) {
            return Err(format!(
                "the certificate of host {host} is not for its address {own}; give it the one \
                 that was made for it, or name its address"
            )
            .into());
        }
        if let Some(why) = self.misfit(host, settings) {
            return Err(why.into());
        }
        let admitted = self.take_in(host, &settings.session)?;
        if let Some(member) = self.all.get_mut(host) {
            member.part = settings.part;
        }
        Ok(admitted)
    }

    /// Why a late host does not fit the hosts that are connected; it is turned away, so that it
    /// harms none of them. `None` while the job has not begun: then every launcher reports the
    /// misfit.
    fn misfit(&self, host: usize, settings: &Settings) -> Option<String> {
        let others: BTreeMap<usize, Part> = self
            .all
            .iter()
            .enumerate()
            .filter(|(other, member)| *other != host && member.link.is_some())
            .map(|(other, member)| (other, member.part))
            .collect();
        let may_go_on = self.terms.workers.is_some() || self.were_all_here;
        let comes_anew = may_go_on && !settings.session.resumes;
        let misfit = || settings.part.misfit(host, &others, self.terms.hosts);
        comes_anew.then(misfit).flatten()
    }

    fn take_in(&mut self, host: usize, session: &Session) -> Result<Admitted, Rejection> {
        let Some(member) = self.all.get_mut(host) else {
            return Err(format!("there is no host {host}; count hosts from 0").into());
        };
        let link = member.link.as_mut();
        if let Some(link) = link.filter(|link| link.session.is_same(session)) {
            let Some(connection) = link.outbox.connect(session.received) else {
                return Err(
                    format!("host {host} has lost what it was told; start it again").into(),
                );
            };
            link.connection = connection;
            if session.resumes {
                member.stage = Stage::Here;
            }
            return Ok(Admitted {
                outbox: Arc::clone(&link.outbox),
                received: Arc::clone(&link.received),
                connection,
                next: session.received,
            });
        }
        match member.stage {
            _ if session.resumes => {
                return Err(format!("host {host} was out of reach for too long").into());
            }
            Stage::Awaited => {}
            // Another launcher of that host: the previous one is gone.
            Stage::Away { .. } => self.lose(host),
            Stage::Welcomed | Stage::Here => {
                // A host without power is noticed only by its silence.
                return Err(Rejection {
                    why: format!(
                        "there was a launcher for host {host} already, or it has ended and that \
                         was not noticed yet; give every host its own number"
                    ),
                    may_pass: true,
                });
            }
        }
        let outbox = Outbox::new();
        let connection = outbox.connect(0).unwrap_or_default();
        let here = self.all.iter().enumerate();
        for (host, _) in here.filter(|(_, member)| member.is_here()) {
            outbox.push(came_or_lost(host, true));
        }
        let received = Arc::<AtomicU64>::default();
        self.all[host] = Member {
            stage: Stage::Welcomed,
            part: Part::default(),
            link: Some(MemberLink {
                session: session.clone(),
                outbox: Arc::clone(&outbox),
                received: Arc::clone(&received),
                connection,
            }),
        };
        Ok(Admitted {
            outbox,
            received,
            connection,
            next: 0,
        })
    }

    fn rejection_reason(&self, host: usize, settings: &Settings) -> Option<String> {
        let differ = |what, theirs: String, ours: String| {
            let text = format!("{what} differ: host {host} has {theirs}, host 0 has {ours}");
            (theirs != ours).then_some(text)
        };
        let (theirs, ours) = (settings.terms, self.terms);
        let timeout = |terms: Terms| format!("{} s", terms.host_timeout.as_secs());
        let workers = |terms: Terms| match terms.workers {
            Some(WorkerRange { least, most }) => format!("{least}..{most}"),
            None => "one number".to_owned(),
        };
        let hosts = |terms: Terms| terms.hosts.to_string();
        let restarts = |terms: Terms| terms.restarts_max.to_string();
        differ("the numbers of hosts", hosts(theirs), hosts(ours))
            .or_else(|| differ("the numbers of restarts", restarts(theirs), restarts(ours)))
            .or_else(|| differ("the ranges of workers", workers(theirs), workers(ours)))
            .or_else(|| differ("the host timeouts", timeout(theirs), timeout(ours)))
    }

    /// Handles a frame of a member, or the end of its connection.
    pub fn note(&mut self, host: usize, connection: u64, said: LinkEvent) {
        let pace = self.terms.pace();
        let is_failing = self.failed.is_some_and(|at| at.elapsed() < pace.closed());
        let Some(member) = self.all.get_mut(host) else {
            return;
        };
        // Ignores an old connection: its posts are sent again over the current one.
        let Some(link) = member
            .link
            .as_mut()
            .filter(|link| link.connection == connection)
        else {
            return;
        };
        match (said, member.stage) {
            (LinkEvent::Frame(Frame::Bye | Frame::Quit), _) => self.lose(host),
            (LinkEvent::Frame(frame), stage) => {
                member.stage = Stage::Here;
                if let Frame::Beat(received) = frame {
                    link.outbox.acknowledge(received);
                }
                if stage == Stage::Welcomed {
                    self.were_all_here |= self.all.iter().all(Member::is_here);
                    self.publish(&came_or_lost(host, true));
                }
                if let Frame::Post(post) = frame {
                    self.relay(host, *post);
                }
            }
            (LinkEvent::Broken { is_closed }, Stage::Here) => {
                let time = if is_closed && is_failing {
                    pace.closed()
                } else {
                    pace.away()
                };
                let until = Instant::now() + time;
                member.stage = Stage::Away { until, is_closed };
            }
            (LinkEvent::Broken { .. }, Stage::Welcomed) => *member = Member::default(),
            (LinkEvent::Broken { .. }, Stage::Awaited | Stage::Away { .. }) => {}
        }
    }

    /// Passes a member's post on to all members.
    fn relay(&mut self, host: usize, post: Post) {
        if let Some(link) = &self.all[host].link {
            link.received.fetch_add(1, Ordering::Relaxed);
        }
        if matches!(post.item, PostBody::Failed(..)) {
            self.processes_fail();
        }
        self.publish(&Post { host, ..post });
    }

    /// Processes fail: a launcher whose connection was closed was probably killed together with
    /// its processes. Waits for it only briefly, so that the job goes on sooner.
    fn processes_fail(&mut self) {
        let now = Instant::now();
        let soon = now + self.terms.pace().closed();
        self.failed = Some(now);
        for member in &mut self.all {
            if let Stage::Away {
                until,
                is_closed: true,
            } = &mut member.stage
            {
                *until = soon.min(*until);
            }
        }
    }

    /// Gives up members that are away for too long.
    pub fn look(&mut self, now: Instant) {
        for host in 0..self.all.len() {
            if matches!(self.all[host].stage, Stage::Away { until, .. } if until <= now) {
                self.lose(host);
            }
        }
    }

    /// Drops a member. Its host may join anew.
    fn lose(&mut self, host: usize) {
        let member = std::mem::take(&mut self.all[host]);
        let was_here = member.is_here();
        if let Some(link) = member.link {
            link.outbox.close(Farewell::Quit);
        }
        if was_here {
            self.publish(&came_or_lost(host, false));
        }
    }

    /// Sends a post to all members. A launcher that joins later waits for the next start.
    fn publish(&mut self, post: &Post) {
        let mut full = Vec::new();
        for (host, member) in self.all.iter().enumerate() {
            let link = member.link.as_ref();
            if link.is_some_and(|link| !link.outbox.push(post.clone())) {
                full.push(host);
            }
        }
        // A member that does not read its posts is lost.
        for host in full {
            self.lose(host);
        }
    }

    /// The launcher of host 0 ends, and the relay with it. Members that do not know that the job
    /// is over learn that host 0 is lost.
    pub fn say_farewell(&mut self) {
        self.publish(&came_or_lost(0, false));
        for link in self.all.iter().filter_map(|member| member.link.as_ref()) {
            link.outbox.close(Farewell::JobEnded);
        }
    }
}

/// The post that a launcher is connected, or is lost.
fn came_or_lost(host: usize, is_here: bool) -> Post {
    let item = if is_here {
        PostBody::Came
    } else {
        PostBody::Lost
    };
    Post {
        host,
        restart: 0,
        item,
    }
}

impl Member {
    /// Whether its launcher takes part, as far as the relay knows.
    fn is_here(&self) -> bool {
        matches!(self.stage, Stage::Here | Stage::Away { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::hosts::outbox::{Next, WAITING_MAX};
    use crate::hosts::wire::runtime;

    fn members(host_timeout: Duration) -> Members {
        Members::new(Terms {
            hosts: 3,
            restarts_max: 0,
            workers: None,
            host_timeout,
        })
    }

    /// Admits a launcher and lets it send its first frame.
    fn come(members: &mut Members, host: usize, session: &Session) -> Admitted {
        let admitted = members.take_in(host, session).unwrap();
        members.note(host, admitted.connection, LinkEvent::Frame(Frame::Beat(0)));
        admitted
    }

    const BROKEN: fn() -> LinkEvent = || LinkEvent::Broken { is_closed: true };

    fn said(restart: u32, item: PostBody) -> LinkEvent {
        let host = 0;
        LinkEvent::Frame(Frame::Post(Box::new(Post {
            host,
            restart,
            item,
        })))
    }

    fn done(restart: u32) -> LinkEvent {
        said(restart, PostBody::WorkersDone)
    }

    /// The posts on their way over a connection, from number `from` on: what happened to which
    /// host.
    fn told(admitted: &Admitted, from: u64) -> Vec<String> {
        let runtime = runtime().unwrap();
        let mut told = Vec::new();
        for number in from.. {
            let next = admitted.outbox.next(admitted.connection, number);
            let next = runtime.block_on(async { timeout(Duration::from_millis(10), next).await });
            let Ok(Next::Post(post)) = next else {
                return told;
            };
            told.push(match post.item {
                PostBody::Came => format!("came {}", post.host),
                PostBody::Lost => format!("lost {}", post.host),
                _ => format!("done {} {}", post.host, post.restart),
            });
        }
        told
    }

    #[test]
    fn a_broken_connection_that_is_followed_by_another_loses_nothing() {
        let mut members = members(Duration::from_secs(60));
        let mut session = Session::new().unwrap();
        let first = come(&mut members, 0, &Session::new().unwrap());
        let broken = come(&mut members, 1, &session);
        members.note(1, broken.connection, done(0));
        members.note(1, broken.connection, BROKEN());
        // Others post meanwhile; frames of the broken connection are ignored.
        members.note(0, first.connection, done(7));
        session.resumes = true;
        session.received = 2;
        let again = members.take_in(1, &session).unwrap();
        assert_eq!(
            again.received.load(Ordering::Relaxed),
            1,
            "the relay has one of it"
        );
        members.note(1, broken.connection, done(9));
        members.note(1, broken.connection, BROKEN());
        members.note(1, again.connection, done(1));
        members.look(Instant::now() + Duration::from_secs(1000));
        assert_eq!(
            told(&first, 0),
            ["came 0", "came 1", "done 1 0", "done 0 7", "done 1 1"]
        );
        assert_eq!(
            told(&again, 2),
            ["done 1 0", "done 0 7", "done 1 1"][..].to_vec()
        );
    }

    #[test]
    fn who_stays_away_for_too_long_is_lost_and_may_come_anew() {
        let mut members = members(Duration::from_secs(6));
        let mut session = Session::new().unwrap();
        let first = come(&mut members, 0, &Session::new().unwrap());
        let second = come(&mut members, 1, &session);
        members.note(1, second.connection, BROKEN());
        members.look(Instant::now() + Duration::from_secs(5));
        assert_eq!(told(&first, 0), ["came 0", "came 1"]);
        members.look(Instant::now() + Duration::from_secs(7));
        assert_eq!(told(&first, 2), ["lost 1"]);
        session.resumes = true;
        let refused = members.take_in(1, &session).map(|_| ()).unwrap_err().why;
        assert!(refused.contains("out of reach for too long"), "{refused}");
        come(&mut members, 1, &Session::new().unwrap());
        assert_eq!(told(&first, 3), ["came 1"]);
    }

    /// The processes of a launcher that is killed end with it, and the others fail.
    #[test]
    fn a_launcher_whose_connection_is_closed_while_processes_fail_is_lost_soon() {
        for (is_first, is_closed) in [(false, true), (true, true), (false, false)] {
            let mut members = members(Duration::from_secs(60));
            let first = come(&mut members, 0, &Session::new().unwrap());
            let second = come(&mut members, 1, &Session::new().unwrap());
            let ending = crate::report::outcome::Ending::Exit(1);
            let failed = || {
                said(
                    0,
                    PostBody::Failed(crate::job::task::Task::worker(0), ending),
                )
            };
            if is_first {
                members.note(0, first.connection, failed());
            }
            members.note(1, second.connection, LinkEvent::Broken { is_closed });
            if !is_first {
                members.note(0, first.connection, failed());
            }
            members.look(Instant::now() + Duration::from_secs(16));
            assert_eq!(
                members.all[1].stage == Stage::Awaited,
                is_closed,
                "{is_first}"
            );
        }
    }

    /// Checks an elastic job and one that has begun.
    #[test]
    fn a_launcher_whose_part_does_not_fit_harms_none_of_those_that_run() {
        let range = WorkerRange { least: 1, most: 3 };
        for (workers, were_all_here) in [(Some(range), false), (None, true), (None, false)] {
            let mut members = members(Duration::from_secs(6));
            members.terms.workers = workers;
            let own_address = std::net::Ipv4Addr::LOCALHOST.into();
            let settings = |terms, has_evaluator| Settings {
                terms,
                part: Part {
                    workers: 1,
                    parameter_servers: 0,
                    has_evaluator,
                },
                own_address,
                session: Session::new().unwrap(),
            };
            let terms = members.terms;
            let mut come = |host, has_evaluator| {
                let settings = settings(terms, has_evaluator);
                let admitted = members.admit(host, &settings, |_| true)?;
                let connection = (host, admitted.connection);
                members.note(host, admitted.connection, LinkEvent::Frame(Frame::Beat(0)));
                Ok::<_, Rejection>(connection)
            };
            come(0, true).unwrap();
            let second = come(1, false).unwrap();
            if were_all_here {
                come(2, false).unwrap();
            }
            members.note(second.0, second.1, LinkEvent::Frame(Frame::Quit));
            let mut come = |has_evaluator| {
                let admitted = members.admit(1, &settings(terms, has_evaluator), |_| true);
                admitted.err().map(|error| error.why).unwrap_or_default()
            };
            let why = come(true);
            let is_refused = workers.is_some() || were_all_here;
            assert_eq!(
                why.contains("an evaluator, as host 0 does"),
                is_refused,
                "{why}"
            );
            if is_refused {
                assert_eq!(come(false), "");
            }
        }
    }

    #[test]
    fn another_launcher_of_a_host_takes_the_place_of_one_that_is_away_and_of_no_other() {
        let mut members = members(Duration::from_secs(6));
        let first = come(&mut members, 0, &Session::new().unwrap());
        let second = come(&mut members, 1, &Session::new().unwrap());
        let third = Session::new().unwrap();
        let refused = members.take_in(1, &third).map(|_| ()).unwrap_err().why;
        assert!(
            refused.contains("a launcher for host 1 already"),
            "{refused}"
        );
        members.note(1, second.connection, BROKEN());
        come(&mut members, 1, &third);
        assert_eq!(told(&first, 2), ["lost 1", "came 1"]);
    }

    #[test]
    fn who_leaves_or_never_comes_is_no_member() {
        let mut members = members(Duration::from_secs(6));
        let first = come(&mut members, 0, &Session::new().unwrap());
        for last in [Frame::Bye, Frame::Quit] {
            let second = come(&mut members, 1, &Session::new().unwrap());
            members.note(1, second.connection, LinkEvent::Frame(last));
            // Late frames do not revive the member.
            for said in [LinkEvent::Frame(Frame::Beat(0)), done(0), BROKEN()] {
                members.note(1, second.connection, said);
            }
            assert!(members.all[1].stage == Stage::Awaited);
        }
        assert_eq!(told(&first, 1), ["came 1", "lost 1", "came 1", "lost 1"]);
        // It was welcomed, but the welcome got lost.
        let third = members.take_in(2, &Session::new().unwrap()).unwrap();
        members.note(2, third.connection, BROKEN());
        members.take_in(2, &Session::new().unwrap()).unwrap();
        members.say_farewell();
        assert_eq!(told(&first, 5), ["lost 0"]);
    }

    #[test]
    fn who_does_not_read_is_lost() {
        let mut members = members(Duration::from_secs(6));
        let first = come(&mut members, 0, &Session::new().unwrap());
        come(&mut members, 1, &Session::new().unwrap());
        for restart in 0..2 * WAITING_MAX as u32 {
            members.note(0, first.connection, done(restart));
            first.outbox.acknowledge(u64::from(restart));
        }
        assert!(members.all[1].stage == Stage::Awaited);
        assert!(members.all[0].stage == Stage::Here);
    }
}
