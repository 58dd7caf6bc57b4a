//! What the launchers tell each other, and what it means. Decisions follow from posts alone, so
//! they are the same on all hosts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{LaunchError, Result};
use crate::job::cluster::Cluster;
use crate::job::task::Task;
use crate::report::attempt::AttemptResult;
use crate::report::outcome::Ending;
use crate::report::verdict::{Verdict, root_cause};

/// What one launcher tells all.
#[derive(Clone, Serialize, Deserialize)]
pub struct Post {
    pub host: usize,
    /// How often the job was restarted before.
    pub restart: u32,
    pub item: PostBody,
}

#[derive(Clone, Serialize, Deserialize)]
pub enum PostBody {
    /// The host can start these processes; the text is random, for the attempt's token.
    Ready(String, Cluster),
    /// A process failed that had not been asked to stop.
    Failed(Task, Ending),
    /// A process saved and stopped without having been asked by its launcher.
    Preempted,
    /// A worker died that the chief can do without, and is not started again.
    WorkerGone(Task, Ending),
    /// All workers of the host have ended with 0 or 42; with a chief, it has, or is elsewhere.
    WorkersDone,
    /// The launcher got a signal.
    Stop(i32),
    /// No process of the host is left.
    Ended(AttemptResult),
    /// The host's launcher is gone.
    Lost,
}

/// The posts so far, in the order in which all launchers see them.
pub struct Posts {
    /// How many hosts there are.
    hosts: usize,
    /// How often the job was restarted before the attempt that is under way.
    restart: u32,
    posts: Vec<Post>,
}

impl Posts {
    pub fn new(hosts: usize) -> Posts {
        Posts {
            hosts,
            restart: 0,
            posts: Vec::new(),
        }
    }

    /// Remembers what a launcher has told; an error if one is gone.
    pub fn record(&mut self, post: Post) -> Result<()> {
        let lost = matches!(post.item, PostBody::Lost).then_some(post.host);
        self.posts.push(post);
        match lost {
            Some(host) => Err(LaunchError::HostLost { host }),
            None => Ok(()),
        }
    }

    /// An attempt begins: what was told of those before it counts no more, but a signal does.
    pub fn begin_attempt(&mut self, restart: u32) {
        self.restart = restart;
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
        ready.collect()
    }

    /// Whether all workers of all hosts have died for good, this one as the last.
    pub fn is_last_worker(&self, task: Task, workers: usize) -> bool {
        let gone = self.of_attempt().filter_map(|post| match &post.item {
            PostBody::WorkerGone(task, _) => Some(*task),
            _ => None,
        });
        let gone: Vec<Task> = gone.collect();
        gone.len() == workers && gone.last() == Some(&task)
    }

    /// Whether the workers of all hosts are done, or the chief of the one that has it.
    pub fn workers_are_done(&self) -> bool {
        let is_done = |host| {
            let mut posts = self.of_attempt();
            posts.any(|post| post.host == host && matches!(post.item, PostBody::WorkersDone))
        };
        (0..self.hosts).all(is_done)
    }

    /// The attempt on all hosts, and the signal that one launcher got before the last host's end.
    pub fn combined(&self) -> Option<(AttemptResult, Option<i32>)> {
        let mut ended: BTreeMap<usize, &AttemptResult> = BTreeMap::new();
        let mut failures: Vec<(Task, Ending)> = Vec::new();
        let mut signal = None;
        let posts = self.posts.iter();
        for post in posts.filter(|post| post.restart <= self.restart) {
            match &post.item {
                PostBody::Ended(part) => {
                    ended.insert(post.host, part);
                }
                PostBody::Failed(task, ending) => failures.push((*task, *ending)),
                PostBody::Stop(got) => {
                    signal.get_or_insert(*got);
                }
                _ => {}
            }
            if ended.len() == self.hosts {
                break;
            }
        }
        if ended.len() < self.hosts {
            return None;
        }
        let parts: Vec<AttemptResult> = ended.into_values().cloned().collect();
        let verdicts: Vec<Verdict> = parts.iter().map(|part| part.verdict).collect();
        let mut whole = AttemptResult::join(parts);
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
