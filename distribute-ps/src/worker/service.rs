//! The service that a coordinator calls: its stream, from `Attach` to its end.

use std::sync::Arc;
use std::time::Duration;

use distribute_net::compute_clock::ComputeClock;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::context::RunSession;
use super::messages::{Attach, Order, Report, Welcome};
use super::settings::same_settings;
use super::step_queue::{REPORTS, Reports, StepQueue, later, report};
use crate::client::ClientOptions;
use crate::error::PsError;
use crate::rpc::clock::within;
use crate::rpc::message::{Outgoing, Reader};
use crate::rpc::{ConnectError, Peer};
use crate::wire_error::sendable;

/// How long the first message may take.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// The most parameter servers that a coordinator may name.
const SERVERS_MAX: usize = 1 << 16;

/// What a coordinator may call.
pub(super) struct Service {
    pub(super) queue: Arc<StepQueue>,
    pub(super) client: ClientOptions,
    /// The clock of the thread that answers.
    pub(super) clock: Arc<ComputeClock>,
}

impl Service {
    /// Answers a call.
    pub(super) async fn answer(
        self: Arc<Self>,
        orders: Reader<Incoming>,
        peer: Arc<Peer>,
    ) -> Outgoing {
        let (reports, receiver) = mpsc::channel(REPORTS);
        let orders = orders.limited(self.queue.message_limit());
        if let Err(refused) = self.serve(orders, &peer, reports.clone()).await {
            report(&reports, &Report::Refused(refused));
        }
        Outgoing::stream(receiver)
    }

    async fn serve(
        &self,
        mut orders: Reader<Incoming>,
        peer: &Peer,
        reports: Reports,
    ) -> Result<(), ConnectError> {
        let first = within(&self.clock, ATTACH_TIMEOUT, orders.header::<Order>())
            .await
            .ok_or_else(|| later("no message came"))?;
        let attach = match first.map_err(|error| later(error.to_string()))? {
            Order::Attach(attach) => attach,
            Order::Finish { failure, run } => {
                return self.queue.end_run(run, job_result(failure));
            }
            _ => return Err(senseless("the first message is no Attach")),
        };
        let (worker, chief) = (attach.worker, attach.configuration.clone());
        let stream = self.attach(attach, peer.remote().to_string())?;
        report(&reports, &Report::Welcome(self.welcome_message()));
        if let Err(error) = same_settings(worker, self.queue.registry.settings(), &chief) {
            self.queue.refuse(error.into());
        }
        self.queue.watch(stream, peer.heard().clone());
        tokio::spawn(read(self.queue.clone(), stream, orders, reports));
        Ok(())
    }

    fn attach(&self, attach: Attach, remote: String) -> Result<u64, ConnectError> {
        let run = attach.run;
        if attach.worker >= attach.workers || attach.parameter_servers.len() > SERVERS_MAX {
            return Err(senseless("there is no such worker"));
        }
        let session = || RunSession::new(attach, self.client.clone());
        self.queue.attach(run, remote, session)
    }

    fn welcome_message(&self) -> Welcome {
        let registry = &self.queue.registry;
        Welcome {
            steps: registry.step_names().map(str::to_string).collect(),
            max_message_bytes: self.queue.max_message_bytes,
            configuration: registry.settings().clone(),
        }
    }
}

/// A coordinator that makes no sense will not make any later.
fn senseless(what: impl Into<String>) -> ConnectError {
    ConnectError::Refused(what.into())
}

/// How the worker ends.
fn job_result(failure: String) -> Result<(), PsError> {
    if failure.is_empty() {
        Ok(())
    } else {
        Err(PsError::CoordinatorFailed { reason: failure })
    }
}

/// Detaches even when the runtime ends in the middle.
struct AttachedStream {
    queue: Arc<StepQueue>,
    stream: u64,
}

impl Drop for AttachedStream {
    fn drop(&mut self) {
        self.queue.detach(self.stream);
    }
}

/// Handles the messages of a stream until it ends.
async fn read(queue: Arc<StepQueue>, stream: u64, mut orders: Reader<Incoming>, reports: Reports) {
    let attached = AttachedStream { queue, stream };
    loop {
        let order = match orders.message().await {
            Ok(Some(order)) => order,
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(%error, "the coordinator's stream broke");
                return;
            }
        };
        if let Err(refused) = handle_order(&attached, order, &reports) {
            tracing::warn!(error = %refused, "the coordinator's stream ends");
            return report(&reports, &Report::Refused(refused));
        }
    }
}

