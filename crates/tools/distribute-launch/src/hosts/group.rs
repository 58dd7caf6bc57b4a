//! This launcher as a member of the group of all hosts' launchers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGINT;

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::hosts::join::{Dialer, Joining};
use crate::hosts::link::Link;
use crate::hosts::outbox::{Farewell, Outbox};
use crate::hosts::part::Part;
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{Terms, runtime};
use crate::job::cluster::{Cluster, Token};
use crate::job::hosts::Hosts;
use crate::job::task::{Role, Task};
use crate::membership::timed::TimedMembership;
use crate::membership::{AttemptEnd, Decision, End, Plan};
use crate::posts::{Instruction, JobEnd, Post, PostBody, Posts};
use crate::report::attempt::AttemptResult;
use crate::report::console::Screen;
use crate::report::outcome::Outcome;
use crate::thread_scope::ThreadScope;

/// How long the other hosts may take to end their processes, besides the grace period.
const ENDING: Duration = Duration::from_secs(600);
/// When that is first reported: a launcher takes less unless its system hangs.
const ENDING_FIRST: Duration = Duration::from_secs(20);

/// The launchers of all hosts, as this launcher sees them.
pub struct LauncherGroup {
    hosts: Hosts,
    outbox: Arc<Outbox>,
    /// What this host has posted about its workers in this attempt. It is posted again when a lost
    /// relay comes back, which may have missed it.
    told: Mutex<Vec<PostBody>>,
    own_address: IpAddr,
    /// Whether the relay is lost, so that this launcher hears from no other host.
    is_cut_off: bool,
    /// How long to look for a lost relay; `None` if a lost relay ends the job on this host.
    return_time: Option<Duration>,
    /// Whether the workers of this host go on while the relay is looked for.
    is_staying: bool,
    /// Whether the attempt has ended on this host while the relay was lost.
    has_ended_alone: bool,
    pub posts: Posts,
    /// On host 0: the state machine that decides which hosts take part.
    membership: Option<TimedMembership>,
    /// The signal that makes this host leave the job; the job goes on.
    leaving: Option<i32>,
    /// Why the job goes on without this host, if it was slow for long.
    dropped: Option<String>,
    /// This host's random number. The token of an attempt is derived from the random numbers of all
    /// hosts.
    nonce: Token,
}

/// What a launcher brings when it joins the group.
pub struct HostSetup {
    pub terms: Terms,
    pub part: Part,
    /// On host 0: the state machine that decides which hosts take part.
    pub membership: Option<TimedMembership>,
    /// How long to look for a lost relay; `None` if a lost relay ends the job on this host.
    pub return_time: Option<Duration>,
}

/// The whole job in one attempt: its cluster, the tasks of this host, and the token.
pub struct AttemptCluster {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    pub token: Token,
}

impl LauncherGroup {
    /// Connects to the relay, waiting for it if it does not listen yet, and reports the wait.
    pub fn join(
        threads: &ThreadScope<'_, '_>,
        hosts: &Hosts,
        own: HostSetup,
        events: &Events,
        received: &Receiver<Event>,
        screen: &Screen,
    ) -> Result<WaitOutcome<LauncherGroup>> {
        let HostSetup {
            terms,
            part,
            membership,
            return_time,
        } = own;
        let runtime = runtime()?;
        let mut dialer = Dialer::new(hosts, terms, part)?;
        let mut joining = Joining {
            runtime: &runtime,
            dialer: &mut dialer,
            received,
            screen,
        };
        let joined = match joining.run()? {
            WaitOutcome::Done(joined) => joined,
            WaitOutcome::Stopped(signal) => return Ok(WaitOutcome::Stopped(signal)),
            WaitOutcome::HostLost => return Ok(WaitOutcome::HostLost),
        };
        let (outbox, own_address) = (Outbox::new(), joined.own_address);
        let link = Link {
            dialer,
            outbox: Arc::clone(&outbox),
            events: events.clone(),
            return_time,
        };
        threads.spawn("group", move || runtime.block_on(link.run(joined)))?;
        Ok(WaitOutcome::Done(LauncherGroup {
            hosts: hosts.clone(),
            outbox,
            told: Mutex::default(),
            own_address,
            is_cut_off: false,
            return_time,
            is_staying: false,
            has_ended_alone: false,
            posts: Posts::new(hosts.count, terms.workers.is_some()),
            membership,
            leaving: None,
            dropped: None,
            nonce: Token::random()?,
        }))
    }

