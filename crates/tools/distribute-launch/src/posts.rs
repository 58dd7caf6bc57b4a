//! The messages between launchers, called posts, and what follows from them. Decisions depend
//! on posts only, so they are the same on all hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use serde::{Deserialize, Serialize};

use crate::error::{LaunchError, Result};
use crate::job::cluster::Cluster;
use crate::job::task::{Role, Task};
use crate::membership::Plan;
use crate::report::attempt::AttemptResult;
use crate::report::outcome::{Ending, Outcome};
use crate::report::verdict::{Verdict, root_cause};

/// How many posts of one host a launcher keeps: an attempt has at most two per process, so far more
/// than a host needs.
const POSTS_MAX: usize = 1 << 12;

/// A message of one launcher to all launchers.
#[derive(Clone, Serialize, Deserialize)]
pub struct Post {
    pub host: usize,
    /// How often the job had been restarted.
    pub restart: u32,
    pub item: PostBody,
}

#[derive(Clone, Serialize, Deserialize)]
pub enum PostBody {
    /// The host can start these processes. The text is random; the attempt's token is derived from
    /// it.
    Ready(String, Cluster),
    /// A process failed without having been asked to stop.
    Failed(Task, Ending),
    /// A process saved and stopped without having been asked by its launcher.
    Preempted,
    /// A worker died and is not started again; the chief goes on without it.
    WorkerGone(Task, Ending),
    /// All workers of the host have ended with 0 or 42; in a job with a chief, the chief has, or it
    /// is on another host.
    WorkersDone,
    /// The launcher got a signal.
    Stop(i32),
    /// No process of the host is left.
    Ended(AttemptResult),
    /// The host's launcher is gone.
    Lost,
    /// The host's launcher is there.
    Came,
    /// The host's launcher was out of reach, and is still part of this attempt.
    Back,
    /// By host 0 of an elastic job: a launcher waits to join, so the workers save and stop.
    Save,
    /// In an elastic job: the host's launcher was told to stop. The workers save and stop, and
    /// the job goes on without this host.
    Leave,
    /// In an elastic job that drops such hosts: a worker of this host is slow for long, as this
    /// line says.
    Slow(String),
    /// By host 0: whether the job goes on without a host that has said so. The workers save and
    /// stop then.
    SlowHost {
        host: usize,
        why: String,
        is_dropped: bool,
    },
    /// By host 0: what the launchers start next.
    Plan(Plan),
    /// By host 0: the job is over.
    #[serde(rename = "Over")]
    JobEnd(JobEnd),
    /// By host 0 of an elastic job: these hosts joined last and do not fit. The job goes on without
    /// them.
    Refused(Vec<usize>),
}

impl PostBody {
    /// Whether the post is kept because it is asked for later. Other posts have their effect at
    /// once.
    fn is_kept(&self) -> bool {
        match self {
            PostBody::Ready(..)
            | PostBody::Failed(..)
            | PostBody::WorkerGone(..)
            | PostBody::WorkersDone
            | PostBody::Stop(_)
            | PostBody::Ended(_) => true,
            PostBody::Preempted
            | PostBody::Lost
            | PostBody::Came
            | PostBody::Back
            | PostBody::Save
            | PostBody::Leave
            | PostBody::Slow(_)
            | PostBody::SlowHost { .. }
            | PostBody::Plan(_)
            | PostBody::JobEnd(_)
            | PostBody::Refused(_) => false,
        }
    }

    /// The process that the post is about, if any.
    fn task(&self) -> Option<Task> {
        match self {
            PostBody::Failed(task, _) | PostBody::WorkerGone(task, _) => Some(*task),
            _ => None,
        }
    }
}

impl Post {
    /// The post that a launcher sends to itself when it has lost the relay. (If the launcher of
    /// host 0 ends, the relay itself posts that host 0 is lost.)
    pub fn relay_is_lost() -> Post {
        Post {
            host: 0,
            restart: u32::MAX,
            item: PostBody::Lost,
        }
    }

    /// Whether this is the post of [`relay_is_lost`](Self::relay_is_lost).
    pub fn is_relay_lost(&self) -> bool {
        self.host == 0 && self.restart == u32::MAX && matches!(self.item, PostBody::Lost)
    }

