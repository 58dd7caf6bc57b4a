//! The connection to one worker, kept for as long as the coordinator lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::dial::{AttachFailure, HANDSHAKE_TIMEOUT, dial};
use super::queue::TakenClosure;
use super::scheduler::{Closure, Scheduler, StopSignals, WorkerStatus};
use crate::error::PsError;
use crate::rpc::Channel;
use crate::wire_error;
use crate::worker::generated::worker_client::WorkerClient;
use crate::worker::generated::{
    Attach, Cancel, Dataset, Execute, Finish, Order, Outcome, Ping, Report, order, outcome, report,
};
use crate::worker::settings::{read_settings, same_settings, settings};
use crate::worker::{CRATE_VERSION, MESSAGE_OVERHEAD_BYTES, PROTOCOL_VERSION};

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause before a worker that cannot be used is looked at again.
const PAUSE_REFUSED: Duration = Duration::from_secs(2);
/// How long a worker without a stream has to hear of the coordinator's end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the end may take when the coordinator was told to end.
const INTERRUPTED_FINISH_TIMEOUT: Duration = Duration::from_millis(200);
/// When the coordinator was told to end: how often a worker is asked for a sign of life, and how
/// long it may take.
const POLL_INTERVAL: Duration = Duration::from_millis(150);
const SILENT_AFTER: Duration = Duration::from_millis(800);
/// How many orders may wait to be sent. Pings use half of it at most.
const ORDER_QUEUE: usize = 16;

/// How a stream ended.
#[derive(Debug)]
enum StreamEnd {
    Finished,
    Lost(String),
}

/// A stream that the worker has answered.
struct Stream {
    /// Kept, because the connection ends with its last clone; it also knows why it ended.
    channel: Channel,
    outbound: mpsc::Sender<Order>,
    inbound: Streaming<Report>,
    /// The most bytes of arguments that the worker takes.
    limit: u64,
}

/// The closure that the worker has.
struct CurrentClosure {
    handed: TakenClosure<Arc<Closure>>,
    since: Instant,
}

/// Keeps a stream to the worker until the coordinator ends.
pub(super) async fn keep_connected(scheduler: Arc<Scheduler>, worker: usize) {
    let mut stop_signals = scheduler.stop_signals.subscribe();
    let mut pause = PAUSE_MIN;
    while stop_signals.borrow().finish.is_none() {
        let mut ends = stop_signals.clone();
        let attached = tokio::select! {
            attached = attach(&scheduler, worker) => attached,
            () = finished(&mut ends) => break,
        };
        let wait = match attached {
            Ok(stream) => {
                let begun = Instant::now();
                scheduler.set_status(worker, WorkerStatus::Connected);
                match serve_stream(&scheduler, worker, stream, &mut stop_signals).await {
                    StreamEnd::Finished => return,
                    StreamEnd::Lost(reason) => {
                        tracing::warn!(worker, reason, "the worker is lost");
                        scheduler.set_status(worker, WorkerStatus::Absent(reason));
                    }
                }
                if begun.elapsed() > PAUSE_MAX {
                    pause = PAUSE_MIN;
                }
                pause
            }
            Err(AttachFailure::Refused(reason)) => {
                scheduler.set_status(worker, WorkerStatus::Refused(reason));
                PAUSE_REFUSED
            }
            Err(AttachFailure::Different(error)) => {
                let reason = error.to_string();
                // Before the status, which would tell it as one of another job's processes.
                scheduler.fail((*error).into());
                scheduler.set_status(worker, WorkerStatus::Refused(reason));
                PAUSE_REFUSED
            }
            Err(AttachFailure::Later(reason)) => {
                scheduler.set_status(worker, WorkerStatus::Absent(reason));
                pause = (pause * 3 / 2).min(PAUSE_MAX);
                pause
            }
        };
        let _ = tokio::time::timeout(wait, finished(&mut stop_signals)).await;
    }
    let failure = stop_signals.borrow().finish.clone().unwrap_or_default();
    let told = send_end(&scheduler, worker, failure);
    if tokio::time::timeout(end_timeout(&scheduler, FINISH_TIMEOUT), told).await != Ok(true) {
        tracing::debug!(worker, "the worker was not told that the job has ended");
    }
}

/// How long the end may take: not long when the coordinator was told to end.
fn end_timeout(scheduler: &Scheduler, otherwise: Duration) -> Duration {
    match scheduler.options.interruption.is_raised() {
        true => INTERRUPTED_FINISH_TIMEOUT,
        false => otherwise,
    }
}

