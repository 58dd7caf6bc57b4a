//! The relay's view of the launchers of all hosts: which are connected, to which other launcher,
//! which are briefly disconnected or lost, and the posts of all in one order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::hosts::log::{Entry, Log, Sender};
use crate::hosts::outbox::WAITING_MAX;
use crate::hosts::part::Part;
use crate::hosts::wire::{Listed, Parent, Session, Settings, Terms, Up, line};
use crate::job::workers::WorkerRange;
use crate::posts::{Post, PostBody};

/// How many posts of all a launcher may be behind before it counts as lost, for each host: all of
/// them say several things at once when a job starts and ends.
const BEHIND_PER_HOST: usize = 8;

/// The launchers of all hosts.
pub struct Members {
    terms: Terms,
    /// How many launchers connect to one launcher.
    arity: usize,
    all: Vec<Member>,
    log: Arc<Log>,
    /// The number that the next launcher gets.
    next_member: u64,
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
    number: u64,
    /// How many of the member's posts have arrived.
    received: u64,
    /// The number of the first post of all that it got or gets.
    begin: u64,
    /// It has the posts of all before this number.
    has: u64,
    /// The hosts that were there at `begin`, until it has said that it knows.
    here: Vec<usize>,
    /// Which of its connections is the current one.
    attach: u64,
    /// The host whose launcher it is to be connected to; `None` for this one.
    parent: Option<usize>,
    /// Where others can connect to it.
    door: Option<SocketAddr>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    #[default]
    Awaited,
    /// It was sent a welcome. If that gets lost, it connects again. The connection on which it was
    /// welcomed says what becomes of it.
    Welcomed,
    /// Something has come from it, but no list with it. From `until` on it is away.
    Arrived { until: Instant },
    /// It is listed.
    Here,
    /// Its connection, or one above it, is broken; it may connect again until `until`.
    Away {
        until: Instant,
        /// Whether the other end has closed it, as the system does for a launcher that was killed.
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

/// A launcher that was admitted.
#[derive(Debug)]
pub struct Admitted {
    pub member: u64,
    /// How many of its posts have arrived.
    pub received: u64,
    /// The number of the first post of all that it has not got.
    pub next: u64,
    /// The hosts that were there before that, for a launcher that is new.
    pub here: Vec<usize>,
    pub attach: u64,
    /// The launcher that it is to connect to, if it is not the relay's.
    pub parent: Option<Parent>,
}

impl Members {
    /// Creates the members of a job; none is connected yet.
    pub fn new(terms: Terms, arity: usize) -> Members {
        Members {
            terms,
            arity,
            all: (0..terms.hosts).map(|_| Member::default()).collect(),
            log: Log::new(0),
            next_member: 1,
            were_all_here: false,
            failed: None,
        }
    }

    /// The posts of all.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Admits a launcher as a member, new or after a broken connection, or says why not.
    /// `is_for_host` tells whether its certificate names an address.
    pub fn admit(
        &mut self,
        host: usize,
        settings: &Settings,
        is_for_host: impl Fn(&str) -> bool,
        now: Instant,
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
        let admitted = self.take_in(host, &settings.session, now)?;
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

    fn take_in(
        &mut self,
        host: usize,
        session: &Session,
        now: Instant,
    ) -> Result<Admitted, Rejection> {
        let Some(member) = self.all.get(host) else {
            return Err(format!("there is no host {host}; count hosts from 0").into());
        };
        let is_same = |link: &&MemberLink| link.session.is_same(session);
        if member.link.as_ref().is_some_and(|link| is_same(&link)) {
            return self.take_again(host, session, now);
        }
        match member.stage {
            _ if session.resumes => {
                return Err(format!("host {host} was out of reach for too long").into());
            }
            Stage::Awaited => {}
            // Another launcher of that host: the previous one is gone.
            Stage::Away { .. } => self.lose(host),
            Stage::Welcomed | Stage::Arrived { .. } | Stage::Here => {
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
        let parent = self.place(host, session);
        let (number, next) = (self.next_member, self.log.end());
        self.next_member += 1;
        let all = self.all.iter().enumerate();
        let here = all.filter(|(_, member)| member.is_here());
        let here: Vec<usize> = here.map(|(host, _)| host).collect();
        self.all[host] = Member {
            stage: Stage::Welcomed,
            part: Part::default(),
            link: Some(MemberLink {
                session: session.clone(),
                number,
                received: 0,
                begin: next,
                has: next,
                here: here.clone(),
                attach: session.attach,
                parent: parent.map(|parent| parent.host),
                door: session.door,
            }),
        };
        Ok(Admitted {
            member: number,
            received: 0,
            next,
            here,
            attach: session.attach,
            parent,
        })
    }

    /// Another connection of a launcher that is known.
    fn take_again(
        &mut self,
        host: usize,
        session: &Session,
        now: Instant,
    ) -> Result<Admitted, Rejection> {
        let parent = self.place(host, session);
        let away = self.terms.pace().away();
        let lost = || format!("host {host} has lost what it was told; start it again");
        let reaches = self.log.reaches(session.has);
        let member = &mut self.all[host];
        let Some(link) = member.link.as_mut() else {
            return Err(lost().into());
        };
        let (next, here) = if session.resumes {
            (session.has, Vec::new())
        } else {
            (link.begin, link.here.clone())
        };
        // A launcher that is new, and whose welcome was lost, must not have heard of any post.
        let knows = session.resumes && reaches || !session.resumes && link.has == link.begin;
        if !knows || session.attach <= link.attach {
            return Err(lost().into());
        }
        link.attach = session.attach;
        link.parent = parent.map(|parent| parent.host);
        link.door = session.door;
        let admitted = Admitted {
            member: link.number,
            received: link.received,
            next,
            here,
            attach: session.attach,
            parent,
        };
        if session.resumes {
            // It was connected, even if nothing has come from it.
            self.come(host, now);
        }
        let stage = &mut self.all[host].stage;
        if matches!(stage, Stage::Arrived { .. } | Stage::Here) {
            // Until it has reached its parent.
            let (until, is_closed) = (now + away, false);
            *stage = Stage::Away { until, is_closed };
        }
        Ok(admitted)
    }

    /// Which launcher a launcher is to connect to: the highest in the tree that has room, or this
    /// one if there is no other.
    fn place(&self, host: usize, session: &Session) -> Option<Parent> {
        let mut children: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        for (other, member) in self.all.iter().enumerate() {
            // This host's own launcher is at the relay, and takes no place.
            if let Some(link) = member.link.as_ref().filter(|_| other != host && other != 0) {
                *children.entry(link.parent).or_default() += 1;
            }
        }
        let count = |of: Option<usize>| children.get(&of).copied().unwrap_or_default();
        if host == 0 || count(None) < self.arity {
            return None;
        }
        let has = session.resumes.then_some(session.has);
        let candidates = self.all.iter().enumerate().filter_map(|(other, member)| {
            let link = member.link.as_ref()?;
            let door = link.door?;
            let fits = other != 0
                && !session.avoid.contains(&other)
                && count(Some(other)) < self.arity
                && has.is_none_or(|has| link.begin <= has)
                && !matches!(member.stage, Stage::Away { .. });
            let depth = self.depth(other, host).filter(|_| fits)?;
            Some((depth, count(Some(other)), other, door))
        });
        let (_, _, host, address) = candidates.min()?;
        Some(Parent { host, address })
    }

    /// How far below the relay a launcher is; `None` if it is connected to none, or if it is below
    /// `not_below`.
    fn depth(&self, host: usize, not_below: usize) -> Option<usize> {
        let mut at = host;
        for depth in 1..=self.all.len() {
            if at == not_below {
                return None;
            }
            match self.all.get(at)?.link.as_ref()?.parent {
                Some(parent) => at = parent,
                None => return Some(depth),
            }
        }
        None
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

    /// Handles the list of all launchers that are connected, to this one or below. Returns who is
    /// listed although the job goes on without it.
    pub fn note_census(&mut self, census: &[Listed], now: Instant) -> Vec<(usize, u64)> {
        let (mut cuts, end) = (Vec::new(), self.log.end());
        let mut listed = BTreeSet::new();
        // The launchers above the one that is looked at.
        let mut above: Vec<usize> = Vec::new();
        let mut skipped: Option<u32> = None;
        for one in census {
            if skipped.is_some_and(|depth| one.depth > depth) {
                continue;
            }
            skipped = None;
            above.truncate(usize::try_from(one.depth).unwrap_or(usize::MAX));
            let known = self.all.get_mut(one.host).and_then(|it| it.link.as_mut());
            let Some(link) = known.filter(|link| link.number == one.member) else {
                cuts.push((one.host, one.member));
                skipped = Some(one.depth);
                continue;
            };
            // It has found another parent since.
            if one.attach < link.attach {
                skipped = Some(one.depth);
                continue;
            }
            link.attach = one.attach;
            link.has = link.has.max(one.has.min(end));
            if link.has > link.begin {
                link.here = Vec::new();
            }
            link.parent = above.last().copied();
            match one.is_closed {
                None => {
                    above.push(one.host);
                    listed.insert(one.host);
                    self.come(one.host, now);
                    self.all[one.host].stage = Stage::Here;
                }
                Some(is_closed) => {
                    skipped = Some(one.depth);
                    // It was connected, however briefly: no list has come meanwhile.
                    self.come(one.host, now);
                    self.begin_absence(one.host, is_closed, now);
                }
            }
        }
        for host in 0..self.all.len() {
            if self.all[host].stage == Stage::Here && !listed.contains(&host) {
                self.begin_absence(host, false, now);
            }
        }
        self.trim();
        cuts
    }

    /// Something has come from a launcher; if that is the first, all are told.
    fn come(&mut self, host: usize, now: Instant) {
        let until = now + self.terms.pace().silence();
        let stage = &mut self.all[host].stage;
        if *stage == Stage::Welcomed {
            *stage = Stage::Arrived { until };
            self.were_all_here |= self.all.iter().all(Member::is_here);
            self.publish(came_or_lost(host, true), None);
        }
    }

    /// A launcher that was sent to its parent says that it is connected there.
    pub fn arrived(&mut self, host: usize, number: u64, attach: u64, now: Instant) {
        if self.is_welcomed(host, number, attach) {
            self.come(host, now);
        }
    }

    /// Whether the connection of this number is the one on which a launcher was admitted, and
    /// nothing else has come from it.
    fn is_welcomed(&self, host: usize, number: u64, attach: u64) -> bool {
        let is_it = |member: &&Member| {
            let link = member.link.as_ref();
            link.is_some_and(|link| (link.number, link.attach) == (number, attach))
        };
        let member = self.all.get(host).filter(is_it);
        member.is_some_and(|member| member.stage == Stage::Welcomed)
    }

    /// The connection of a launcher, or one above it, is broken.
    fn begin_absence(&mut self, host: usize, is_closed: bool, now: Instant) {
        let pace = self.terms.pace();
        let is_failing = self.is_failing(now);
        let stage = &mut self.all[host].stage;
        if matches!(*stage, Stage::Arrived { .. } | Stage::Here) {
            let is_short = is_closed && is_failing;
            let time = [pace.away(), pace.closed()][usize::from(is_short)];
            let until = now + time;
            *stage = Stage::Away { until, is_closed };
        }
    }

    fn is_failing(&self, now: Instant) -> bool {
        let closed = self.terms.pace().closed();
        self.failed
            .is_some_and(|at| now.saturating_duration_since(at) < closed)
    }

    /// A launcher that was admitted has broken its connection before it said a word.
    pub fn forget_silent(&mut self, host: usize, number: u64, attach: u64) {
        if self.is_welcomed(host, number, attach) {
            self.all[host] = Member::default();
        }
    }

    /// Passes a member's post on to all members, unless it has come before.
    pub fn relay(&mut self, up: Up, now: Instant) {
        let Up { sender, post } = up;
        let host = post.host;
        let Some(member) = self.all.get_mut(host) else {
            return;
        };
        let link = member.link.as_mut();
        let is_next =
            |link: &&mut MemberLink| (link.number, link.received) == (sender.member, sender.number);
        let Some(link) = link.filter(is_next) else {
            return;
        };
        link.received += 1;
        self.come(host, now);
        if matches!(post.item, PostBody::Failed(..)) {
            self.processes_fail(now);
        }
        self.publish(post, Some(sender));
    }

    /// Processes fail: a launcher whose connection was closed was probably killed together with
    /// its processes. Waits for it only briefly, so that the job goes on sooner.
    fn processes_fail(&mut self, now: Instant) {
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

    /// A launcher has said good-bye.
    pub fn left(&mut self, host: usize, number: u64) {
        if self.all.get(host).and_then(Member::number) == Some(number) {
            self.lose(host);
        }
    }

    /// Gives up members that are away for too long.
    pub fn look(&mut self, now: Instant) {
        for host in 0..self.all.len() {
            match self.all[host].stage {
                Stage::Away { until, .. } if until <= now => self.lose(host),
                Stage::Arrived { until } if until <= now => self.begin_absence(host, false, now),
                _ => {}
            }
        }
        self.trim();
    }

    /// Drops a member. Its host may join anew.
    fn lose(&mut self, host: usize) {
        let member = std::mem::take(&mut self.all[host]);
        if member.is_here() {
            self.publish(came_or_lost(host, false), None);
        }
    }

    /// Appends to the posts of all. A launcher that joins later waits for the next start.
    fn publish(&mut self, post: Post, sender: Option<Sender>) {
        // Every post has a text: it has come as one.
        let Ok(line) = line(Entry { post, sender }) else {
            return;
        };
        let kept = self.log.push(line);
        if kept <= WAITING_MAX + BEHIND_PER_HOST * self.terms.hosts {
            return;
        }
        self.trim();
        let most = (WAITING_MAX + BEHIND_PER_HOST * self.terms.hosts) as u64;
        let end = self.log.end();
        for host in 0..self.all.len() {
            let link = self.all[host].link.as_ref();
            // A member that does not read its posts is lost.
            if link.is_some_and(|link| end.saturating_sub(link.has) > most) {
                self.lose(host);
            }
        }
    }

    /// Drops the posts that all members have.
    fn trim(&self) {
        let links = self.all.iter().filter_map(|member| member.link.as_ref());
        let least = links.map(|link| link.has).min();
        self.log.trim(least.unwrap_or_else(|| self.log.end()));
    }

    /// The launcher of host 0 ends, and the relay with it. Members that do not know that the job
    /// is over learn that host 0 is lost.
    pub fn say_farewell(&mut self) {
        self.publish(came_or_lost(0, false), None);
        self.log.close();
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
        !matches!(self.stage, Stage::Awaited | Stage::Welcomed)
    }

    fn number(&self) -> Option<u64> {
        self.link.as_ref().map(|link| link.number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hosts::log::Next;
    use crate::job::task::Task;
    use crate::report::outcome::Ending;

    fn terms(hosts: usize, host_timeout: Duration) -> Terms {
        Terms {
            hosts,
            restarts_max: 0,
            workers: None,
            host_timeout,
        }
    }

    /// Three hosts.
    fn members(host_timeout: Duration) -> Members {
        Members::new(terms(3, host_timeout), 16)
    }

    fn session() -> Session {
        let mut session = Session::new().unwrap();
        session.attach = 1;
        session
    }

    /// The next connection of a launcher that has `has` posts.
    fn again(session: &mut Session, has: u64) {
        session.resumes = true;
        session.has = has;
        session.attach += 1;
    }

    fn listed(host: usize, admitted: &Admitted) -> Listed {
        Listed {
            host,
            member: admitted.member,
            attach: admitted.attach,
            has: admitted.next,
            depth: 0,
            is_closed: None,
        }
    }

    /// Who is connected, and what is told of that.
    struct Connected(Vec<Listed>);

    impl Connected {
        /// Admits a launcher and lets it send its first frame.
        fn come(&mut self, members: &mut Members, host: usize, session: &Session) -> Admitted {
            let now = Instant::now();
            let admitted = members.take_in(host, session, now).unwrap();
            self.0.retain(|one| one.host != host);
            self.0.push(listed(host, &admitted));
            members.note_census(&self.0, now);
            admitted
        }

        /// Breaks the connection of a host.
        fn breaks(&mut self, members: &mut Members, host: usize, is_closed: bool) {
            let one = self.0.iter_mut().find(|one| one.host == host).unwrap();
            one.is_closed = Some(is_closed);
            members.note_census(&self.0, Instant::now());
        }
    }

    fn up(host: usize, admitted: &Admitted, number: u64, item: PostBody) -> Up {
        let member = admitted.member;
        let restart = number as u32;
        Up {
            sender: Sender { member, number },
            post: Post {
                host,
                restart,
                item,
            },
        }
    }

    fn done(members: &mut Members, host: usize, admitted: &Admitted, number: u64) {
        let up = up(host, admitted, number, PostBody::WorkersDone);
        members.relay(up, Instant::now());
    }

    /// The posts of all from number `from` on: what happened to which host.
    fn told(members: &Members, from: u64) -> Vec<String> {
        let mut told = Vec::new();
        for number in from.. {
            let Some(Next::Line(line)) = members.log().get(number) else {
                break;
            };
            let post = &line.entry.post;
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
        let mut connected = Connected(Vec::new());
        let mut second = session();
        let first = connected.come(&mut members, 0, &session());
        let broken = connected.come(&mut members, 1, &second);
        done(&mut members, 1, &broken, 0);
        connected.breaks(&mut members, 1, true);
        // Others post meanwhile.
        done(&mut members, 0, &first, 0);
        again(&mut second, 3);
        let admitted = connected.come(&mut members, 1, &second);
        assert_eq!((admitted.received, admitted.next), (1, 3));
        // The first one was underway twice; the third one comes over another way too early.
        for number in [0, 1, 1, 3, 2, 0] {
            done(&mut members, 1, &admitted, number);
        }
        members.look(Instant::now() + Duration::from_secs(1000));
        assert_eq!(
            told(&members, 0),
            [
                "came 0", "came 1", "done 1 0", "done 0 0", "done 1 1", "done 1 2"
            ]
        );
    }

    #[test]
    fn posts_are_kept_until_all_have_them() {
        let mut members = members(Duration::from_secs(60));
        let mut connected = Connected(Vec::new());
        connected.come(&mut members, 0, &session());
        let mut second = session();
        connected.come(&mut members, 1, &second);
        connected.0[0].has = 2;
        connected.breaks(&mut members, 1, true);
        assert_eq!(told(&members, 1), ["came 1"], "host 1 has not got it");
        again(&mut second, 1);
        connected.come(&mut members, 1, &second);
        connected.0[1].has = 2;
        members.note_census(&connected.0, Instant::now());
        assert!(members.log().get(1).is_none());
        // It cannot have lost what it had.
        again(&mut second, 1);
        let refused = members.take_in(1, &second, Instant::now()).unwrap_err().why;
        assert!(refused.contains("has lost what it was told"), "{refused}");
    }

    #[test]
    fn a_launcher_whose_welcome_was_lost_hears_it_again() {
        let mut members = members(Duration::from_secs(60));
        let mut connected = Connected(Vec::new());
        connected.come(&mut members, 0, &session());
        let mut second = session();
        let now = Instant::now();
        let admitted = members.take_in(1, &second, now).unwrap();
        connected.come(&mut members, 2, &session());
        second.attach += 1;
        let repeated = members.take_in(1, &second, now).unwrap();
        assert_eq!(repeated.here, [0]);
        assert_eq!(
            (repeated.member, repeated.next),
            (admitted.member, admitted.next)
        );
        assert_eq!(told(&members, repeated.next), ["came 2"]);
    }

    #[test]
    fn who_stays_away_for_too_long_is_lost_and_may_come_anew() {
        let mut members = members(Duration::from_secs(6));
        let mut connected = Connected(Vec::new());
        let mut second = session();
        connected.come(&mut members, 0, &session());
        let lost = connected.come(&mut members, 1, &second);
        connected.breaks(&mut members, 1, true);
        members.look(Instant::now() + Duration::from_secs(5));
        assert_eq!(told(&members, 0), ["came 0", "came 1"]);
        members.look(Instant::now() + Duration::from_secs(7));
        assert_eq!(told(&members, 2), ["lost 1"]);
        again(&mut second, 2);
        let refused = members.take_in(1, &second, Instant::now()).unwrap_err().why;
        assert!(refused.contains("out of reach for too long"), "{refused}");
        // What of it is still underway does not count, and its connection is ended.
        done(&mut members, 1, &lost, 0);
        let cuts = members.note_census(&connected.0, Instant::now());
        assert_eq!(cuts, [(1, lost.member)]);
        connected.come(&mut members, 1, &session());
        assert_eq!(told(&members, 3), ["came 1"]);
    }

    /// The processes of a launcher that is killed end with it, and the others fail.
    #[test]
    fn a_launcher_whose_connection_is_closed_while_processes_fail_is_lost_soon() {
        for (is_first, is_closed) in [(false, true), (true, true), (false, false)] {
            let mut members = members(Duration::from_secs(60));
            let mut connected = Connected(Vec::new());
            let first = connected.come(&mut members, 0, &session());
            connected.come(&mut members, 1, &session());
            let fail = |members: &mut Members| {
                let item = PostBody::Failed(Task::worker(0), Ending::Exit(1));
                members.relay(up(0, &first, 0, item), Instant::now());
            };
            if is_first {
                fail(&mut members);
            }
            connected.breaks(&mut members, 1, is_closed);
            if !is_first {
                fail(&mut members);
            }
            members.look(Instant::now() + Duration::from_secs(16));
            let is_lost = members.all[1].stage == Stage::Awaited;
            assert_eq!(is_lost, is_closed, "{is_first}");
        }
    }

    /// Checks an elastic job and one that has begun.
    #[test]
    fn a_launcher_whose_part_does_not_fit_harms_none_of_those_that_run() {
        let range = WorkerRange { least: 1, most: 3 };
        for (workers, were_all_here) in [(Some(range), false), (None, true), (None, false)] {
            let mut members = members(Duration::from_secs(6));
            members.terms.workers = workers;
            let terms = members.terms;
            let settings = |has_evaluator| Settings {
                terms,
                part: Part {
                    workers: 1,
                    parameter_servers: 0,
                    has_evaluator,
                },
                own_address: std::net::Ipv4Addr::LOCALHOST.into(),
                session: session(),
            };
            let now = Instant::now();
            let mut all = Vec::new();
            let mut come = |host, has_evaluator| {
                let admitted = members.admit(host, &settings(has_evaluator), |_| true, now);
                let admitted = admitted.unwrap();
                all.push(listed(host, &admitted));
                members.note_census(&all, now);
                admitted.member
            };
            come(0, true);
            let second = come(1, false);
            if were_all_here {
                come(2, false);
            }
            members.left(1, second);
            let mut come = |has_evaluator| {
                let admitted = members.admit(1, &settings(has_evaluator), |_| true, now);
                admitted.err().map(|error| error.why).unwrap_or_default()
            };
            let why = come(true);
            let is_refused = workers.is_some() || were_all_here;
            let names_it = why.contains("an evaluator, as host 0 does");
            assert_eq!(names_it, is_refused, "{why}");
            if is_refused {
                assert_eq!(come(false), "");
            }
        }
    }

    #[test]
    fn another_launcher_of_a_host_takes_the_place_of_one_that_is_away_and_of_no_other() {
        let mut members = members(Duration::from_secs(6));
        let mut connected = Connected(Vec::new());
        connected.come(&mut members, 0, &session());
        connected.come(&mut members, 1, &session());
        let third = session();
        let refused = members.take_in(1, &third, Instant::now()).unwrap_err().why;
        assert!(
            refused.contains("a launcher for host 1 already"),
            "{refused}"
        );
        connected.breaks(&mut members, 1, true);
        connected.come(&mut members, 1, &third);
        assert_eq!(told(&members, 2), ["lost 1", "came 1"]);
    }

    #[test]
    fn who_leaves_or_never_comes_is_no_member() {
        let mut members = members(Duration::from_secs(6));
        let mut connected = Connected(Vec::new());
        connected.come(&mut members, 0, &session());
        let second = connected.come(&mut members, 1, &session());
        members.left(1, second.member);
        // Late frames do not revive the member.
        done(&mut members, 1, &second, 0);
        members.note_census(&connected.0, Instant::now());
        assert!(members.all[1].stage == Stage::Awaited);
        assert_eq!(told(&members, 1), ["came 1", "lost 1"]);
        // It was welcomed, but the welcome got lost, or it never reached its parent.
        let now = Instant::now();
        let third = members.take_in(2, &session(), now).unwrap();
        members.forget_silent(2, third.member, third.attach);
        assert!(members.all[2].stage == Stage::Awaited);
        members.say_farewell();
        assert_eq!(told(&members, 3), ["lost 0"]);
    }

    /// The relay looks at the list now and then only: a launcher may have come and gone meanwhile.
    #[test]
    fn who_comes_and_is_killed_between_two_lists_holds_up_none_that_comes_after_it() {
        let mut members = members(Duration::from_secs(6));
        let mut connected = Connected(Vec::new());
        connected.come(&mut members, 0, &session());
        let now = Instant::now();
        let killed = members.take_in(1, &session(), now).unwrap();
        connected.0.push(Listed {
            is_closed: Some(true),
            ..listed(1, &killed)
        });
        members.note_census(&connected.0, now);
        assert_eq!(told(&members, 1), ["came 1"]);
        // The list stays as it is for a while.
        members.note_census(&connected.0, now + Duration::from_secs(5));
        connected.come(&mut members, 1, &session());
        assert_eq!(told(&members, 2), ["lost 1", "came 1"]);
    }

    #[test]
    fn who_is_killed_on_the_way_to_its_parent_holds_up_none_that_comes_after_it() {
        let (mut members, sessions, all) = tree(2, 4);
        let now = Instant::now();
        // Host 3 was sent to another launcher.
        let sent = &all[3];
        assert!(sent.parent.is_some());
        assert!(members.take_in(3, &session(), now).unwrap_err().may_pass);
        members.forget_silent(3, sent.member, sent.attach);
        let sent = members.take_in(3, &session(), now).unwrap();
        assert!(told(&members, 0).is_empty());
        // The next one gets there, but its parent is lost before it could say so.
        members.arrived(3, sent.member, sent.attach, now);
        assert_eq!(told(&members, 0), ["came 3"]);
        members.note_census(&[], now);
        let silence = members.terms.pace().silence();
        assert!(members.take_in(3, &session(), now).unwrap_err().may_pass);
        members.look(now + silence);
        members.take_in(3, &session(), now).unwrap();
        assert_eq!(told(&members, 1), ["lost 3"]);
        // Another one gets there and comes again, before the relay has heard of that.
        let mut third = session();
        members.left(3, members.all[3].number().unwrap());
        members.take_in(3, &third, now).unwrap();
        again(&mut third, members.log().end());
        members.take_in(3, &third, now).unwrap();
        assert_eq!(told(&members, 2), ["came 3"]);
        // What an earlier connection reports does not count.
        let mut fourth = sessions[4].clone();
        fourth.attach += 1;
        members.take_in(4, &fourth, now).unwrap();
        members.forget_silent(4, all[4].member, all[4].attach);
        members.arrived(4, all[4].member, all[4].attach, now);
        assert!(members.all[4].stage == Stage::Welcomed);
    }

    #[test]
    fn who_does_not_read_is_lost() {
        let mut members = members(Duration::from_secs(6));
        let mut connected = Connected(Vec::new());
        let first = connected.come(&mut members, 0, &session());
        connected.come(&mut members, 1, &session());
        for number in 0..2 * WAITING_MAX as u64 {
            done(&mut members, 0, &first, number);
            connected.0[0].has = number;
            if number.is_multiple_of(100) {
                members.note_census(&connected.0, Instant::now());
            }
        }
        assert!(members.all[1].stage == Stage::Awaited);
        assert!(members.all[0].stage == Stage::Here);
    }

    /// Admits hosts 1 to `last` of a job with this arity, each at the door that its number names.
    fn tree(arity: usize, last: usize) -> (Members, Vec<Session>, Vec<Admitted>) {
        let mut members = Members::new(terms(last + 1, Duration::from_secs(6)), arity);
        let (mut sessions, mut all) = (Vec::new(), Vec::new());
        for host in 0..=last {
            let mut session = session();
            session.door = Some(([127, 0, 0, 1], 1000 + host as u16).into());
            all.push(members.take_in(host, &session, Instant::now()).unwrap());
            sessions.push(session);
        }
        (members, sessions, all)
    }

    #[test]
    fn launchers_are_a_tree_that_is_filled_from_the_top() {
        let (_, _, all) = tree(2, 8);
        let parents: Vec<usize> = all
            .iter()
            .map(|admitted| admitted.parent.map_or(0, |parent| parent.host))
            .collect();
        // The launcher of host 0 is at the relay.
        assert_eq!(parents, [0, 0, 0, 1, 2, 1, 2, 3, 4]);
        let (_, _, few) = tree(16, 16);
        assert!(few.iter().all(|admitted| admitted.parent.is_none()));
    }

    #[test]
    fn a_launcher_is_never_sent_below_itself_nor_where_it_cannot_go() {
        let (mut members, mut sessions, _) = tree(2, 8);
        let now = Instant::now();
        let mut parent = |host: usize, session: &mut Session| {
            again(session, 0);
            let admitted = members.take_in(host, session, now).unwrap();
            // It gets there.
            members.all[host].stage = Stage::Here;
            admitted.parent.map(|parent| parent.host)
        };
        // The launchers 3, 5 and 7 are below 1, and there is room at the relay.
        assert_eq!(parent(1, &mut sessions[1]), None);
        assert_eq!(parent(3, &mut sessions[3]), Some(1));
        sessions[3].avoid = [1].into();
        assert_eq!(parent(3, &mut sessions[3]), Some(5));
        sessions[3].avoid = [1, 4, 5, 6].into();
        assert_eq!(parent(3, &mut sessions[3]), Some(8), "7 is below 3");
        sessions[3].avoid = (1..=8).collect();
        assert_eq!(parent(3, &mut sessions[3]), None, "there is no other way");
    }

    /// A list that was true before a launcher had moved does not count for it, nor for who is
    /// below it.
    #[test]
    fn an_old_list_says_nothing_of_a_launcher_that_has_moved() {
        let (mut members, mut sessions, all) = tree(2, 4);
        let now = Instant::now();
        let at = |host: usize, depth, attach, is_closed| Listed {
            depth,
            attach,
            is_closed,
            ..listed(host, &all[host])
        };
        let here = |host, depth| at(host, depth, 1, None);
        let before = [here(0, 0), here(1, 0), here(3, 1), here(2, 0), here(4, 1)];
        members.note_census(&before, now);
        assert!(members.all.iter().all(|member| member.stage == Stage::Here));
        // Host 1 has moved to host 2; the relay still has its old connection.
        sessions[1].avoid = BTreeSet::new();
        again(&mut sessions[1], 0);
        members.take_in(1, &sessions[1], now).unwrap();
        let moved = [
            here(0, 0),
            at(1, 0, 1, Some(true)),
            here(2, 0),
            at(1, 1, 2, None),
            here(3, 2),
            here(4, 1),
        ];
        members.note_census(&moved, now);
        assert!(members.all.iter().all(|member| member.stage == Stage::Here));
        assert_eq!(members.all[1].link.as_ref().unwrap().parent, Some(2));
        // An inner launcher is gone: who was below it is away, for as long as any other.
        let gone = [here(0, 0), at(2, 0, 1, Some(true))];
        members.note_census(&gone, now);
        for host in 1..5 {
            assert!(
                matches!(members.all[host].stage, Stage::Away { .. }),
                "{host}"
            );
        }
        // Those that find another parent are not lost with it.
        for host in [1, 4] {
            again(&mut sessions[host], 5);
            members.take_in(host, &sessions[host], now).unwrap();
        }
        let back = [here(0, 0), at(1, 0, 3, None), here(3, 1), at(4, 0, 2, None)];
        members.note_census(&back, now);
        members.look(now + Duration::from_secs(7));
        assert_eq!(told(&members, 5), ["lost 2"]);
    }

    #[test]
    fn a_list_that_makes_no_sense_harms_no_other_launcher() {
        let (mut members, _, all) = tree(2, 4);
        let now = Instant::now();
        let here = |host: usize, depth| Listed {
            depth,
            ..listed(host, &all[host])
        };
        let whole = [here(0, 0), here(1, 0), here(3, 1), here(2, 0), here(4, 1)];
        members.note_census(&whole, now);
        let mut more = whole.to_vec();
        for (host, depth, attach, has) in [
            (usize::MAX, u32::MAX, u64::MAX, u64::MAX),
            (4, u32::MAX, 1, u64::MAX),
            (4, 0, 0, 0),
            (9, 0, 1, 1),
        ] {
            let member = all.get(host).map_or(u64::MAX, |one| one.member);
            more.push(Listed {
                host,
                member,
                attach,
                has,
                depth,
                is_closed: None,
            });
        }
        let cuts = members.note_census(&more, now);
        assert_eq!(cuts, [(usize::MAX, u64::MAX), (9, u64::MAX)]);
        assert!(members.all.iter().all(|member| member.stage == Stage::Here));
        // It claims to have what there is not: posts still reach it and all others.
        done(&mut members, 1, &all[1], 0);
        assert_eq!(told(&members, 5), ["done 1 0"]);
    }
}