    /// Whether this post says the same as another one about the same attempt.
    fn repeats(&self, other: &Post) -> bool {
        (self.host, self.restart) == (other.host, other.restart)
            && discriminant(&self.item) == discriminant(&other.item)
            && self.item.task() == other.item.task()
    }
}

/// How a job ended.
#[derive(Clone, Serialize, Deserialize)]
pub enum JobEnd {
    Outcome(Outcome),
    TooFew { missing: Vec<usize>, left: usize },
}

/// Host 0's instruction what to do next.
pub enum Instruction {
    Start(Plan),
    JobEnd(JobEnd),
}

/// The posts so far, in the order in which all launchers see them.
pub struct Posts {
    /// The hosts that take part in the attempt.
    hosts: BTreeSet<usize>,
    /// Whether the job can go on without a host for good.
    is_elastic: bool,
    /// The hosts whose launchers are there.
    here: BTreeSet<usize>,
    /// The hosts that were lost since the plan of the attempt was made.
    lost: BTreeSet<usize>,
    /// The hosts that were lost since the plan of the next attempt was made, once it is known.
    lost_for_next: BTreeSet<usize>,
    /// Lost hosts without which the attempt goes on, with the number of workers of each.
    spared: BTreeMap<usize, usize>,
    instruction: Option<Instruction>,
    /// Whether the workers of the newest plan are to save and stop.
    asked_to_save: bool,
    /// How often the job had been restarted before the current attempt.
    restart: u32,
    posts: Vec<Post>,
}

impl Posts {
    /// Creates the record for a job on `hosts` hosts; in an elastic job a launcher may leave.
    pub fn new(hosts: usize, is_elastic: bool) -> Posts {
        Posts {
            hosts: (0..hosts).collect(),
            is_elastic,
            here: BTreeSet::new(),
            lost: BTreeSet::new(),
            lost_for_next: BTreeSet::new(),
            spared: BTreeMap::new(),
            instruction: None,
            asked_to_save: false,
            restart: 0,
            posts: Vec::new(),
        }
    }

    /// Records a post. Fails if a host sends more posts than it can have cause for.
    pub fn record(&mut self, post: Post) -> Result<()> {
        let host = post.host;
        match &post.item {
            PostBody::Lost => {
                if let Some(workers) = self.spares(host) {
                    self.spared.insert(host, workers);
                    self.hosts.remove(&host);
                }
                self.lose(host);
            }
            // The host itself says whether it still has its part of the attempt.
            PostBody::Came => {
                self.here.insert(host);
            }
            PostBody::Back => self.take_back(&post),
            PostBody::Plan(plan) if host == 0 => {
                let hosts = plan.places.keys().copied();
                let lost = hosts.filter(|host| !self.here.contains(host));
                self.lost_for_next = lost.collect();
                self.asked_to_save = false;
                self.instruction = Some(Instruction::Start(plan.clone()));
            }
            // This may come while the hosts get ready for that plan.
            PostBody::Save | PostBody::Leave => self.asked_to_save = true,
            PostBody::SlowHost { is_dropped, .. } if host == 0 => {
                self.asked_to_save |= *is_dropped;
            }
            PostBody::JobEnd(over) if host == 0 => {
                self.instruction = Some(Instruction::JobEnd(over.clone()));
            }
            _ => {}
        }
        self.keep(post)
    }

    /// Takes a host back into the attempt that went on without it, unless the attempt is over.
    fn take_back(&mut self, post: &Post) {
        let is_part = self.is_of_attempt(post) && !self.is_ending();
        if is_part && self.spared.remove(&post.host).is_some() {
            self.hosts.insert(post.host);
            self.lost.remove(&post.host);
        }
    }