/// Tells a worker without a stream that the job has ended: one that is still busy with a step, or
/// that was just started again. Whether it has heard of it.
async fn send_end(scheduler: &Scheduler, worker: usize, failure: String) -> bool {
    let Ok(channel) = dial(scheduler, worker).await else {
        return false;
    };
    let finish = order::Order::Finish(finish(scheduler, failure));
    let orders = tokio_stream::once(order_message(finish));
    WorkerClient::new(channel).serve(orders).await.is_ok()
}

fn finish(scheduler: &Scheduler, failure: String) -> Finish {
    let run = Bytes::copy_from_slice(&scheduler.run.0.to_le_bytes());
    Finish { failure, run }
}

/// Waits until the coordinator ends.
async fn finished(stop_signals: &mut watch::Receiver<StopSignals>) {
    if stop_signals
        .wait_for(|it| it.finish.is_some())
        .await
        .is_err()
    {
        // The sender is gone: no end can be announced any more.
        std::future::pending::<()>().await;
    }
}

async fn attach(scheduler: &Scheduler, worker: usize) -> Result<Stream, AttachFailure> {
    let limit = scheduler
        .options
        .max_message_bytes
        .saturating_add(MESSAGE_OVERHEAD_BYTES);
    let channel = dial(scheduler, worker).await?;
    let mut client = WorkerClient::new(channel.clone())
        .max_decoding_message_size(limit)
        .max_encoding_message_size(limit);
    let (outbound, receiver) = mpsc::channel(ORDER_QUEUE);
    let attach = Attach {
        protocol_version: PROTOCOL_VERSION,
        crate_version: CRATE_VERSION.to_string(),
        run: Bytes::copy_from_slice(&scheduler.run.0.to_le_bytes()),
        worker: u32::try_from(worker).unwrap_or(u32::MAX),
        workers: u32::try_from(scheduler.addresses.len()).unwrap_or(u32::MAX),
        parameter_servers: scheduler.parameter_servers.clone(),
        max_message_bytes: scheduler.options.max_message_bytes as u64,
        settings: settings(&scheduler.configuration),
    };
    // The queue is new: there is room.
    let _ = outbound.try_send(order_message(order::Order::Attach(attach)));
    let called = tokio::time::timeout(
        HANDSHAKE_TIMEOUT,
        client.serve(ReceiverStream::new(receiver)),
    )
    .await;
    let response = called.map_err(|_| silent())?.map_err(refused)?;
    let mut inbound = response.into_inner();
    let first = tokio::time::timeout(HANDSHAKE_TIMEOUT, inbound.message()).await;
    let first = first.map_err(|_| silent())?.map_err(refused)?;
    let Some(report::Report::Welcome(welcome)) = first.and_then(|report| report.report) else {
        return Err(AttachFailure::Later(
            "its first message is no Welcome".to_string(),
        ));
    };
    if welcome.steps != scheduler.steps {
        let differs = |a: &[String], b: &[String]| a.iter().find(|step| !b.contains(step)).cloned();
        let (theirs, ours) = (&welcome.steps, &scheduler.steps);
        let what = match (differs(ours, theirs), differs(theirs, ours)) {
            (Some(step), _) => format!("it has no step `{step}`"),
            (None, Some(step)) => format!("it has a step `{step}`, the coordinator has none"),
            (None, None) => "its steps are listed in another order".to_string(),
        };
        return Err(AttachFailure::Refused(format!(
            "it runs another program: {what}; start the same one everywhere"
        )));
    }
    let theirs = read_settings(&welcome.settings);
    same_settings(worker, &theirs, &scheduler.configuration)
        .map_err(|error| AttachFailure::Different(Box::new(error)))?;
    Ok(Stream {
        channel,
        outbound,
        inbound,
        limit: welcome.max_message_bytes,
    })
}

fn silent() -> AttachFailure {
    AttachFailure::Later("it is connected but does not answer".to_string())
}

fn refused(status: Status) -> AttachFailure {
    let reason = status.message().to_string();
    match status.code() {
        Code::Unauthenticated | Code::InvalidArgument | Code::Unimplemented => {
            AttachFailure::Refused(reason)
        }
        Code::FailedPrecondition => AttachFailure::Later(reason),
        code => AttachFailure::Later(format!("{code:?}: {reason}")),
    }
}

fn order_message(order: order::Order) -> Order {
    Order { order: Some(order) }
}

