//! This launcher as a member of the group of all hosts' launchers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGINT;

use crate::error::{LaunchError, Result};
use crate::events::{Event, Events};
use crate::hosts::join::Joining;
use crate::hosts::link::{Delivery, Link};
use crate::hosts::outbox::{Farewell, Outbox};
use crate::hosts::part::Part;
use crate::hosts::posts::{Instruction, Over, Post, PostBody, Posts};
use crate::hosts::wait::{WaitOutcome, WaitReport};
use crate::hosts::wire::{Session, Terms, runtime};
use crate::job::cluster::{Cluster, Token};
use crate::job::hosts::Hosts;
use crate::job::task::{Role, Task};
use crate::membership::lead::Lead;
use crate::membership::{AttemptEnd, Decision, End, Plan};
use crate::report::attempt::AttemptResult;
use crate::report::console::Screen;
use crate::report::outcome::Outcome;
use crate::thread_scope::ThreadScope;

/// The launchers of all hosts, as this launcher sees them.
pub struct LauncherGroup {
    hosts: Hosts,
    outbox: Arc<Outbox>,
    /// What this host has told of its workers in this attempt: said again to a relay that is there
    /// again, as it may not have heard it, nor this host its answer.
    told: Mutex<Vec<PostBody>>,
    own_address: IpAddr,
    /// Whether the relay is lost, so that this launcher knows of nobody.
    is_cut_off: bool,
    /// How long it is tried to find a lost relay again, if it is.
    return_time: Option<Duration>,
    /// Whether that is tried while the workers of this host go on.
    is_staying: bool,
    /// Whether the attempt has ended here meanwhile.
    has_ended_alone: bool,
    pub posts: Posts,
    /// On host 0: who takes part.
    lead: Option<Lead>,
    /// The signal because of which this host leaves the job, which goes on.
    leaving: Option<i32>,
    /// Everybody's random number, from which the tokens of the attempts are made.
    nonce: Token,
}

/// The whole job in one attempt: its cluster, the tasks of this host, and the token.
pub struct AttemptCluster {
    pub cluster: Cluster,
    pub tasks: Vec<Task>,
    pub token: Token,
    /// One for each worker of this host, where a range of ports was named.
    pub data_ports: Vec<u16>,
}