    /// The workers of a host without which the attempt of a job that is not elastic goes on: a
    /// chief gives the work of its workers to others, it had nothing but these, and some are left;
    /// or the work is done, and no evaluator is lost with it. The job has the chief on its first
    /// host.
    fn spares(&self, host: usize) -> Option<usize> {
        let ready = self.ready();
        let may_spare = !self.is_elastic && host != 0;
        let (_, lost) = ready.get(&host).filter(|_| may_spare)?;
        let workers = lost.count(Role::Worker);
        if self.workers_are_done() {
            return (lost.count(Role::Evaluator) == 0).then_some(workers);
        }
        let others = || ready.iter().filter(|(other, _)| **other != host);
        let of_others = |role| -> usize { others().map(|(_, (_, part))| part.count(role)).sum() };
        // The attempt begins only when all hosts are ready.
        let has_begun = self.hosts.iter().all(|host| ready.contains_key(host));
        let has_chief = has_begun && of_others(Role::ParameterServer) > 0;
        let only_workers = lost.tasks().all(|task| task.role == Role::Worker);
        let gone = self.gone_workers().filter(|(other, _)| *other != host);
        let spares = has_chief && only_workers && of_others(Role::Worker) > gone.count();
        spares.then_some(workers)
    }

    /// Whether the workers of this host go on while host 0 cannot be reached: it has nothing else,
    /// and the chief is there, which gives them work again when it can.
    pub fn can_continue_alone(&self, own: usize) -> bool {
        let ready = self.ready();
        let has_begun = self.hosts.iter().all(|host| ready.contains_key(host));
        let has_servers = |part: &Cluster| part.count(Role::ParameterServer) > 0;
        let only_workers = |(_, part): &(&String, &Cluster)| {
            let mut tasks = part.tasks();
            tasks.all(|task| task.role == Role::Worker)
        };
        let stays = own != 0 && ready.get(&own).is_some_and(only_workers);
        let has_chief = has_begun && ready.values().any(|(_, part)| has_servers(part));
        stays && has_chief && !self.is_elastic && !self.is_ending()
    }

    /// Whether the post is about the current attempt.
    pub fn is_of_attempt(&self, post: &Post) -> bool {
        post.restart == self.restart
    }

    /// Whether the attempt is ending: its work is done, a process failed, or it was told to stop.
    pub fn is_ending(&self) -> bool {
        let fails = |post: &Post| matches!(post.item, PostBody::Failed(..));
        let failed = self.of_attempt().any(fails);
        failed || self.workers_are_done() || self.stop_signal().is_some()
    }

    /// The hosts that were lost while the relay was out of reach, once it is back during an
    /// attempt.
    pub fn missed(&self) -> Vec<usize> {
        let gone = self.hosts.iter().filter(|host| !self.here.contains(host));
        gone.copied().collect()
    }

    /// The relay is lost, and the attempt goes on here: which other hosts are connected is unknown.
    pub fn forget_who_is_here(&mut self) {
        self.here.clear();
        self.instruction = None;
    }

    /// Takes host 0's post that the job is over, if there is one.
    pub fn take_job_end(&mut self) -> Option<Instruction> {
        let is_over = |it: &mut Instruction| matches!(it, Instruction::JobEnd(_));
        self.instruction.take_if(is_over)
    }

    /// Whether the attempt goes on although this host was lost.
    pub fn is_spared(&self, host: usize) -> bool {
        self.spared.contains_key(&host)
    }

    /// The workers of the attempt that are not started again, with their hosts. Workers that
    /// were lost with their host do not count.
    fn gone_workers(&self) -> impl Iterator<Item = (usize, Task)> {
        let gone = self.of_attempt().filter_map(|post| match &post.item {
            PostBody::WorkerGone(task, _) => Some((post.host, *task)),
            _ => None,
        });
        gone.filter(|(host, _)| self.hosts.contains(host))
    }

    fn lose(&mut self, host: usize) {
        self.here.remove(&host);
        self.lost.insert(host);
        self.lost_for_next.insert(host);
    }

    /// The relay is lost, and with it all other hosts than this one.
    pub fn lose_others(&mut self, own: usize, count: usize) {
        let others = (0..count).filter(|host| *host != own);
        others.for_each(|host| self.lose(host));
    }

    /// The other hosts have ended the attempt without this one.
    pub fn left_behind(&mut self, own: usize) {
        let others = self.hosts.iter().filter(|host| **host != own);
        self.lost.extend(others);
    }

    /// Whether host 0 has given its instruction.
    pub fn has_instruction(&self) -> bool {
        self.instruction.is_some()
    }

    /// The launcher joins anew: the relay will say again which hosts are connected.
    pub fn join_anew(&mut self) {
        self.forget_who_is_here();
        self.forget_posts();
    }

