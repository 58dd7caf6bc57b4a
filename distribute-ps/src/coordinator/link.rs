//! The connection to one worker, kept for as long as the coordinator lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::queue::Handed;
use super::shared::{Closure, Orders, Shared, WorkerStatus};
use crate::error::PsError;
use crate::rpc::Channel;
use crate::worker::generated::worker_client::WorkerClient;
use crate::worker::generated::{
    Attach, Cancel, Dataset, Execute, Finish, Order, Outcome, Ping, Report, order, outcome, report,
};
use crate::worker::settings::{read_settings, same_settings, settings};
use crate::worker::{CRATE_VERSION, PROTOCOL_VERSION, failure};

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause before a worker that cannot be used is looked at again.
const PAUSE_REFUSED: Duration = Duration::from_secs(2);
/// How long a handshake, or the end of a stream, may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long a worker without a stream has to hear of the coordinator's end.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end may take when the coordinator was told to end.
const HASTY_PATIENCE: Duration = Duration::from_millis(200);
/// When the coordinator was told to end: how often a worker is asked for a sign of life, and how
/// long it may take.
const LOOK: Duration = Duration::from_millis(150);
const SILENT_AFTER: Duration = Duration::from_millis(800);
/// How many orders may wait to be sent. Pings use half of it at most.
const ORDERS: usize = 16;
/// What a message has besides arguments or a result.
pub(crate) const OVERHEAD: usize = 64 << 10;

/// Why there is no stream.
#[derive(Debug)]
pub(super) enum Failed {
    /// There is no use to try again soon.
    Refused(String),
    /// It has another configuration.
    Different(Box<distribute_core::Error>),
    Later(String),
}

