//! The threads of a coordinator: one for the connections to all workers, one that speaks with the
//! parameter servers once a second.

use std::sync::Arc;
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
    shared: Arc<Shared>,
    /// Dropped to end the connections.
    stop: Option<watch::Sender<()>>,
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
        let mut started = Self {
            links: Some(links),
            servers: None,
            shared: shared.clone(),
            stop: Some(stop_links),
        };
        if let Some(variables) = variables {
            let shared = shared.clone();
            let servers = thread::Builder::new()
                .name("ps-low-water".to_string())
                .spawn(move || ask(&shared, &variables))
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
        self.shared.stop_asking();
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
            ended = links.join_next() => match ended {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    let what = "a connection to a worker ended by a fault of this program";
                    shared.fail(PsError::system(what, error));
                }
                None => return,
            }
        }
    }
}

/// Tells the servers what has ended or was lost: at once where somebody waits for it, else once a
/// second, which also shows whether they are there.
fn ask(shared: &Shared, variables: &VariableClient) {
    while let Some(news) = shared.await_news(ASK) {
        let mut ended = news.ended.iter().copied();
        let lost = news.lost.iter().map(|lost| lost.closure);
        let told = match news.cancelled_below {
            Some(closure) => variables.cancelled_below(closure),
            None => Ok(()),
        };
        let told = told
            .and_then(|()| ended.try_for_each(|closure| variables.abandon(closure)))
            .and_then(|()| lost.into_iter().try_for_each(|it| variables.abandon(it)))
            .and_then(|()| variables.finished_below(news.first_unfinished));
        if let Err(error) = told {
            tracing::warn!(%error, "the servers were not told what has ended");
            shared.fail(error);
        }
        for lost in news.lost {
            shared.run_again(lost);
        }
    }
}