    /// The attempt has ended on this host alone; see [`join_anew`](Self::join_anew).
    pub fn forget_posts(&mut self) {
        self.posts.clear();
    }

    /// The hosts whose launchers are there.
    pub fn here(&self) -> &BTreeSet<usize> {
        &self.here
    }

    /// Keeps a post that is asked for later, without repeats.
    fn keep(&mut self, post: Post) -> Result<()> {
        let is_known = || self.posts.iter().any(|known| known.repeats(&post));
        if !post.item.is_kept() || is_known() {
            return Ok(());
        }
        let host = post.host;
        let told = self.posts.iter().filter(|known| known.host == host);
        if told.count() == POSTS_MAX {
            let most = POSTS_MAX;
            return Err(LaunchError::TooManyPosts { host, most });
        }
        self.posts.push(post);
        Ok(())
    }

    /// Takes host 0's instruction for this host, once it has come.
    pub fn take_instruction(&mut self, own: usize) -> Option<Instruction> {
        match self.instruction.take()? {
            // The plan is for others; this host came too late.
            Instruction::Start(plan) if !plan.places.contains_key(&own) => {
                self.forget_before(plan.start);
                None
            }
            instruction => Some(instruction),
        }
    }

    /// The hosts that were lost since the plan of the attempt was made.
    pub fn lost(&self) -> &BTreeSet<usize> {
        &self.lost
    }

    /// Whether a host was lost that takes part in the attempt.
    pub fn has_lost(&self) -> bool {
        self.hosts.intersection(&self.lost).next().is_some()
    }

    /// Whether a host was lost that takes part in this plan, the next one.
    pub fn has_lost_for(&self, next: &Plan) -> bool {
        let mut hosts = next.places.keys();
        hosts.any(|host| self.lost_for_next.contains(host))
    }

    /// Whether the workers of the newest plan were told to save and stop, because a launcher waits
    /// or leaves.
    pub fn is_asked_to_save(&self) -> bool {
        self.asked_to_save
    }

    /// Whether the job goes on without a host.
    pub fn is_elastic(&self) -> bool {
        self.is_elastic
    }

    /// The hosts that take part in the attempt.
    pub fn hosts(&self) -> &BTreeSet<usize> {
        &self.hosts
    }

    /// An attempt of these hosts begins; see [`begin_attempt`](Posts::begin_attempt).
    pub fn begin_plan(&mut self, plan: &Plan) {
        self.hosts = plan.places.keys().copied().collect();
        self.lost = std::mem::take(&mut self.lost_for_next);
        self.begin_attempt(plan.start);
    }

    /// An attempt begins: drops the posts about earlier ones, except a signal.
    pub fn begin_attempt(&mut self, restart: u32) {
        self.restart = restart;
        self.spared.clear();
        self.forget_before(restart);
    }

    fn forget_before(&mut self, restart: u32) {
        let is_stop = |post: &Post| matches!(post.item, PostBody::Stop(_));
        self.posts
            .retain(|post| post.restart >= restart || is_stop(post));
    }

    /// The signal that a launcher got.
    pub fn stop_signal(&self) -> Option<i32> {
        self.posts.iter().find_map(|post| match post.item {
            PostBody::Stop(signal) => Some(signal),
            _ => None,
        })
    }

    /// Which attempt is under way.
    pub fn restart(&self) -> u32 {
        self.restart
    }

    fn of_attempt(&self) -> impl Iterator<Item = &Post> {
        let posts = self.posts.iter();
        posts.filter(move |post| post.restart == self.restart)
    }

    /// The hosts that can start an attempt, with their random texts and their parts of the cluster.
    pub fn ready(&self) -> BTreeMap<usize, (&String, &Cluster)> {
        let ready = self.of_attempt().filter_map(|post| match &post.item {
            PostBody::Ready(nonce, cluster) => Some((post.host, (nonce, cluster))),
            _ => None,
        });
        ready
            .filter(|(host, _)| self.hosts.contains(host))
            .collect()
    }

