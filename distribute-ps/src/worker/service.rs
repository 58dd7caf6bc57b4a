//! The service that a coordinator calls: its stream, from `Attach` to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::context::RunSession;
use super::generated::worker_server::Worker;
use super::generated::{Attach, Finish, Order, Ping, Report, Welcome, order, report};
use super::registry::StepRegistry;
use super::settings::{read_settings, same_settings, settings};
use super::step_queue::{REPORTS, Reports, StepQueue};
use super::{CRATE_VERSION, PROTOCOL_VERSION};
use crate::client::ClientOptions;
use crate::error::PsError;
use crate::rpc::Peer;
use crate::update::RunId;

/// How long the first message may take.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// The most parameter servers that a coordinator may name.
const SERVERS_MAX: usize = 1 << 16;
/// Closures that may still be cancelled; more than can be at the worker.
const FLAGS_MAX: usize = 16;

/// The service of `worker.proto`.
pub(super) struct Service {
    pub(super) queue: Arc<StepQueue>,
    pub(super) registry: Arc<StepRegistry>,
    pub(super) client: ClientOptions,
}

#[tonic::async_trait]
impl Worker for Service {
    type ServeStream = ReceiverStream<Result<Report, Status>>;

    async fn serve(
        &self,
        request: Request<Streaming<Order>>,
    ) -> Result<Response<Self::ServeStream>, Status> {
        let remote = request.extensions().get::<Arc<Peer>>();
        let remote = remote.map_or_else(String::new, |peer| peer.remote().to_string());
        let mut inbound = request.into_inner();
        let first = tokio::time::timeout(ATTACH_TIMEOUT, inbound.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no message came"))??;
        let (reports, receiver) = mpsc::channel(REPORTS);
        let attach = match first.and_then(|order| order.order) {
            Some(order::Order::Attach(attach)) => attach,
            Some(order::Order::Finish(finish)) => {
                self.queue
                    .end_run(run_id(&finish.run)?, job_result(finish))?;
                return Ok(Response::new(ReceiverStream::new(receiver)));
            }
            _ => return Err(Status::invalid_argument("the first message is no Attach")),
        };
        let chief = read_settings(&attach.settings);
        let worker = attach.worker as usize;
        let stream = self.attach(attach, remote)?;
        let _ = reports.try_send(Ok(report_message(report::Report::Welcome(
            self.welcome_message(),
        ))));
        if let Err(error) = same_settings(worker, self.registry.settings(), &chief) {
            self.queue.refuse(error.into());
        }
        self.queue.set_reports(stream, reports.clone());
        tokio::spawn(read(self.queue.clone(), stream, inbound, reports));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

impl Service {
    fn attach(&self, attach: Attach, remote: String) -> Result<u64, Status> {
        if attach.protocol_version != PROTOCOL_VERSION || attach.crate_version != CRATE_VERSION {
            return Err(Status::invalid_argument(format!(
                "the coordinator speaks version {} of the worker's protocol (distribute-ps {}), \
                 this worker version {PROTOCOL_VERSION} (distribute-ps {CRATE_VERSION}); run the \
                 same program everywhere",
                attach.protocol_version, attach.crate_version
            )));
        }
        let run = run_id(&attach.run)?;
        let (worker, workers) = (attach.worker as usize, attach.workers as usize);
        if worker >= workers || attach.parameter_servers.len() > SERVERS_MAX {
            return Err(Status::invalid_argument("there is no such worker"));
        }
        self.queue.attach(run, remote, || {
            let (registry, client) = (self.registry.clone(), self.client.clone());
            let servers = attach.parameter_servers;
            let limit = usize::try_from(attach.max_message_bytes).unwrap_or(usize::MAX);
            RunSession::new(registry, run, (worker, workers), servers, (client, limit))
        })
    }

    fn welcome_message(&self) -> Welcome {
        Welcome {
            protocol_version: PROTOCOL_VERSION,
            crate_version: CRATE_VERSION.to_string(),
            steps: self.registry.step_names().map(str::to_string).collect(),
            max_message_bytes: self.queue.max_message_bytes as u64,
            settings: settings(self.registry.settings()),
        }
    }
}

fn run_id(bytes: &[u8]) -> Result<RunId, Status> {
    let bytes = <[u8; 16]>::try_from(bytes)
        .map_err(|_| Status::invalid_argument("the id of a run has 16 bytes"))?;
    Ok(RunId(u128::from_le_bytes(bytes)))
}

/// How the worker ends.
fn job_result(finish: Finish) -> Result<(), PsError> {
    match finish.failure.is_empty() {
        true => Ok(()),
        false => Err(PsError::CoordinatorFailed {
            reason: finish.failure,
        }),
    }
}

fn report_message(report: report::Report) -> Report {
    Report {
        report: Some(report),
    }
}

/// The flags by which closures of one stream are cancelled.
#[derive(Default)]
struct CancelFlags(BTreeMap<u64, Arc<AtomicBool>>);

impl CancelFlags {
    fn add(&mut self, closure: u64) -> Arc<AtomicBool> {
        let flag = Arc::new(AtomicBool::new(false));
        self.0.insert(closure, flag.clone());
        if self.0.len() > FLAGS_MAX {
            // A closure that has ended holds its flag no more.
            self.0.retain(|_, flag| Arc::strong_count(flag) > 1);
        }
        flag
    }

    fn cancel(&self, closure: u64) {
        if let Some(flag) = self.0.get(&closure) {
            flag.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for CancelFlags {
    /// Cancels all closures of the stream: their results are of no use any more.
    fn drop(&mut self) {
        for flag in self.0.values() {
            flag.store(true, Ordering::Relaxed);
        }
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
async fn read(queue: Arc<StepQueue>, stream: u64, mut inbound: Streaming<Order>, reports: Reports) {
    let attached = AttachedStream { queue, stream };
    let mut flags = CancelFlags::default();
    let status = loop {
        let order = match inbound.message().await {
            Ok(Some(Order { order: Some(order) })) => order,
            Ok(Some(_)) => break Some(Status::invalid_argument("an empty message")),
            Ok(None) => break None,
            Err(status) => {
                tracing::debug!(%status, "the coordinator's stream broke");
                break None;
            }
        };
        if let Err(status) = handle_order(&attached, &mut flags, order, &reports) {
            break Some(status);
        }
    };
    if let Some(status) = status {
        tracing::warn!(%status, "the coordinator's stream ends");
        let _ = reports.try_send(Err(status));
    }
}

fn handle_order(
    attached: &AttachedStream,
    flags: &mut CancelFlags,
    order: order::Order,
    reports: &Reports,
) -> Result<(), Status> {
    attached.queue.note_received(attached.stream);
    match order {
        order::Order::Execute(execute) => {
            let flag = flags.add(execute.closure);
            let (queue, stream) = (&attached.queue, attached.stream);
            queue.push(stream, execute, flag, reports.clone())
        }
        order::Order::Cancel(cancel) => {
            flags.cancel(cancel.closure);
            Ok(())
        }
        order::Order::Finish(finish) => {
            attached.queue.end(job_result(finish));
            Ok(())
        }
        order::Order::Ping(Ping { number }) => {
            // Results come first: they prove as much.
            if reports.capacity() > REPORTS / 2 {
                let _ = reports.try_send(Ok(report_message(report::Report::Pong(Ping { number }))));
            }
            Ok(())
        }
        order::Order::Attach(_) => Err(Status::invalid_argument("a second Attach")),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::step_queue::CoordinatorTimeouts;
    use super::*;

    fn service() -> Service {
        Service {
            queue: Arc::new(StepQueue::new(1000, CoordinatorTimeouts::default())),
            registry: Arc::default(),
            client: ClientOptions::default(),
        }
    }

    fn attach(run: u8) -> Attach {
        Attach {
            protocol_version: PROTOCOL_VERSION,
            crate_version: CRATE_VERSION.to_string(),
            run: vec![run; 16].into(),
            worker: 1,
            workers: 2,
            parameter_servers: Vec::new(),
            max_message_bytes: 1000,
            settings: Vec::new(),
        }
    }

    fn attached(service: &Service, run: u8) -> Result<u64, Status> {
        service.attach(attach(run), String::new())
    }

    #[test]
    fn a_coordinator_of_another_version_is_turned_away() {
        let other = |change: fn(&mut Attach)| {
            let mut attach = attach(1);
            change(&mut attach);
            service().attach(attach, String::new()).unwrap_err()
        };
        let status = other(|attach| attach.crate_version = "0.0.7".to_string());
        assert_eq!(status.code(), Code::InvalidArgument);
        let text = status.message();
        assert!(
            text.contains("0.0.7") && text.contains(CRATE_VERSION),
            "{text}"
        );
        for change in [
            |attach: &mut Attach| attach.protocol_version += 1,
            |attach: &mut Attach| attach.run = vec![1; 15].into(),
            |attach: &mut Attach| attach.worker = 2,
        ] {
            assert_eq!(other(change).code(), Code::InvalidArgument);
        }
    }

    #[test]
    fn a_second_coordinator_waits_and_the_first_may_dial_again() {
        let service = service();
        let first = attached(&service, 1).unwrap();
        let status = attached(&service, 2).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
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
            let execute = super::super::generated::Execute::default();
            service
                .queue
                .push(stream, execute, Arc::default(), reports.clone())
        };
        let refused = (0..100).find_map(|count| Some((count, put().err()?)));
        let (count, status) = refused.unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(count < 10, "{count}");
    }
}