/// How a stream ended.
#[derive(Debug)]
enum End {
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
struct Current {
    handed: Handed<Arc<Closure>>,
    since: Instant,
}

/// Keeps a stream to the worker until the coordinator ends.
pub(super) async fn keep(shared: Arc<Shared>, worker: usize) {
    let mut orders = shared.orders.subscribe();
    let mut pause = PAUSE_MIN;
    while orders.borrow().finish.is_none() {
        let mut ends = orders.clone();
        let attached = tokio::select! {
            attached = attach(&shared, worker) => attached,
            () = finished(&mut ends) => break,
        };
        let wait = match attached {
            Ok(stream) => {
                let begun = Instant::now();
                shared.set_status(worker, WorkerStatus::Connected);
                match converse(&shared, worker, stream, &mut orders).await {
                    End::Finished => return,
                    End::Lost(reason) => {
                        tracing::warn!(worker, reason, "the worker is lost");
                        shared.set_status(worker, WorkerStatus::Absent(reason));
                    }
                }
                if begun.elapsed() > PAUSE_MAX {
                    pause = PAUSE_MIN;
                }
                pause
            }
            Err(Failed::Refused(reason)) => {
                shared.set_status(worker, WorkerStatus::Refused(reason));
                PAUSE_REFUSED
            }
            Err(Failed::Different(error)) => {
                let reason = error.to_string();
                // Before the status, which would tell it as one of another job's processes.
                shared.fail((*error).into());
                shared.set_status(worker, WorkerStatus::Refused(reason));
                PAUSE_REFUSED
            }
            Err(Failed::Later(reason)) => {
                shared.set_status(worker, WorkerStatus::Absent(reason));
                pause = (pause * 3 / 2).min(PAUSE_MAX);
                pause
            }
        };
        let _ = tokio::time::timeout(wait, finished(&mut orders)).await;
    }
    let failure = orders.borrow().finish.clone().unwrap_or_default();
    let told = tell_end(&shared, worker, failure);
    if tokio::time::timeout(patience(&shared, FINISH_PATIENCE), told).await != Ok(true) {
        tracing::debug!(worker, "the worker was not told that the job has ended");
    }
}

/// How long the end may take: not long when the coordinator was told to end.
fn patience(shared: &Shared, otherwise: Duration) -> Duration {
    match shared.options.interruption.is_raised() {
        true => HASTY_PATIENCE,
        false => otherwise,
    }
}

/// Tells a worker without a stream that the job has ended: one that is still busy with a step, or
/// that was just started again. Whether it has heard of it.
async fn tell_end(shared: &Shared, worker: usize, failure: String) -> bool {
    let Ok(channel) = super::dial::dial(shared, worker).await else {
        return false;
    };
    let finish = order::Order::Finish(finish(shared, failure));
    let orders = tokio_stream::once(said(finish));
    WorkerClient::new(channel).serve(orders).await.is_ok()
}

fn finish(shared: &Shared, failure: String) -> Finish {
    let run = Bytes::copy_from_slice(&shared.run.0.to_le_bytes());
    Finish { failure, run }
}

/// Waits until the coordinator ends.
async fn finished(orders: &mut watch::Receiver<Orders>) {
    if orders.wait_for(|it| it.finish.is_some()).await.is_err() {
        // Nobody can say so any more.
        std::future::pending::<()>().await;
    }
}

async fn attach(shared: &Shared, worker: usize) -> Result<Stream, Failed> {
    let limit = shared.options.max_message_bytes.saturating_add(OVERHEAD);
    let channel = super::dial::dial(shared, worker).await?;
    let mut client = WorkerClient::new(channel.clone())
        .max_decoding_message_size(limit)
        .max_encoding_message_size(limit);
    let (outbound, receiver) = mpsc::channel(ORDERS);
    let attach = Attach {
        protocol_version: PROTOCOL_VERSION,
        crate_version: CRATE_VERSION.to_string(),
        run: Bytes::copy_from_slice(&shared.run.0.to_le_bytes()),
        worker: u32::try_from(worker).unwrap_or(u32::MAX),
        workers: u32::try_from(shared.addresses.len()).unwrap_or(u32::MAX),
        parameter_servers: shared.parameter_servers.clone(),
        max_message_bytes: shared.options.max_message_bytes as u64,
        settings: settings(&shared.configuration),
    };
    // The queue is new: there is room.
    let _ = outbound.try_send(said(order::Order::Attach(attach)));
    let called = tokio::time::timeout(PATIENCE, client.serve(ReceiverStream::new(receiver))).await;
    let response = called.map_err(|_| silent())?.map_err(refused)?;
    let mut inbound = response.into_inner();
    let first = tokio::time::timeout(PATIENCE, inbound.message()).await;
    let first = first.map_err(|_| silent())?.map_err(refused)?;
    let Some(report::Report::Welcome(welcome)) = first.and_then(|report| report.report) else {
        return Err(Failed::Later("its first message is no Welcome".to_string()));
    };
    if welcome.steps != shared.steps {
        let differs = |a: &[String], b: &[String]| a.iter().find(|step| !b.contains(step)).cloned();
        let (theirs, ours) = (&welcome.steps, &shared.steps);
        let what = match (differs(ours, theirs), differs(theirs, ours)) {
            (Some(step), _) => format!("it has no step `{step}`"),
            (None, Some(step)) => format!("it has a step `{step}`, the coordinator has none"),
            (None, None) => "its steps are listed in another order".to_string(),
        };
        return Err(Failed::Refused(format!(
            "it runs another program: {what}; start the same one everywhere"
        )));
    }
    let theirs = read_settings(&welcome.settings);
    same_settings(worker, &theirs, &shared.configuration)
        .map_err(|error| Failed::Different(Box::new(error)))?;
    Ok(Stream {
        channel,
        outbound,
        inbound,
        limit: welcome.max_message_bytes,
    })
}

fn silent() -> Failed {
    Failed::Later("it is connected but does not answer".to_string())
}

fn refused(status: Status) -> Failed {
    let reason = status.message().to_string();
    match status.code() {
        Code::Unauthenticated | Code::InvalidArgument | Code::Unimplemented => {
            Failed::Refused(reason)
        }
        Code::FailedPrecondition => Failed::Later(reason),
        code => Failed::Later(format!("{code:?}: {reason}")),
    }
}

fn said(order: order::Order) -> Order {
    Order { order: Some(order) }
}

/// Sends closures and takes their results until the stream ends. A closure that is under way then
/// goes back to the queue.
async fn converse(
    shared: &Shared,
    worker: usize,
    mut stream: Stream,
    orders: &mut watch::Receiver<Orders>,
) -> End {
    let mut current = None;
    let end = exchange(shared, worker, &mut stream, orders, &mut current).await;
    if let Some(Current { handed, .. }) = current {
        let reason = match &end {
            End::Lost(reason) => reason,
            End::Finished => "the coordinator ends",
        };
        shared.closure_lost(handed.id, worker, reason);
    }
    if matches!(end, End::Finished) {
        drop(stream.outbound);
        // So that the worker has read it.
        let drained = async { while let Ok(Some(_)) = stream.inbound.message().await {} };
        let _ = tokio::time::timeout(patience(shared, PATIENCE), drained).await;
    }
    end
}

async fn exchange(
    shared: &Shared,
    worker: usize,
    stream: &mut Stream,
    orders: &mut watch::Receiver<Orders>,
    current: &mut Option<Current>,
) -> End {
    let mut watched = Watched::new(shared);
    let raised = shared.options.interruption.raised();
    tokio::pin!(raised);
    loop {
        let ended = tokio::select! {
            () = &mut raised, if watched.hurried.is_none() => {
                watched.hurry();
                Ok(())
            }
            report = stream.inbound.message() => {
                watched.heard = Instant::now();
                heard(shared, worker, stream, current, report)
            }
            handed = shared.take(), if current.is_none() => {
                give(shared, worker, stream, current, handed)
            }
            _ = orders.changed() => {
                let orders = orders.borrow_and_update().clone();
                if let Some(failure) = orders.finish {
                    let finish = order::Order::Finish(finish(shared, failure));
                    let _ = stream.outbound.send(said(finish)).await;
                    Err(End::Finished)
                } else {
                    cancel(shared, stream, current, orders.cancelled_below)
                }
            }
            _ = watched.ticks.tick() => watched.look(shared, worker, stream, current),
        };
        if let Err(end) = ended {
            return end;
        }
    }
}

/// Sends the worker a closure, unless it would not take one so large.
fn give(
    shared: &Shared,
    worker: usize,
    stream: &Stream,
    current: &mut Option<Current>,
    handed: Handed<Arc<Closure>>,
) -> Result<(), End> {
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
        shared.closure_ended(handed.id, closure, Err(error));
        return Ok(());
    }
    let datasets = closure.datasets.iter();
    let execute = Execute {
        closure: handed.id,
        step: closure.step.to_string(),
        arguments: closure.arguments.clone(),
        datasets: datasets
            .map(|(name, generation)| Dataset {
                name: name.clone(),
                generation: *generation,
            })
            .collect(),
    };
    *current = Some(Current {
        handed,
        since: Instant::now(),
    });
    order(stream, order::Order::Execute(execute))
}