    /// Whether no worker is left on any host once this one has died for
    /// good.
    pub fn is_last_worker(&self, task: Task, workers: usize) -> bool {
        let gone: Vec<Task> = self.gone_workers().map(|(_, task)| task).collect();
        let spared: usize = self.spared.values().sum();
        gone.len() + spared == workers && gone.last() == Some(&task)
    }

    /// Whether the workers of all hosts are done, or the chief of the one that has it.
    pub fn workers_are_done(&self) -> bool {
        let is_done = |host| {
            let mut posts = self.of_attempt();
            posts.any(|post| post.host == host && matches!(post.item, PostBody::WorkersDone))
        };
        self.hosts.iter().copied().all(is_done)
    }

    /// The hosts of the attempt that are not lost and have not said how it ended there.
    pub fn not_ended(&self) -> Vec<usize> {
        let has_ended = |host: usize| {
            let mut posts = self.of_attempt();
            posts.any(|post| post.host == host && matches!(post.item, PostBody::Ended(_)))
        };
        let here = self.hosts.difference(&self.lost).copied();
        here.filter(|host| !has_ended(*host)).collect()
    }

    /// The attempt on all hosts, and the signal that one launcher got before the last host's end.
    pub fn combined(&self) -> Option<(AttemptResult, Option<i32>)> {
        let mut ended: BTreeMap<usize, &AttemptResult> = BTreeMap::new();
        let mut failures: Vec<(Task, Ending)> = Vec::new();
        let mut signal = None;
        let posts = self.posts.iter();
        for post in posts.filter(|post| post.restart <= self.restart) {
            match &post.item {
                PostBody::Ended(part) if post.restart == self.restart => {
                    ended.insert(post.host, part);
                }
                PostBody::Failed(task, ending) => failures.push((*task, *ending)),
                PostBody::Stop(got) => {
                    signal.get_or_insert(*got);
                }
                _ => {}
            }
            if self.hosts.iter().all(|host| ended.contains_key(host)) {
                break;
            }
        }
        let mut missing = self
            .hosts
            .iter()
            .filter(|host| !ended.contains_key(host))
            .peekable();
        let is_broken = missing.peek().is_some();
        if missing.any(|host| !self.lost.contains(host)) {
            return None;
        }
        let parts: Vec<AttemptResult> = ended.into_values().cloned().collect();
        let verdicts: Vec<Verdict> = parts.iter().map(|part| part.verdict).collect();
        let all_succeeded = verdicts.iter().all(|one| *one == Verdict::Succeeded);
        let mut whole = AttemptResult::join(parts);
        let number = |task: &Task| whole.number(*task);
        let failures: Vec<(usize, Ending)> = failures
            .iter()
            .filter_map(|(task, ending)| Some((number(task)?, *ending)))
            .collect();
        whole.verdict = match root_cause(&failures) {
            // The lost host had no work left to do.
            None if is_broken && self.workers_are_done() && all_succeeded => Verdict::Succeeded,
            _ if is_broken => Verdict::HostLost,
            Some(index) => Verdict::Failed(index),
            None if all_succeeded => Verdict::Succeeded,
            None if signal.is_some() && verdicts.contains(&Verdict::Stopped) => Verdict::Stopped,
            None => Verdict::Preempted,
        };
        Some((whole, signal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ports::ReservedPorts;
    use crate::membership::{Counts, Places};

    fn post(host: usize, restart: u32, item: PostBody) -> Post {
        Post {
            host,
            restart,
            item,
        }
    }

    fn failed(restart: u32, index: usize) -> Post {
        let role = Role::Worker;
        let item = PostBody::Failed(Task { role, index }, Ending::Exit(1));
        post(1, restart, item)
    }

    /// Three hosts' posts at the begin of an attempt, with the number of processes of each role.
    fn begun(hosts: [&[(Role, usize)]; 3]) -> Posts {
        let mut posts = Posts::new(3, false);
        for (host, roles) in hosts.into_iter().enumerate() {
            let of_role = |(role, count): &(Role, usize)| {
                let role = *role;
                (0..*count).map(move |index| Task { role, index })
            };
            let tasks: Vec<Task> = roles.iter().flat_map(of_role).collect();
            let loopback = std::net::Ipv4Addr::LOCALHOST.into();
            let ports = ReservedPorts::new(tasks.len(), loopback).unwrap();
            let cluster = Cluster::with_ports(&ports, &tasks);
            let ready = PostBody::Ready(String::new(), cluster);
            posts.record(post(host, 0, ready)).unwrap();
        }
        posts
    }

    fn lost(host: usize) -> Post {
        post(host, 0, PostBody::Lost)
    }

    fn gone(host: usize, index: usize) -> Post {
        let role = Role::Worker;
        let item = PostBody::WorkerGone(Task { role, index }, Ending::Exit(1));
        post(host, 0, item)
    }

    const WORKER: (Role, usize) = (Role::Worker, 1);
    const SERVER: (Role, usize) = (Role::ParameterServer, 1);
    const CHIEF: (Role, usize) = (Role::Chief, 1);

    #[test]
    fn a_host_that_only_had_workers_of_a_chief_costs_these() {
        let mut posts = begun([&[CHIEF, SERVER, WORKER], &[WORKER], &[(Role::Worker, 2)]]);
        posts.record(lost(2)).unwrap();
        assert_eq!(posts.hosts().iter().copied().collect::<Vec<_>>(), [0, 1]);
        // Two of four workers are lost with their host; these are the other two.
        for (host, index, is_last) in [(0, 0, false), (1, 1, true)] {
            posts.record(gone(host, index)).unwrap();
            let role = Role::Worker;
            assert_eq!(posts.is_last_worker(Task { role, index }, 4), is_last);
        }
        assert!(posts.is_spared(2) && !posts.has_lost());
    }

    /// Only a launcher that still has its part of the attempt ends it.
    #[test]
    fn a_spared_host_that_comes_again_is_part_of_the_attempt_if_it_says_so() {
        let hosts = |posts: &Posts| posts.hosts().iter().copied().collect::<Vec<_>>();
        let mut posts = begun([&[CHIEF, SERVER, WORKER], &[WORKER], &[WORKER]]);
        posts.record(lost(2)).unwrap();
        posts.record(post(2, 0, PostBody::Came)).unwrap();
        assert!(posts.is_spared(2) && posts.here().contains(&2));
        assert_eq!(hosts(&posts), [0, 1], "it may have been started anew");
        posts.record(post(2, 1, PostBody::Back)).unwrap();
        assert_eq!(hosts(&posts), [0, 1], "that is another attempt");
        posts.record(post(2, 0, PostBody::Back)).unwrap();
        assert_eq!(hosts(&posts), [0, 1, 2]);
        assert!(!posts.is_spared(2) && !posts.lost().contains(&2));
        // The end of the attempt does not wait for it.
        posts.record(lost(2)).unwrap();
        posts.record(failed(0, 1)).unwrap();
        posts.record(post(2, 0, PostBody::Back)).unwrap();
        assert_eq!(hosts(&posts), [0, 1]);
    }

    /// No host counts as lost in the next attempt because this host missed the end of the last one.
    #[test]
    fn a_host_that_was_left_behind_takes_part_in_the_next_attempt() {
        let mut posts = begun([&[CHIEF, SERVER, WORKER], &[WORKER], &[WORKER]]);
        for host in 0..3 {
            posts.record(post(host, 0, PostBody::Came)).unwrap();
        }
        let plan = Plan {
            start: 1,
            places: (0..3).map(|host| (host, vec![0])).collect(),
            counts: Counts::default(),
        };
        posts
            .record(post(0, 0, PostBody::Plan(plan.clone())))
            .unwrap();
        posts.left_behind(1);
        let ended = AttemptResult::new(Verdict::Preempted, Vec::new());
        posts.record(post(1, 0, PostBody::Ended(ended))).unwrap();
        let (whole, _) = posts.combined().unwrap();
        assert_eq!(whole.verdict, Verdict::HostLost);
        assert!(matches!(
            posts.take_instruction(1),
            Some(Instruction::Start(next)) if next == plan
        ));
        posts.begin_plan(&plan);
        assert!(!posts.has_lost());
    }

    #[test]
    fn a_host_is_missed_with_the_last_worker_a_server_or_without_a_chief() {
        let mut last = begun([&[CHIEF, SERVER, WORKER], &[WORKER], &[WORKER]]);
        last.record(gone(0, 0)).unwrap();
        last.record(lost(1)).unwrap();
        let missed = |posts: &mut Posts, host| {
            posts.record(lost(host)).unwrap();
            assert!(posts.has_lost() && !posts.is_spared(host));
        };
        missed(&mut last, 2);
        missed(
            &mut begun([&[CHIEF, WORKER], &[WORKER], &[SERVER, WORKER]]),
            2,
        );
        missed(
            &mut begun([&[CHIEF, SERVER, WORKER], &[WORKER], &[WORKER]]),
            0,
        );
        // A chief that is only offered is none.
        missed(&mut begun([&[CHIEF, WORKER], &[WORKER], &[WORKER]]), 1);
        let mut early = Posts::new(3, false);
        missed(&mut early, 1);
    }

    #[test]
    fn when_the_work_is_done_a_host_is_not_missed_unless_it_evaluates() {
        let evaluator = (Role::Evaluator, 1);
        let mut posts = begun([&[CHIEF, WORKER], &[SERVER], &[WORKER, evaluator]]);
        for host in 0..3 {
            posts.record(post(host, 0, PostBody::WorkersDone)).unwrap();
        }
        posts.record(lost(1)).unwrap();
        assert!(!posts.has_lost());
        posts.record(lost(2)).unwrap();
        assert!(posts.has_lost());
    }

    /// A host that was lost in the last attempt and is connected again is not missing in the next
    /// one.
    #[test]
    fn the_hosts_that_were_lost_are_counted_for_each_plan() {
        let mut posts = Posts::new(3, true);
        for host in 0..3 {
            posts.record(post(host, 0, PostBody::Came)).unwrap();
        }
        posts.record(lost(1)).unwrap();
        posts.record(post(1, 0, PostBody::Came)).unwrap();
        posts.record(lost(2)).unwrap();
        let plan = Plan {
            start: 1,
            places: [(0, vec![0]), (1, vec![0])].into(),
            counts: Counts::default(),
        };
        posts
            .record(post(0, 0, PostBody::Plan(plan.clone())))
            .unwrap();
        assert!(posts.has_lost() && !posts.has_lost_for(&plan));
        posts.record(lost(2)).unwrap();
        assert!(!posts.has_lost_for(&plan), "it has no part in the plan");
        posts.record(lost(1)).unwrap();
        assert!(posts.has_lost_for(&plan));
    }

    /// However often a host says the same, and whatever it says that has its effect at once.
    #[test]
    fn what_a_host_repeats_is_kept_once() {
        let mut posts = Posts::new(2, true);
        for _ in 0..10_000 {
            for item in [PostBody::Came, PostBody::Save, PostBody::WorkersDone] {
                posts.record(post(1, 0, item)).unwrap();
            }
            posts.record(failed(0, 0)).unwrap();
            posts.record(failed(0, 1)).unwrap();
            posts.record(failed(1, 1)).unwrap();
        }
        assert_eq!(posts.posts.len(), 4);
    }

    /// Launchers of an elastic job that have no place in it wait through any number of its starts.
    #[test]
    fn a_host_without_a_place_forgets_the_attempts_of_others() {
        let mut posts = Posts::new(2, true);
        for restart in 0..2 * POSTS_MAX as u32 {
            let plan = Plan {
                start: restart,
                places: Places::new(),
                counts: Counts::default(),
            };
            for item in [PostBody::Plan(plan), PostBody::WorkersDone] {
                posts.record(post(0, restart, item)).unwrap();
            }
            assert!(posts.take_instruction(1).is_none());
            assert!(posts.posts.len() <= 2);
        }
    }

    /// Each post about an invented attempt is kept.
    #[test]
    fn a_host_that_tells_without_end_is_named() {
        let mut posts = Posts::new(2, false);
        let recorded = (0..).map(|restart| posts.record(failed(restart, 0)));
        let told: Vec<_> = recorded.take(POSTS_MAX + 1).collect();
        assert!(told[..POSTS_MAX].iter().all(Result::is_ok));
        let error = told[POSTS_MAX].as_ref().unwrap_err();
        assert!(matches!(error, LaunchError::TooManyPosts { host: 1, .. }));
        assert_eq!(posts.posts.len(), POSTS_MAX);
    }
}
