//! The threads of a coordinator: one for the connections to all workers, one that speaks with the
//! parameter servers once a second.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;

use super::link;
use super::shared::Shared;
use crate::client::VariableClient;
use crate::error::{PsError, Result};

/// How often it is looked whether there are workers.
const LOOK: Duration = Duration::from_millis(250);
/// How often the servers are asked.
const ASK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Runtime {
    links: Option<JoinHandle<()>>,
    servers: Option<JoinHandle<()>>,
    /// Dropped to end both threads.
    stop: Option<(watch::Sender<()>, mpsc::Sender<()>)>,
}

impl Runtime {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`PsError::System`].
    pub(super) fn start(shared: &Arc<Shared>, variables: Option<VariableClient>) -> Result<Self> {
        let no_thread = |error| PsError::system("cannot start a thread of the coordinator", error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| PsError::system("cannot start the coordinator's runtime", error))?;
        let (stop_links, stopped) = watch::channel(());
        let of_links = shared.clone();
        let links = thread::Builder::new()
            .name("ps-coordinator".to_string())
            .spawn(move || runtime.block_on(keep(of_links, stopped)))
            .map_err(no_thread)?;
        let (stop_servers, stopped) = mpsc::channel();
        let mut started = Self {
            links: Some(links),
            servers: None,
            stop: Some((stop_links, stop_servers)),
        };
        if let Some(variables) = variables {
            let shared = shared.clone();
            let servers = thread::Builder::new()
                .name("ps-low-water".to_string())
                .spawn(move || ask(&shared, &variables, &stopped))
                .map_err(no_thread)?;
            started.servers = Some(servers);
        }
        Ok(started)
    }

    /// Waits for the threads. The connections end by themselves, after they have told the workers,
    /// when the shared orders say so.
    pub(super) fn join(&mut self) {
        if let Some(links) = self.links.take() {
            let _ = links.join();
        }
        self.stop = None;
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
async fn keep(shared: Arc<Shared>, mut stopped: watch::Receiver<()>) {
    let mut links = tokio::task::JoinSet::new();
    for worker in 0..shared.addresses.len() {
        links.spawn(link::keep(shared.clone(), worker));
    }
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            // Nobody sends: it is the end of the sender.
            _ = stopped.changed() => return,
            _ = looks.tick() => shared.check_attended(),
            ended = links.join_next() => {
                if ended.is_none() {
                    return;
                }
            }
        }
    }
}

/// Tells the servers which closures have ended or were lost, which also shows whether they are
/// there.
fn ask(shared: &Shared, variables: &VariableClient, stopped: &mpsc::Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(ASK) {
        let (lost, first_unfinished) = shared.news_for_servers();
        let mut told = lost
            .into_iter()
            .try_for_each(|closure| variables.abandon(closure));
        if told.is_ok() {
            told = variables.finished_below(first_unfinished);
        }
        match told {
            Ok(()) => {}
            Err(error @ PsError::Unavailable { .. }) => shared.fail(error),
            Err(error) => tracing::warn!(%error, "the servers were not told what has ended"),
        }
    }
}