impl LauncherGroup {
    /// Connects to the relay, which may not be there yet, and says what it waits for. `lead` is
    /// that of host 0; `return_time` is how long it is tried to find a relay again that is lost.
    pub fn join(
        threads: &ThreadScope<'_, '_>,
        hosts: &Hosts,
        ((terms, part), lead, return_time): ((Terms, Part), Option<Lead>, Option<Duration>),
        events: &Events,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<LauncherGroup>> {
        let runtime = runtime()?;
        let session = Session::new()?;
        let joining = Joining {
            runtime: &runtime,
            hosts,
            terms,
            part,
            session: &session,
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
            hosts: hosts.clone(),
            terms,
            part,
            outbox: Arc::clone(&outbox),
            session,
            delivery: Delivery::new(events),
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
            lead,
            leaving: None,
            nonce: Token::random()?,
        }))
    }

    /// The job is over, and the other hosts know as much as this one. Without this call, they take
    /// the end of the connection for the loss of this host.
    pub fn leave(&self) {
        self.outbox.close(Farewell::Over);
    }

    /// The number of this host.
    pub fn index(&self) -> usize {
        self.hosts.index
    }

    /// Whether with this signal this host alone leaves: that of an elastic job, other than host 0,
    /// when its scheduler takes it away. SIGINT, and a second signal, is for the whole job.
    pub fn leaves(&mut self, signal: i32) -> bool {
        let may_leave = self.posts.is_elastic() && self.hosts.index > 0;
        let leaves = may_leave && self.leaving.is_none() && signal != SIGINT;
        if leaves {
            self.leaving = Some(signal);
        }
        leaves
    }

    /// The signal because of which this host leaves the job, which goes on.
    pub fn leaving(&self) -> Option<i32> {
        self.leaving
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
        // Never full but with a connection that is about to be given up.
        let _lost = self.outbox.push(Post {
            host,
            restart,
            item,
        });
    }

    /// Remembers what a launcher has told; an error if it is more than there is to tell.
    pub fn record(&mut self, post: Post) -> Result<()> {
        if let Some(lead) = &mut self.lead {
            match post.item {
                PostBody::Came => lead.came(post.host),
                PostBody::Lost => lead.lost(post.host),
                PostBody::Leave => lead.leaves(post.host),
                _ => {}
            }
            let wants_save = lead.wants_save();
            let refused = lead.take_refused();
            if wants_save {
                self.post(PostBody::Save);
            }
            if !refused.is_empty() {
                self.post(PostBody::Refused(refused));
            }
        }
        if let (0, PostBody::Refused(hosts)) = (post.host, &post.item)
            && hosts.contains(&self.hosts.index)
        {
            let why = "the job could not go on with it, as its workers say above or in their logs: \
                       use the same program, options and data everywhere";
            return Err(LaunchError::HostRefused {
                why: why.to_owned(),
            });
        }
        if matches!(post.item, PostBody::Came) && post.host == self.hosts.index {
            // The attempt is over here, and the others may not know how it ended.
            if std::mem::take(&mut self.has_ended_alone) {
                self.come_back();
            }
        }
        let is_other = post.host != self.hosts.index;
        if matches!(post.item, PostBody::Back) && is_other && self.posts.is_of_attempt(&post) {
            // What was said while that host was out of reach.
            self.tell_again();
        }
        if post.host == 0 && matches!(post.item, PostBody::Lost) {
            self.is_cut_off = true;
            // A relay that has ended says so, and does not come again.
            self.return_time = self.return_time.filter(|_| post.is_relay_lost());
            self.posts.lose_others(self.hosts.index, self.hosts.count);
        }
        self.posts.record(post)
    }

    /// The relay is lost. Whether the workers of this host go on while it is looked for.
    pub fn stay(&mut self) -> bool {
        let stays = self.return_time.is_some() && self.posts.stays(self.hosts.index);
        if stays {
            self.is_staying = true;
            self.posts.forget_who_is_here();
            self.outbox.ask_for_return();
        }
        stays
    }

    /// Where the launcher of host 0 is looked for and how long, as a part of a message, if it is
    /// among the lost ones and that is done.
    pub fn looks_for_host_0(&self, lost: &[usize]) -> Option<String> {
        let time = self.return_time.filter(|_| lost.contains(&0))?.as_secs();
        let address = self.hosts.address;
        Some(format!(
            "looking for host 0 at {address}, where all meet, for up to {time} s"
        ))
    }

    /// Whether the relay, lost before, has just said that this host is there: its workers go on as
    /// part of the job.
    pub fn is_back(&mut self, host: usize) -> bool {
        let is_back = host == self.hosts.index && std::mem::take(&mut self.is_staying);
        if is_back {
            self.come_back();
        }
        is_back
    }

    /// This host still has its part of the attempt: all hear so, and what else it has told.
    fn come_back(&self) {
        self.send(PostBody::Back);
        self.tell_again();
    }

    fn tell_again(&self) {
        let told = self.told().clone();
        told.into_iter().for_each(|item| self.send(item));
    }

    /// The others have gone on to something else while this host was out of reach.
    pub fn left_behind(&mut self) {
        self.is_staying = false;
        self.posts.left_behind(self.hosts.index);
    }

    /// Begins to look for a relay that is lost; an error if it does not come again.
    fn return_if_cut_off(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_cut_off) {
            return Ok(());
        }
        if self.return_time.is_none() {
            return Err(LaunchError::HostLost { host: 0 });
        }
        self.posts.join_anew();
        self.outbox.ask_for_return();
        Ok(())
    }

    /// The attempt is over. On host 0, the hosts without which the job goes on because they do not
    /// fit.
    pub fn ended(&mut self, end: AttemptEnd) -> Vec<usize> {
        let Some(lead) = &mut self.lead else {
            return Vec::new();
        };
        lead.ended(end);
        let refused = lead.take_refused();
        if !refused.is_empty() {
            self.post(PostBody::Refused(refused.clone()));
        }
        refused
    }

    /// What host 0 tells all to do next; on host 0, says that. `outcome` is that
    /// of the last attempt.
    pub fn next(
        &mut self,
        outcome: Option<&Outcome>,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
    ) -> Result<WaitOutcome<Instruction>> {
        let index = self.hosts.index;
        let mut report = match self.return_time.filter(|_| self.is_cut_off) {
            Some(time) => WaitReport::new(time),
            None => WaitReport::endless(),
        };
        let mut has_decided = false;
        let mut is_told = false;
        if let Some(done @ Outcome::Succeeded { .. }) = outcome.filter(|_| self.is_cut_off) {
            let over = Over::Outcome(done.clone());
            return Ok(WaitOutcome::Done(Instruction::Over(over)));
        }
        if let Some(over) = self.posts.take_over() {
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
            if let Some(lead) = self.lead.as_mut().filter(|_| !has_decided) {
                let (decision, wait) = lead.decide();
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
                    match self.posts.here().is_empty() {
                        true => return Ok(WaitOutcome::Stopped(signal)),
                        false => self.post(PostBody::Stop(signal)),
                    }
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
        let missing = (0..self.hosts.count).filter(|host| !here.contains(host));
        let missing: Vec<usize> = missing.collect();
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

    /// Tells all what was decided.
    fn tell(&self, decision: Decision, outcome: Option<&Outcome>) {
        match (decision, outcome) {
            (Decision::Wait(_), _) => {}
            (Decision::Start(plan), _) => self.post(PostBody::Plan(plan)),
            (Decision::End(End::TooFew { missing, left }), _) => {
                self.post(PostBody::Over(Over::TooFew { missing, left }));
            }
            (Decision::End(_), Some(outcome)) => {
                self.post(PostBody::Over(Over::Outcome(outcome.clone())));
            }
            // No end but that of an attempt, which has an outcome.
            (Decision::End(_), None) => {}
        }
    }

    /// Waits until all hosts are ready for an attempt.
    pub fn wait_for_hosts(
        &mut self,
        plan: &Plan,
        cluster: Cluster,
        (received, screen): (&Receiver<Event>, &Screen<'_>),
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
                Ok(Event::Signal(signal)) if self.leaves(signal) => {
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

    /// The hosts that are there and those that are missing, as a message.
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
            data_ports: Vec::new(),
        })
    }

    /// Sends how this host's part ended, waits for the other hosts, and returns the results of all
    /// hosts as one.
    pub fn gather(
        &mut self,
        ended: AttemptResult,
        received: &Receiver<Event>,
    ) -> Result<(AttemptResult, Option<i32>)> {
        if self.is_staying {
            self.left_behind();
            self.is_cut_off = true;
            self.has_ended_alone = true;
        }
        self.post(PostBody::Ended(ended.clone()));
        let (host, restart) = (self.hosts.index, self.posts.restart());
        let mut was_left = false;
        loop {
            if self.is_cut_off {
                // Nobody passes it on.
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
                // Host 0 has heard what was said while this host was out of reach.
                was_left = true;
                self.left_behind();
                continue;
            }
            // The relay says within seconds if a host is gone, and its silence is noticed too.
            match received.recv() {
                Ok(Event::Post(post)) => self.record(*post)?,
                Ok(Event::Signal(signal)) if self.leaves(signal) => {}
                Ok(Event::Signal(signal)) => self.post(PostBody::Stop(signal)),
                Ok(Event::Broken(error)) => return Err(error),
                Ok(Event::Ended { .. }) => {}
                Err(_) => return Err(LaunchError::HostLost { host: 0 }),
            }
        }
    }
}

/// A launcher that has not said that the job is over gives up.
impl Drop for LauncherGroup {
    fn drop(&mut self) {
        self.outbox.close(Farewell::Quit);
    }
}