    /// Says good-bye: the job is over, and the other hosts know. Without this call they take the
    /// end of the connection for the loss of this host.
    pub fn leave(&self) {
        self.outbox.close(Farewell::JobEnded);
    }

    /// The number of this host.
    pub fn index(&self) -> usize {
        self.hosts.index
    }

    /// Makes this host leave an elastic job that goes on without it, and returns true, if `signal`
    /// says so: a scheduler takes the host away. Returns false on host 0, for SIGINT and for a
    /// second signal, which stop the whole job.
    pub fn begin_leaving(&mut self, signal: i32) -> bool {
        let may_leave = self.posts.is_elastic() && self.hosts.index > 0;
        let begins = may_leave && self.leaving.is_none() && signal != SIGINT;
        if begins {
            self.leaving = Some(signal);
        }
        begins
    }

    /// The signal that makes this host leave the job; the job goes on.
    pub fn leaving(&self) -> Option<i32> {
        self.leaving
    }

    /// Why the job goes on without this host, if it was slow for long.
    pub fn dropped(&self) -> Option<&str> {
        self.dropped.as_deref()
    }

    /// Where the other hosts reach this one.
    pub fn own_address(&self) -> IpAddr {
        self.own_address
    }

    /// Tells all launchers, this one included.
    pub fn post(&self, item: PostBody) {
        if let PostBody::WorkerGone(..) | PostBody::WorkersDone | PostBody::Ended(_) = item {
            self.told().push(item.clone());
        }
        self.send(item);
    }

