//! The threads of a coordinator: one for the connections to all workers, one that speaks with the
//! parameter servers once a second.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;

use super::link;
use super::scheduler::Scheduler;
use crate::client::VariableClient;
use crate::error::{PsError, Result};

/// How often it is looked whether there are workers.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often the servers are asked.
const SERVER_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Runtime {
    links: Option<JoinHandle<()>>,
    servers: Option<JoinHandle<()>>,
    scheduler: Arc<Scheduler>,
    /// Dropped to end the connections.
    stop: Option<watch::Sender<()>>,
}

impl Runtime {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`PsError::System`].
    pub(super) fn start(
        scheduler: &Arc<Scheduler>,
        variables: Option<VariableClient>,
    ) -> Result<Self> {
        let no_thread = |error| PsError::system("cannot start a thread of the coordinator", error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| PsError::system("cannot start the coordinator's runtime", error))?;
        let (stop_links, stopped) = watch::channel(());
        let of_links = scheduler.clone();
        let links = thread::Builder::new()
            .name("ps-coordinator".to_string())
            .spawn(move || runtime.block_on(run_connections(of_links, stopped)))
            .map_err(no_thread)?;
        let mut started = Self {
            links: Some(links),
            servers: None,
            scheduler: scheduler.clone(),
            stop: Some(stop_links),
        };
        if let Some(variables) = variables {
            let scheduler = scheduler.clone();
            let servers = thread::Builder::new()
                .name("ps-low-water".to_string())
                .spawn(move || notify_servers(&scheduler, &variables))
                .map_err(no_thread)?;
            started.servers = Some(servers);
        }
        Ok(started)
    }

    /// Waits for the threads. The connections end by themselves, after they have told the workers,
    /// when the stop signals say so.
    pub(super) fn join(&mut self) {
        if let Some(links) = self.links.take() {
            let _ = links.join();
        }
        self.stop = None;
        self.scheduler.stop_notices();
        if let Some(servers) = self.servers.take() {
            let _ = servers.join();
        }
    }
}

impl Drop for Runtime {
    /// Ends the connections without telling the workers that the job is done.
    fn drop(&mut self) {
        self.stop = None;
        self.join();
    }
}

/// Runs the connections until they have ended or the sender is dropped.
async fn run_connections(scheduler: Arc<Scheduler>, mut stopped: watch::Receiver<()>) {
    let mut links = tokio::task::JoinSet::new();
    for worker in 0..scheduler.addresses.len() {
        links.spawn(link::keep_connected(scheduler.clone(), worker));
    }
    let mut looks = tokio::time::interval(POLL_INTERVAL);
    loop {
        tokio::select! {
            // Nothing is ever sent: the change is the end of the sender.
            _ = stopped.changed() => return,
            _ = looks.tick() => scheduler.check_workers(),
            ended = links.join_next() => match ended {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    let what = "a connection to a worker ended by a fault of this program";
                    scheduler.fail(PsError::system(what, error));
                }
                None => return,
            }
        }
    }
}

/// Tells the servers what has ended or was lost: at once where somebody waits for it, else once a
/// second, which also shows whether they are there.
fn notify_servers(scheduler: &Scheduler, variables: &VariableClient) {
    while let Some(notice) = scheduler.wait_for_notice(SERVER_INTERVAL) {
        let mut ended = notice.ended.iter().copied();
        let lost = notice.lost.iter().map(|lost| lost.closure);
        let told = match notice.cancelled_below {
            Some(closure) => variables.cancelled_below(closure),
            None => Ok(()),
        };
        let told = told
            .and_then(|()| ended.try_for_each(|closure| variables.abandon(closure)))
            .and_then(|()| lost.into_iter().try_for_each(|it| variables.abandon(it)))
            .and_then(|()| variables.finished_below(notice.first_unfinished));
        if let Err(error) = told {
            tracing::warn!(%error, "the servers were not told what has ended");
            scheduler.fail(error);
        }
        for lost in notice.lost {
            scheduler.requeue(lost);
        }
    }
}
