//! Both ports of a process: whoever proves to be of the job gets an answer.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distribute_net::exchange::{self, ExchangeError};
use distribute_net::peers::{Connection, PeerListener};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::dial::{ANSWER_LIMIT, Identity};
use crate::measure;
use crate::messages::{Card, Opening, Reply, receive, send};

/// Connections that are served at a time: each process has a few to each other one.
const CONNECTIONS_MAX: usize = 512;
/// How long measurements on one connection may take.
const MEASURE_LIMIT: Duration = Duration::from_secs(60);
/// Processes that were turned away and are remembered for the report.
const TURNED_AWAY_MAX: usize = 16;

/// Who came and was not let in, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnedAway(Arc<Mutex<BTreeSet<String>>>);

impl TurnedAway {
    fn note(&self, from: &str, why: &str) {
        let host = from.rsplit_once(':').map_or(from, |(host, _)| host);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < TURNED_AWAY_MAX {
            all.insert(format!("{host}: {why}"));
        }
    }

    pub(crate) fn all(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().cloned().collect()
    }
}

/// Who comes to a session.
pub(crate) enum Visitor {
    /// To rank 0: a process, with its card.
    Member(Box<Card>, Connection),
    /// To another process: rank 0.
    Leader(Connection),
}

/// What answers on the ports of this process.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) identity: Arc<Identity>,
    pub(crate) visitors: mpsc::Sender<Visitor>,
    pub(crate) turned_away: TurnedAway,
    permits: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(identity: Arc<Identity>, visitors: mpsc::Sender<Visitor>) -> Self {
        Self {
            identity,
            visitors,
            turned_away: TurnedAway::default(),
            permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        }
    }

    /// Takes connections until the runtime ends.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn listen(&self, listener: PeerListener) -> io::Result<()> {
        let turned_away = self.turned_away.clone();
        let refused = move |from: String, why: String| turned_away.note(&from, &why);
        let failed = self.turned_away.clone();
        let failed = move |why: String| failed.note("this host", &why);
        let mut incoming = listener.incoming_with(refused, failed)?;
        let service = self.clone();
        tokio::spawn(async move {
            while let Some(Ok(connection)) = incoming.next().await {
                let service = service.clone();
                tokio::spawn(service.serve(connection));
            }
        });
        Ok(())
    }

    async fn serve(self, mut connection: Connection) {
        let from = connection.guard().remote().to_string();
        // The guard of the connection limits how long this takes.
        let own = self.identity.hello(None);
        let greeted = exchange::listen(&mut connection, own, &self.identity.secret).await;
        let peer = match greeted {
            Ok(peer) => peer,
            Err(ExchangeError::Broken(_)) => return,
            Err(error) => return self.turned_away.note(&from, &error.to_string()),
        };
        let Ok(_permit) = self.permits.clone().try_acquire_owned() else {
            return;
        };
        let opening: io::Result<Opening> = receive(&mut connection, ANSWER_LIMIT).await;
        let (Ok(opening), rank) = (opening, self.identity.rank_of(&peer)) else {
            return;
        };
        let done = match rank {
            Err(why) => {
                self.turned_away.note(&from, &why);
                send(&mut connection, &Reply::Refused(why), ANSWER_LIMIT).await
            }
            Ok(rank) => self.go_on(connection, rank, opening).await,
        };
        if let Err(error) = done {
            tracing::debug!(%error, from, "a connection of the check ended");
        }
    }

    async fn go_on(
        &self,
        mut connection: Connection,
        rank: usize,
        opening: Opening,
    ) -> io::Result<()> {
        let is_leader = self.identity.rank == 0;
        let visitor = match opening {
            Opening::Probe => return send(&mut connection, &Reply::Welcome, ANSWER_LIMIT).await,
            Opening::Measure => {
                send(&mut connection, &Reply::Welcome, ANSWER_LIMIT).await?;
                return timeout(MEASURE_LIMIT, measure::answer(&mut connection)).await?;
            }
            Opening::Join(card) if is_leader && card.rank == rank => {
                Visitor::Member(card, connection)
            }
            Opening::Lead if rank == 0 => Visitor::Leader(connection),
            Opening::Join(_) | Opening::Lead => {
                let why = format!("this is rank {}, not rank 0", self.identity.rank);
                return send(&mut connection, &Reply::Refused(why), ANSWER_LIMIT).await;
            }
        };
        // Where no session is wanted any more, the connection ends.
        let _full_or_over = self.visitors.try_send(visitor);
        Ok(())
    }
}