    fn told(&self) -> MutexGuard<'_, Vec<PostBody>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, item: PostBody) {
        let (host, restart) = (self.hosts.index, self.posts.restart());
        // The outbox is full only if its connection is about to be given up.
        let _lost = self.outbox.push(Post {
            host,
            restart,
            item,
        });
    }

    /// Records a post of a launcher. Fails if a host sends more posts than it can have cause for.
    pub fn record(&mut self, post: Post) -> Result<()> {
        if let Some(membership) = &mut self.membership {
            match post.item {
                PostBody::Came => membership.note_arrival(post.host),
                PostBody::Lost => membership.note_loss(post.host),
                PostBody::Leave => membership.note_leaving(post.host),
                _ => {}
            }
            let slow = match &post.item {
                PostBody::Slow(why) if self.posts.is_of_attempt(&post) => Some(why.clone()),
                _ => None,
            };
            let slow = slow.map(|why| PostBody::SlowHost {
                host: post.host,
                why,
                is_dropped: membership.note_slow(post.host, None),
            });
            let take_save_request = membership.take_save_request();
            let refused = membership.take_refused();
            if let Some(slow) = slow {
                self.post(slow);
            }
            if take_save_request {
                self.post(PostBody::Save);
            }
            if !refused.is_empty() {
                self.post(PostBody::Refused(refused));
            }
        }
        if let PostBody::SlowHost {
            host,
            why,
            is_dropped: true,
        } = &post.item
            && (post.host, *host) == (0, self.hosts.index)
            && *host > 0
        {
            self.dropped = Some(why.clone());
        }
        if let (0, PostBody::Refused(hosts)) = (post.host, &post.item)
            && hosts.contains(&self.hosts.index)
        {
            let why = "the job could not go on with it, as its workers say above or in their logs: \
                       use the same program, options and data everywhere, and no host that was \
                       slow for long";
            return Err(LaunchError::HostRefused {
                why: why.to_owned(),
            });
        }
        if matches!(post.item, PostBody::Came) && post.host == self.hosts.index {
            // The attempt has ended here, and the others may not know how.
            if std::mem::take(&mut self.has_ended_alone) {
                self.come_back();
            }
        }
        let is_other = post.host != self.hosts.index;
        if matches!(post.item, PostBody::Back) && is_other && self.posts.is_of_attempt(&post) {
            // That host has missed what was posted meanwhile.
            self.tell_again();
        }
        if post.host == 0 && matches!(post.item, PostBody::Lost) {
            self.is_cut_off = true;
            // A relay that says good-bye does not come back.
            self.return_time = self.return_time.filter(|_| post.is_relay_lost());
            self.posts.lose_others(self.hosts.index, self.hosts.count);
        }
        self.posts.record(post)
    }

    /// Called when the relay is lost: lets the workers of this host go on while it is looked for,
    /// if the job allows that. Returns whether they go on.
    pub fn continue_without_relay(&mut self) -> bool {
        let stays = self.return_time.is_some() && self.posts.can_continue_alone(self.hosts.index);
        if stays {
            self.is_staying = true;
            self.posts.forget_who_is_here();
            self.outbox.ask_for_return();
        }
        stays
    }

    /// Part of a message: where and how long host 0 is looked for. `None` if host 0 is not among
    /// the lost hosts or is not looked for.
    pub fn describe_search(&self, lost: &[usize]) -> Option<String> {
        let time = self.return_time.filter(|_| lost.contains(&0))?.as_secs();
        let address = self.hosts.address;
        Some(format!(
            "looking for host 0 at {address}, where all meet, for up to {time} s"
        ))
    }

    /// Returns true once after a lost relay has taken this host in again: its workers are part of
    /// the job again, and the other launchers are told.
    pub fn take_return(&mut self, host: usize) -> bool {
        let is_back = host == self.hosts.index && std::mem::take(&mut self.is_staying);
        if is_back {
            self.come_back();
        }
        is_back
    }

    /// Tells all launchers that this host still has its part of the attempt, and repeats its posts.
    fn come_back(&self) {
        self.send(PostBody::Back);
        self.tell_again();
    }

    fn tell_again(&self) {
        let told = self.told().clone();
        told.into_iter().for_each(|item| self.send(item));
    }

    /// The other hosts have ended the attempt while this host was out of reach.
    pub fn left_behind(&mut self) {
        self.is_staying = false;
        self.posts.left_behind(self.hosts.index);
    }

    /// If the relay is lost, begins to look for it. Fails if a lost relay ends the job.
    fn return_if_cut_off(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_cut_off) {
            return Ok(());
        }
        if self.return_time.is_none() {
            return Err(LaunchError::HostLost { host: 0 });
        }
        if self.has_ended_alone {
            // The relay has been looked for since it was lost, and may have told already who is
            // here.
            self.posts.forget_posts();
        } else {
            self.posts.join_anew();
            self.outbox.ask_for_return();
        }
        Ok(())
    }

    /// Notes how the attempt ended. Returns, on host 0, the hosts that do not fit: the job goes on
    /// without them.
    pub fn ended(&mut self, end: AttemptEnd) -> Vec<usize> {
        let Some(membership) = &mut self.membership else {
            return Vec::new();
        };
        membership.ended(end);
        let refused = membership.take_refused();
        if !refused.is_empty() {
            self.post(PostBody::Refused(refused.clone()));
        }
        refused
    }

    /// Waits for host 0's instruction what to do next; on host 0, gives it.
    /// `outcome` is the last attempt's.
    pub fn next(
        &mut self,
        outcome: Option<&Outcome>,
        received: &Receiver<Event>,
        screen: &Screen,
    ) -> Result<WaitOutcome<Instruction>> {
        let index = self.hosts.index;
        let mut report = match self.return_time.filter(|_| self.is_cut_off) {
            Some(time) => WaitReport::new(time),
            None => WaitReport::endless(),
        };
        let mut has_decided = false;
        let mut is_told = false;
        if let Some(done @ Outcome::Succeeded { .. }) = outcome.filter(|_| self.is_cut_off) {
            let over = JobEnd::Outcome(done.clone());
            return Ok(WaitOutcome::Done(Instruction::JobEnd(over)));
        }
        if let Some(over) = self.posts.take_job_end() {
            return Ok(WaitOutcome::Done(over));
        }
        loop {
            self.return_if_cut_off()?;
            if let Some(signal) = self.posts.stop_signal() {
                return Ok(WaitOutcome::Stopped(signal));
            }
            if let Some(instruction) = self.posts.take_instruction(index) {
                return Ok(WaitOutcome::Done(instruction));
            }
            let mut until = None;
            if let Some(membership) = self.membership.as_mut().filter(|_| !has_decided) {
                let (decision, wait) = membership.decide();
                has_decided = !matches!(decision, Decision::Wait(_));
                until = wait;
                self.tell(decision, outcome);
            }
            report.log_if_due(screen, || self.describe_wait())?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map_or(report.left(), |left| left.min(report.left()));
            match received.recv_timeout(left) {
                Ok(Event::Post(post)) => self.record(*post)?,
                // No process of this host runs: an elastic job goes on without it.
                Ok(Event::Signal(signal)) if is_told || (index > 0 && self.posts.is_elastic()) => {
                    return Ok(WaitOutcome::Stopped(signal));
                }
                Ok(Event::Signal(signal)) => {
                    is_told = true;
                    if self.posts.here().is_empty() {
                        return Ok(WaitOutcome::Stopped(signal));
                    }
                    self.post(PostBody::Stop(signal));
                }
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LaunchError::HostLost { host: 0 });
                }
            }
        }
    }

    /// What this host waits for before the next start, as a message.
    fn describe_wait(&self) -> String {
        let Hosts { index, address, .. } = self.hosts;
        let here: Vec<usize> = self.posts.here().iter().copied().collect();
        let missing: Vec<usize> = (0..self.hosts.count)
            .filter(|host| !here.contains(host))
            .collect();
        if here.is_empty() {
            format!("host {index} has lost the launcher of host 0 and looks for it at {address}")
        } else if missing.is_empty() {
            format!("host {index} waits for the next start of the job")
        } else {
            let count = self.hosts.count;
            format!(
                "host {index} waits for the launchers of the hosts {missing:?} to come to \
                 {address}; here are {here:?} of {count}"
            )
        }
    }

    /// Posts the decision to all launchers.
    fn tell(&self, decision: Decision, outcome: Option<&Outcome>) {
        match (decision, outcome) {
            (Decision::Wait(_), _) => {}
            (Decision::Start(plan), _) => self.post(PostBody::Plan(plan)),
            (Decision::End(End::TooFew { missing, left }), _) => {
                self.post(PostBody::JobEnd(JobEnd::TooFew { missing, left }));
            }
            (Decision::End(_), Some(outcome)) => {
                self.post(PostBody::JobEnd(JobEnd::Outcome(outcome.clone())));
            }
            // The job can only end with an attempt, which has an outcome.
            (Decision::End(_), None) => {}
        }
    }

    /// Waits until all hosts are ready for an attempt.
    pub fn wait_for_hosts(
        &mut self,
        plan: &Plan,
        cluster: Cluster,
        received: &Receiver<Event>,
        screen: &Screen,
    ) -> Result<WaitOutcome<AttemptCluster>> {
        let restart = plan.start;
        self.posts.begin_plan(plan);
        self.told().clear();
        self.post(PostBody::Ready(self.nonce.secret().to_owned(), cluster));
        let mut report = WaitReport::new(self.hosts.join_timeout);
        loop {
            if let Some(signal) = self.posts.stop_signal() {
                return Ok(WaitOutcome::Stopped(signal));
            }
            if self.posts.has_lost() {
                return Ok(WaitOutcome::HostLost);
            }
            let ready = self.posts.ready();
            let hosts = self.posts.hosts().iter().copied();
            let missing: Vec<usize> = hosts.filter(|host| !ready.contains_key(host)).collect();
            if missing.is_empty() {
                return self.attempt_cluster(restart, &ready).map(WaitOutcome::Done);
            }
            if report.is_over() {
                return Err(self.hosts.missing(missing));
            }
            let here: Vec<usize> = ready.keys().copied().collect();
            report.log_if_due(screen, || self.describe(&here, &missing))?;
            match received.recv_timeout(report.left()) {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) if self.begin_leaving(signal) => {
                    return Ok(WaitOutcome::Stopped(signal));
                }
                Ok(Event::Signal(signal)) => self.post(PostBody::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LaunchError::HostsMissing { missing });
                }
            }
        }
    }

    /// A message that names the hosts that are here and the missing ones.
    fn describe(&self, here: &[usize], missing: &[usize]) -> String {
        let Hosts { index, address, .. } = self.hosts;
        format!(
            "host {index} waits for the launchers of the hosts {missing:?} to come to {address}; \
             here are {here:?} of {}",
            self.posts.hosts().len()
        )
    }

    fn attempt_cluster(
        &self,
        restart: u32,
        ready: &BTreeMap<usize, (&String, &Cluster)>,
    ) -> Result<AttemptCluster> {
        let mut cluster = Cluster::default();
        let mut tasks = Vec::new();
        let restart = restart.to_string();
        let mut parts = vec![restart.as_bytes()];
        for (host, (nonce, part)) in ready {
            parts.push(nonce.as_bytes());
            let added = cluster.append(part);
            if *host == self.hosts.index {
                tasks = added;
            }
        }
        cluster.reconcile_chief(&mut tasks);
        if !self.posts.is_elastic() {
            let parts = ready.iter().map(|(host, (_, part))| (*host, *part));
            cluster.check_parts(parts)?;
        }
        let is_evaluator = |task: &Task| task.role == Role::Evaluator;
        if cluster.tasks().filter(is_evaluator).count() > 1 {
            let what = "more than one host starts an evaluator: ask for it on one".to_owned();
            return Err(LaunchError::InvalidHosts { what });
        }
        let security = &self.hosts.security;
        let token = Token::of(&security.derive("distribute-launch job token", &parts));
        Ok(AttemptCluster {
            cluster,
            tasks,
            token,
        })
    }

    /// Sends how this host's part ended, waits for the other hosts, and returns the results of all
    /// hosts as one. The wait has no limit while the others are at work, and [`ENDING`] besides
    /// `grace` once the attempt ends.
    pub fn gather(
        &mut self,
        ended: AttemptResult,
        grace: Duration,
        received: &Receiver<Event>,
        screen: &Screen,
    ) -> Result<(AttemptResult, Option<i32>)> {
        if self.is_staying {
            self.left_behind();
            self.is_cut_off = true;
            self.has_ended_alone = true;
        }
        self.post(PostBody::Ended(ended.clone()));
        let (host, restart) = (self.hosts.index, self.posts.restart());
        let (mut was_left, mut report) = (false, None);
        loop {
            if self.is_cut_off {
                // No relay passes it on.
                let item = PostBody::Ended(ended.clone());
                self.posts.record(Post {
                    host,
                    restart,
                    item,
                })?;
            }
            if let Some(whole) = self.posts.combined() {
                return Ok(whole);
            }
            if self.posts.has_instruction() && !was_left {
                // Host 0 now has what was posted while this host was out of reach.
                was_left = true;
                self.left_behind();
                continue;
            }
            if self.posts.is_ending() {
                let limit = ENDING + grace;
                let report =
                    report.get_or_insert_with(|| WaitReport::late(grace + ENDING_FIRST, limit));
                self.report_end(report, limit, screen)?;
            }
            // The relay says within seconds if a host is gone, and its silence is noticed too.
            let event = match &report {
                Some(report) => received.recv_timeout(report.left()),
                None => received.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) if self.begin_leaving(signal) => {}
                Ok(Event::Signal(signal)) => self.post(PostBody::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LaunchError::HostLost { host: 0 });
                }
            }
        }
    }

    /// Names the hosts on which the attempt does not end; fails when that takes too long.
    fn report_end(&self, report: &mut WaitReport, waited: Duration, screen: &Screen) -> Result<()> {
        let hosts = self.posts.not_ended();
        if report.is_over() {
            return Err(LaunchError::HostDoesNotEnd { hosts, waited });
        }
        let index = self.hosts.index;
        report.log_if_due(screen, || {
            format!("host {index} waits until the processes of the hosts {hosts:?} have ended")
        })
    }
}

