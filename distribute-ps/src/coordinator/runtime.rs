//! The threads of a coordinator: one for the connections to all workers, one that speaks with the
//! parameter servers once a second.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::task::JoinHandle as Task;

use super::link;
use super::scheduler::Scheduler;
use super::server_notice::ServerNotice;
use crate::client::VariableClient;
use crate::error::{PsError, Result};
use crate::rpc::driver::Driver;

/// How often it is looked whether there are workers.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often the servers are asked.
const SERVER_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Runtime {
    /// Dropped to end the connections.
    driver: Option<Driver>,
    links: Option<Task<()>>,
    servers: Option<JoinHandle<()>>,
    scheduler: Arc<Scheduler>,
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
        let no_thread = "cannot start a thread of the coordinator";
        let driver = Driver::start(
            "ps-coordinator".to_string(),
            no_thread,
            scheduler.clock.clone(),
        )?;
        let mut started = Self {
            links: Some(driver.spawn(run_connections(scheduler.clone()))),
            driver: Some(driver),
            servers: None,
            scheduler: scheduler.clone(),
        };
        if let Some(variables) = variables {
            let scheduler = scheduler.clone();
            let servers = thread::Builder::new()
                .name("ps-low-water".to_string())
                .spawn(move || notify_servers(&scheduler, &variables))
                .map_err(|error| PsError::system(no_thread, error))?;
            started.servers = Some(servers);
        }
        Ok(started)
    }

    /// Waits for the threads. The connections end by themselves, after they have told the workers,
    /// when the stop signals say so.
    pub(super) fn join(&mut self) {
        if let (Some(driver), Some(links)) = (self.driver.take(), self.links.take()) {
            let _ = driver.run(async move { Ok(links.await) });
        }
        self.scheduler.stop_notices();
        if let Some(servers) = self.servers.take() {
            let _ = servers.join();
        }
    }
}

impl Drop for Runtime {
    /// Ends the connections without telling the workers that the job is done.
    fn drop(&mut self) {
        self.driver = None;
        self.join();
    }
}

/// Runs the connections until they have ended.
async fn run_connections(scheduler: Arc<Scheduler>) {
    let mut links = tokio::task::JoinSet::new();
    for worker in 0..scheduler.addresses.len() {
        links.spawn(link::keep_connected(scheduler.clone(), worker));
    }
    let mut looks = tokio::time::interval(POLL_INTERVAL);
    loop {
        tokio::select! {
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

/// Tells the servers which closures have ended or were lost: at once if a server waits for it, else
/// once a second, which also shows whether they are there.
fn notify_servers(scheduler: &Scheduler, variables: &VariableClient) {
    while let Some(notice) = scheduler.wait_for_notice(SERVER_INTERVAL) {
        let told = tell(&notice, variables);
        if let Err(error) = told {
            tracing::warn!(%error, "the servers were not told what has ended");
            scheduler.fail(error);
        }
        // A server that a worker does not reach has answered, or it is the coordinator's word now.
        for lost in notice.lost {
            scheduler.requeue(lost);
        }
    }
}

fn tell(notice: &ServerNotice, variables: &VariableClient) -> Result<()> {
    if let Some(closure) = notice.cancelled_below {
        variables.cancelled_below(closure)?;
    }
    let lost = notice.lost.iter().map(|lost| &lost.closure);
    for closure in notice.ended.iter().chain(lost) {
        variables.abandon(*closure)?;
    }
    variables.finished_below(notice.first_unfinished)
}