/// Sends closures and takes their results until the stream ends. A closure that is under way then
/// goes back to the queue.
async fn serve_stream(
    scheduler: &Scheduler,
    worker: usize,
    mut stream: Stream,
    stop_signals: &mut watch::Receiver<StopSignals>,
) -> StreamEnd {
    let mut current = None;
    let end = exchange(scheduler, worker, &mut stream, stop_signals, &mut current).await;
    if let Some(CurrentClosure { handed, .. }) = current {
        let reason = match &end {
            StreamEnd::Lost(reason) => reason,
            StreamEnd::Finished => "the coordinator ends",
        };
        scheduler.closure_lost(handed.id, worker, reason);
    }
    if matches!(end, StreamEnd::Finished) {
        drop(stream.outbound);
        // Until the worker has read the message.
        let drained = async { while let Ok(Some(_)) = stream.inbound.message().await {} };
        let _ = tokio::time::timeout(end_timeout(scheduler, HANDSHAKE_TIMEOUT), drained).await;
    }
    end
}

async fn exchange(
    scheduler: &Scheduler,
    worker: usize,
    stream: &mut Stream,
    stop_signals: &mut watch::Receiver<StopSignals>,
    current: &mut Option<CurrentClosure>,
) -> StreamEnd {
    let mut watched = WorkerWatch::new(scheduler);
    let raised = scheduler.options.interruption.raised();
    tokio::pin!(raised);
    loop {
        let ended = tokio::select! {
            () = &mut raised, if watched.interrupted_at.is_none() => {
                watched.note_interruption();
                Ok(())
            }
            report = stream.inbound.message() => {
                watched.last_received = Instant::now();
                handle_report(scheduler, worker, stream, current, report)
            }
            handed = scheduler.take(), if current.is_none() => {
                send_closure(scheduler, worker, stream, current, handed)
            }
            _ = stop_signals.changed() => {
                let stop_signals = stop_signals.borrow_and_update().clone();
                if let Some(failure) = stop_signals.finish {
                    let finish = order::Order::Finish(finish(scheduler, failure));
                    let _ = stream.outbound.send(order_message(finish)).await;
                    Err(StreamEnd::Finished)
                } else {
                    cancel(scheduler, stream, current, stop_signals.cancelled_below)
                }
            }
            _ = watched.ticks.tick() => watched.check(scheduler, worker, stream, current),
        };
        if let Err(end) = ended {
            return end;
        }
    }
}

/// Sends the worker a closure, unless it would not take one so large.
fn send_closure(
    scheduler: &Scheduler,
    worker: usize,
    stream: &Stream,
    current: &mut Option<CurrentClosure>,
    handed: TakenClosure<Arc<Closure>>,
) -> Result<(), StreamEnd> {
    let closure = &handed.payload;
    let bytes = closure.arguments.len() as u64;
    if bytes > stream.limit {
        let error = PsError::Closure {
            closure: handed.id,
            step: closure.step.to_string(),
            worker,
            source: Arc::new(PsError::invalid(format!(
                "the arguments have {bytes} bytes, the worker takes {} at most; raise \
                 `WorkerOptions::max_message_bytes`",
                stream.limit
            ))),
        };
        scheduler.closure_ended(handed.id, closure, Err(error));
        return Ok(());
    }
    let datasets = closure.datasets.iter();
    let execute = Execute {
        closure: handed.id,
        step: closure.step.to_string(),
        arguments: closure.arguments.clone(),
        datasets: datasets
            .map(|(name, renewals)| Dataset {
                name: name.clone(),
                renewals: *renewals,
            })
            .collect(),
    };
    *current = Some(CurrentClosure {
        handed,
        since: Instant::now(),
    });
    order(stream, order::Order::Execute(execute))
}

fn order(stream: &Stream, order: order::Order) -> Result<(), StreamEnd> {
    let sent = stream.outbound.try_send(order_message(order));
    sent.map_err(|_| StreamEnd::Lost("it does not take what is sent".to_string()))
}

/// A call surfaces an error: the closure is to stop. If it was given up already, so is the stream;
/// the worker is used again when its step has ended.
fn cancel(
    scheduler: &Scheduler,
    stream: &Stream,
    current: &Option<CurrentClosure>,
    below: u64,
) -> Result<(), StreamEnd> {
    let handed = match current {
        Some(CurrentClosure { handed, .. }) if handed.id < below => handed,
        _ => return Ok(()),
    };
    if scheduler.is_wanted(handed.id) {
        let closure = handed.id;
        return order(stream, order::Order::Cancel(Cancel { closure }));
    }
    Err(StreamEnd::Lost(
        "its step did not stop when it was cancelled".to_string(),
    ))
}

/// Why a stream ended: because of its connection, or else in these words.
fn end_reason(channel: &Channel, otherwise: &str) -> String {
    let end = channel.closed();
    end.map_or_else(|| otherwise.to_string(), |end| end.to_string())
}

