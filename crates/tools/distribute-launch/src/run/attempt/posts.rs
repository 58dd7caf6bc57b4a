//! Reactions of an attempt to posts of the launchers.

use rustix::process::Signal;

use crate::job::task::Role;
use crate::posts::{Post, PostBody};
use crate::run::attempt::Attempt;
use crate::run::attempt::phase::Phase;
use crate::run::session::Session;

impl Attempt<'_> {
    /// A launcher waits or leaves: the workers save and stop, and the others go on.
    pub(super) fn ask_to_save(&mut self) {
        self.enter(Phase::Preempting);
        let grace = self.phase.grace();
        self.members
            .ask(Signal::TERM, grace, |task| task.role == Role::Worker);
    }

    /// Handles a post of a launcher, possibly this one.
    pub(super) fn handle_post(&mut self, post: Post, session: &mut Session<'_>, workers: usize) {
        let Some(group) = &mut session.group else {
            return;
        };
        if post.is_relay_lost() && self.phase.is_under_way() && group.continue_without_relay() {
            let looks = group.describe_search(&[0]).unwrap_or_default();
            return self.log(&format!(
                "the launcher of host 0 cannot be reached; the workers of this host go on \
                 meanwhile, {looks}"
            ));
        }
        let (host, item) = (post.host, post.item.clone());
        if let Err(error) = group.record(post) {
            return self.abort_job(error);
        }
        let has_lost = group.posts.has_lost();
        match item {
            PostBody::Failed(..) => self.settle(),
            PostBody::WorkerGone(task, ending)
                if self.members.has(Role::Chief) && group.posts.is_last_worker(task, workers) =>
            {
                // That worker's host may have stopped watching.
                if let Some(own) = self.members.index_of(task) {
                    self.members.add_failure(own, ending);
                }
                group.post(PostBody::Failed(task, ending));
            }
            PostBody::Preempted if self.phase.current() == Phase::Running => {
                self.enter(Phase::Preempting);
            }
            PostBody::SlowHost {
                host,
                why,
                is_dropped,
            } => self.slow_host(host, &why, is_dropped, session.job.workers.least),
            PostBody::Save | PostBody::Leave if self.phase.current() == Phase::Running => {
                self.ask_to_save();
            }
            PostBody::Lost if has_lost && !self.phase.is_ending() => {
                self.log(&format!(
                    "the launcher of host {host} is gone; stopping the others"
                ));
                self.stop(Signal::TERM);
            }
            PostBody::Lost if group.posts.is_spared(host) => {
                let is_over = group.posts.workers_are_done();
                self.spared(host, is_over);
            }
            PostBody::Came if group.take_return(host) => {
                let missed = group.posts.missed();
                self.came_back(&missed, session, workers);
            }
            PostBody::Plan(_) | PostBody::JobEnd(_) if !group.posts.is_elastic() => {
                group.left_behind();
                self.log("the job has gone on without this host; stopping its workers");
                self.stop(Signal::TERM);
            }
            PostBody::WorkersDone
                if self.phase.is_under_way() && group.posts.workers_are_done() =>
            {
                self.finish();
            }
            PostBody::Stop(signal) => {
                session.interrupted.get_or_insert(signal);
                self.stop_by(signal);
            }
            _ => {}
        }
    }

    /// This host is part of the job again; `missed` are hosts that were lost meanwhile.
    fn came_back(&mut self, missed: &[usize], session: &mut Session<'_>, workers: usize) {
        self.log("host 0 is within reach again");
        for host in missed {
            let lost = Post {
                host: *host,
                restart: 0,
                item: PostBody::Lost,
            };
            self.handle_post(lost, session, workers);
        }
    }

    /// A host is lost, and the attempt goes on without it.
    fn spared(&mut self, host: usize, is_over: bool) {
        self.log(&if is_over {
            format!("the launcher of host {host} is gone; its work is done")
        } else {
            format!(
                "the launcher of host {host} is gone; the job goes on without the workers of that \
                 host"
            )
        });
        if is_over && self.phase.is_under_way() {
            self.finish();
        }
    }
}