fn order(stream: &Stream, order: order::Order) -> Result<(), End> {
    let sent = stream.outbound.try_send(said(order));
    sent.map_err(|_| End::Lost("it does not take what is sent".to_string()))
}

/// A call surfaces an error: the closure is to stop. If it was given up already, so is the stream;
/// the worker is used again when its step has ended.
fn cancel(
    shared: &Shared,
    stream: &Stream,
    current: &Option<Current>,
    below: u64,
) -> Result<(), End> {
    let handed = match current {
        Some(Current { handed, .. }) if handed.id < below => handed,
        _ => return Ok(()),
    };
    if shared.is_wanted(handed.id) {
        let closure = handed.id;
        return order(stream, order::Order::Cancel(Cancel { closure }));
    }
    Err(End::Lost(
        "its step did not stop when it was cancelled".to_string(),
    ))
}

/// Why a stream ended: because of its connection, or else in these words.
fn why(channel: &Channel, otherwise: &str) -> String {
    channel.closed().unwrap_or_else(|| otherwise.to_string())
}

/// Something came from the worker, or nothing will any more.
fn heard(
    shared: &Shared,
    worker: usize,
    stream: &Stream,
    current: &mut Option<Current>,
    report: Result<Option<Report>, Status>,
) -> Result<(), End> {
    let channel = &stream.channel;
    let report = match report {
        Ok(Some(Report { report })) => report,
        // A stream ends well only if the worker ends, or its connection.
        Ok(None) => return Err(End::Lost(why(channel, "its process ended"))),
        Err(status) => return Err(End::Lost(why(channel, status.message()))),
    };
    match report {
        Some(report::Report::Outcome(outcome)) => ended(shared, worker, current, outcome),
        Some(report::Report::Pong(_)) => Ok(()),
        Some(report::Report::Ask(_)) => {
            if stream.outbound.capacity() > ORDERS / 2 {
                order(stream, order::Order::Ping(Ping::default()))?;
            }
            Ok(())
        }
        Some(report::Report::Welcome(_)) | None => {
            Err(End::Lost("it sent what is not understood".to_string()))
        }
    }
}