fn handle_order(
    attached: &AttachedStream,
    order: Order,
    reports: &Reports,
) -> Result<(), ConnectError> {
    let AttachedStream { queue, stream } = attached;
    match order {
        Order::Execute(execute) => queue.push(*stream, execute, reports.clone()),
        Order::Cancel(closure) => {
            queue.cancel(*stream, closure);
            Ok(())
        }
        Order::Finish { failure, .. } => {
            queue.end(job_result(failure));
            Ok(())
        }
        Order::CheckServers => {
            let (session, reports) = (queue.session(*stream)?, reports.clone());
            check_servers(session, reports, RunSession::check_servers);
            Ok(())
        }
        Order::Attach(_) => Err(senseless("a second Attach")),
    }
}

/// Has the servers asked on a thread that may block, unless that is under way: the coordinator asks
/// again when it hears nothing, and each time would take a thread more.
fn check_servers(
    session: Arc<RunSession>,
    reports: Reports,
    check: impl FnOnce(&RunSession) -> Result<(), PsError> + Send + 'static,
) {
    if !session.begin_check(reports) {
        return;
    }
    tokio::task::spawn_blocking(move || {
        let checked = check(&session).map_err(|error| sendable(&error));
        if let Some(reports) = session.end_check() {
            report(&reports, &Report::Servers(checked));
        }
    });
}

#[cfg(test)]
mod tests {
    use distribute_core::Configuration;

    use super::*;
    use crate::rpc::clock::new_clock;
    use crate::server::CoordinatorTimeouts;
    use crate::update::RunId;

    fn service() -> Service {
        Service {
            queue: Arc::new(StepQueue::new(
                1000,
                CoordinatorTimeouts::default(),
                Arc::default(),
            )),
            client: ClientOptions::default(),
            clock: new_clock(),
        }
    }

    fn attach(run: u8) -> Attach {
        Attach {
            run: RunId(run.into()),
            worker: 1,
            workers: 2,
            parameter_servers: Vec::new(),
            max_message_bytes: 1000,
            configuration: Configuration::new(),
        }
    }

    fn attached(service: &Service, run: u8) -> Result<u64, ConnectError> {
        service.attach(attach(run), String::new())
    }

    #[test]
    fn a_coordinator_that_makes_no_sense_is_turned_away() {
        let other = |change: fn(&mut Attach)| {
            let mut attach = attach(1);
            change(&mut attach);
            service().attach(attach, String::new()).unwrap_err()
        };
        for change in [
            |attach: &mut Attach| attach.parameter_servers = vec![String::new(); SERVERS_MAX + 1],
            |attach: &mut Attach| attach.worker = 2,
        ] {
            assert!(matches!(other(change), ConnectError::Refused(_)));
        }
    }

    #[test]
    fn a_second_coordinator_waits_and_the_first_may_dial_again() {
        let service = service();
        let first = attached(&service, 1).unwrap();
        let refused = attached(&service, 2).unwrap_err();
        assert!(matches!(refused, ConnectError::Unavailable(_)));
        let again = attached(&service, 1).unwrap();
        // The end of the stream that was replaced changes nothing.
        service.queue.detach(first);
        assert!(attached(&service, 2).is_err());
        service.queue.detach(again);
        attached(&service, 2).unwrap();
    }

    #[test]
    fn more_closures_than_a_coordinator_sends_are_refused() {
        let service = service();
        let stream = attached(&service, 1).unwrap();
        let (reports, _receiver) = mpsc::channel(REPORTS);
        let put = || {
            let execute = super::super::messages::Execute::default();
            service.queue.push(stream, execute, reports.clone())
        };
        let refused = (0..100).find_map(|count| Some((count, put().err()?)));
        let (count, refused) = refused.unwrap();
        assert!(refused.to_string().contains("more closures"), "{refused}");
        assert!(count < 10, "{count}");
    }

    /// A coordinator that asks again, also over another stream, gets one answer, where it asked
    /// last, and takes no further thread.
    #[tokio::test]
    async fn one_check_of_the_servers_is_under_way_at_a_time() {
        let service = service();
        let stream = attached(&service, 1).unwrap();
        let session = service.queue.session(stream).unwrap();
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let (earlier, mut of_earlier) = mpsc::channel(REPORTS);
        let (later, mut of_later) = mpsc::channel(REPORTS);
        check_servers(session.clone(), earlier.clone(), move |_| {
            may_go.recv().unwrap();
            Ok(())
        });
        for _ in 0..40 {
            check_servers(session.clone(), earlier.clone(), |_| panic!("a second one"));
        }
        check_servers(session.clone(), later, |_| panic!("a second one"));
        go.send(()).unwrap();
        assert!(of_later.recv().await.is_some());
        assert!(of_later.recv().await.is_none());
        assert!(of_earlier.try_recv().is_err());
        // The next one begins when it has ended.
        check_servers(session, earlier, |_| Ok(()));
        assert!(of_earlier.recv().await.is_some());
    }
}