/// A launcher that has not said that the job is over gives up.
impl Drop for LauncherGroup {
    fn drop(&mut self) {
        self.outbox.close(Farewell::Quit);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use distribute_net::security::Security;

    use super::*;
    use crate::job::ports::ReservedPorts;
    use crate::membership::Counts;
    use crate::report::console::Console;
    use crate::report::verdict::Verdict;

    /// Host 1 of two, of which host 0 has the chief, a server and a worker, and this one a worker,
    /// in an attempt that goes on here while host 0 is looked for.
    fn staying() -> LauncherGroup {
        let hosts = Hosts::new(([127, 0, 0, 1], 9000).into(), 2, 1, Security::default());
        let mut posts = Posts::new(2, false);
        let first = [Role::Chief, Role::ParameterServer, Role::Worker];
        let second = [Role::Worker];
        for (host, roles) in [&first[..], &second[..]].into_iter().enumerate() {
            let tasks: Vec<Task> = roles
                .iter()
                .map(|role| Task {
                    role: *role,
                    index: 0,
                })
                .collect();
            let ports = ReservedPorts::new(tasks.len(), Ipv4Addr::LOCALHOST.into()).unwrap();
            let ready = PostBody::Ready(String::new(), Cluster::with_ports(&ports, &tasks));
            posts.record(post(host, ready)).unwrap();
        }
        let mut group = LauncherGroup {
            hosts,
            outbox: Outbox::new(),
            told: Mutex::default(),
            own_address: Ipv4Addr::LOCALHOST.into(),
            is_cut_off: false,
            return_time: Some(Duration::from_secs(60)),
            is_staying: false,
            has_ended_alone: false,
            posts,
            membership: None,
            leaving: None,
            dropped: None,
            nonce: Token::random().unwrap(),
        };
        assert!(group.continue_without_relay());
        group
    }

    fn post(host: usize, item: PostBody) -> Post {
        let restart = 0;
        Post {
            host,
            restart,
            item,
        }
    }

    /// The relay says first that host 0 is there, then that this host is. Between the two the
    /// attempt ends on this host.
    #[test]
    fn what_a_relay_that_is_found_again_has_told_counts_when_the_attempt_ends_alone() {
        let mut group = staying();
        group.record(post(0, PostBody::Came)).unwrap();
        let plan = Plan {
            start: 1,
            places: [(0, vec![0]), (1, vec![0])].into(),
            counts: Counts::default(),
        };
        let (events, received) = crate::events::channel(1);
        let (_events, nothing) = crate::events::channel(1);
        let told = [
            post(1, PostBody::Came),
            post(0, PostBody::Plan(plan.clone())),
        ];
        for post in told {
            events.try_send(Event::Post(Box::new(post)));
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut console = Console::new(&mut stdout, &mut stderr);
        let next = Screen::run(&mut console, |screen| {
            let ended = AttemptResult::new(Verdict::Preempted, Vec::new());
            group.gather(ended, Duration::ZERO, &nothing, screen)?;
            group.next(None, &received, screen)
        });
        assert!(matches!(next, Ok(WaitOutcome::Done(Instruction::Start(next))) if next == plan));
        group.posts.begin_plan(&plan);
        assert!(!group.posts.has_lost(), "all of its hosts are there");
    }
}