/// A closure has ended on the worker.
fn ended(
    shared: &Shared,
    worker: usize,
    current: &mut Option<Current>,
    outcome: Outcome,
) -> Result<(), End> {
    let closure = outcome.closure;
    let Some(Current { handed, .. }) = current.take_if(|it| it.handed.id == closure) else {
        return Err(End::Lost(format!(
            "it reports closure {closure}, which it does not have"
        )));
    };
    let result = match outcome.outcome {
        Some(outcome::Outcome::Value(value)) => Ok(value),
        Some(outcome::Outcome::Failure(failed)) => match failure::decode(&failed) {
            PsError::Cancelled => Err(PsError::Cancelled),
            source => Err(PsError::Closure {
                closure,
                step: handed.payload.step.to_string(),
                worker,
                source: Arc::new(source),
            }),
        },
        None => {
            return Err(End::Lost(
                "it reports a closure without an outcome".to_string(),
            ));
        }
    };
    shared.closure_ended(closure, &handed.payload, result);
    Ok(())
}

/// Whether the worker gives signs of life, and its step comes to an end.
struct Watched {
    ticks: tokio::time::Interval,
    heard: Instant,
    pings: u64,
    /// Since when there is little time.
    hurried: Option<Instant>,
}

impl Watched {
    fn new(shared: &Shared) -> Self {
        // Not zero, which an interval refuses.
        let every = shared
            .options
            .keepalive_interval
            .max(Duration::from_millis(1));
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        Self {
            ticks,
            heard: Instant::now(),
            pings: 0,
            hurried: None,
        }
    }

    /// The coordinator was told to end: what a worker still does is waited for, but not one that
    /// gives no sign of life.
    fn hurry(&mut self) {
        self.hurried = Some(Instant::now());
        self.ticks = tokio::time::interval(LOOK);
    }

    fn is_silent(&self, shared: &Shared) -> bool {
        let options = &shared.options;
        let limit = options.keepalive_interval + options.keepalive_timeout;
        let hurried = self.hurried.map(|since| self.heard.max(since).elapsed());
        self.heard.elapsed() > limit || hurried.is_some_and(|silence| silence > SILENT_AFTER)
    }

    fn look(
        &mut self,
        shared: &Shared,
        worker: usize,
        stream: &Stream,
        current: &mut Option<Current>,
    ) -> Result<(), End> {
        let options = &shared.options;
        let silence = self.heard.elapsed();
        if self.is_silent(shared) {
            return Err(End::Lost(format!("it has been silent for {silence:.1?}")));
        }
        let too_long = |it: &mut Current| it.since.elapsed() > options.step_timeout;
        if let Some(Current { handed, .. }) = current.take_if(too_long) {
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
            shared.closure_ended(handed.id, &handed.payload, Err(error));
            return Err(End::Lost("its step ran too long".to_string()));
        }
        self.pings += 1;
        if stream.outbound.capacity() > ORDERS / 2 {
            let number = self.pings;
            let _ = stream
                .outbound
                .try_send(said(order::Order::Ping(Ping { number })));
        }
        Ok(())
    }
}