/// Something came from the worker, or nothing will any more.
fn handle_report(
    scheduler: &Scheduler,
    worker: usize,
    stream: &Stream,
    current: &mut Option<CurrentClosure>,
    report: Result<Option<Report>, Status>,
) -> Result<(), StreamEnd> {
    let channel = &stream.channel;
    let report = match report {
        Ok(Some(Report { report })) => report,
        // A stream ends well only if the worker ends, or its connection.
        Ok(None) => return Err(StreamEnd::Lost(end_reason(channel, "its process ended"))),
        Err(status) => return Err(StreamEnd::Lost(end_reason(channel, status.message()))),
    };
    match report {
        Some(report::Report::Outcome(outcome)) => {
            finish_closure(scheduler, worker, current, outcome)
        }
        Some(report::Report::Pong(_)) => Ok(()),
        Some(report::Report::Ask(_)) => {
            if stream.outbound.capacity() > ORDER_QUEUE / 2 {
                order(stream, order::Order::Ping(Ping::default()))?;
            }
            Ok(())
        }
        Some(report::Report::Welcome(_)) | None => Err(StreamEnd::Lost(
            "it sent what is not understood".to_string(),
        )),
    }
}

/// A closure has ended on the worker.
fn finish_closure(
    scheduler: &Scheduler,
    worker: usize,
    current: &mut Option<CurrentClosure>,
    outcome: Outcome,
) -> Result<(), StreamEnd> {
    let closure = outcome.closure;
    let Some(CurrentClosure { handed, .. }) = current.take_if(|it| it.handed.id == closure) else {
        return Err(StreamEnd::Lost(format!(
            "it reports closure {closure}, which it does not have"
        )));
    };
    let result = match outcome.outcome {
        Some(outcome::Outcome::Value(value)) => Ok(value),
        Some(outcome::Outcome::Failure(failed)) => match wire_error::decode(&failed) {
            PsError::Cancelled => Err(PsError::Cancelled),
            source => Err(PsError::Closure {
                closure,
                step: handed.payload.step.to_string(),
                worker,
                source: Arc::new(source),
            }),
        },
        None => {
            return Err(StreamEnd::Lost(
                "it reports a closure without an outcome".to_string(),
            ));
        }
    };
    scheduler.closure_ended(closure, &handed.payload, result);
    Ok(())
}

/// Whether the worker gives signs of life, and its step comes to an end.
struct WorkerWatch {
    ticks: tokio::time::Interval,
    last_received: Instant,
    pings: u64,
    /// Since when there is little time.
    interrupted_at: Option<Instant>,
}

impl WorkerWatch {
    fn new(scheduler: &Scheduler) -> Self {
        // Not zero, which an interval refuses.
        let every = scheduler
            .options
            .keepalive_interval
            .max(Duration::from_millis(1));
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self {
            ticks,
            last_received: Instant::now(),
            pings: 0,
            interrupted_at: None,
        }
    }

    /// The coordinator was told to end: what a worker still does is waited for, but not one that
    /// gives no sign of life.
    fn note_interruption(&mut self) {
        self.interrupted_at = Some(Instant::now());
        self.ticks = tokio::time::interval(POLL_INTERVAL);
    }

    fn is_silent(&self, scheduler: &Scheduler) -> bool {
        let options = &scheduler.options;
        let limit = options.keepalive_interval + options.keepalive_timeout;
        let silence = self
            .interrupted_at
            .map(|since| self.last_received.max(since).elapsed());
        self.last_received.elapsed() > limit
            || silence.is_some_and(|silence| silence > SILENT_AFTER)
    }

    fn check(
        &mut self,
        scheduler: &Scheduler,
        worker: usize,
        stream: &Stream,
        current: &mut Option<CurrentClosure>,
    ) -> Result<(), StreamEnd> {
        let options = &scheduler.options;
        let silence = self.last_received.elapsed();
        if self.is_silent(scheduler) {
            return Err(StreamEnd::Lost(format!(
                "it has been silent for {silence:.1?}"
            )));
        }
        let too_long = |it: &mut CurrentClosure| it.since.elapsed() > options.step_timeout;
        if let Some(CurrentClosure { handed, .. }) = current.take_if(too_long) {
            let error = PsError::Closure {
                closure: handed.id,
                step: handed.payload.step.to_string(),
                worker,
                source: Arc::new(PsError::Deadline {
                    op: "step",
                    waited: options.step_timeout,
                    reason: "it still runs; raise `CoordinatorOptions::step_timeout` if it should"
                        .to_string(),
                }),
            };
            scheduler.closure_ended(handed.id, &handed.payload, Err(error));
            return Err(StreamEnd::Lost("its step ran too long".to_string()));
        }
        self.pings += 1;
        if stream.outbound.capacity() > ORDER_QUEUE / 2 {
            let number = self.pings;
            let _ = stream
                .outbound
                .try_send(order_message(order::Order::Ping(Ping { number })));
        }
        Ok(())
    }
}
