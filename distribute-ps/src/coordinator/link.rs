//! The connection to one worker, kept for as long as the coordinator lives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use distribute_net::compute_clock::ComputeInstant;
use hyper::body::Incoming;
use serde::Serialize;
use serde_bytes::ByteBuf;
use tokio::sync::{mpsc, watch};

use super::dial::{HANDSHAKE_TIMEOUT, dial};
use super::queue::TakenClosure;
use super::scheduler::{Closure, Scheduler, StopSignals, WorkerStatus};
use super::server_notice::LostClosure;
use crate::error::PsError;
use crate::rpc::clock::within;
use crate::rpc::message::{Outgoing, ReadError, Reader, framed};
use crate::rpc::{Channel, ConnectError, POLL_INTERVAL};
use crate::worker::MESSAGE_OVERHEAD_BYTES;
use crate::worker::messages::{Attach, Execute, Order, Report};
use crate::worker::settings::same_settings;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// The pause before a worker that cannot be used is looked at again.
const PAUSE_REFUSED: Duration = Duration::from_secs(2);
/// How long a worker without a stream has to hear of the coordinator's end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the end may take when the coordinator was told to end.
const INTERRUPTED_FINISH_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a worker has to say whether it reaches the servers before it is asked once more.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// How many orders may wait to be sent.
const ORDER_QUEUE: usize = 16;

/// How a stream ended.
#[derive(Debug)]
enum StreamEnd {
    Finished,
    Lost(String),
}

/// A stream that the worker has answered.
struct Link<'a> {
    scheduler: &'a Scheduler,
    worker: usize,
    /// Kept, because the connection ends with its last clone; it also knows why it ended.
    channel: Channel,
    outbound: mpsc::Sender<Bytes>,
    inbound: Reader<Incoming>,
    /// The most bytes of arguments that the worker takes.
    limit: usize,
    current: Option<CurrentClosure>,
    /// Set while the worker does not reach a server that the coordinator reaches: when it is asked
    /// again whether it does.
    apart: Option<NextCheck>,
}

/// The closure that the worker has.
struct CurrentClosure {
    handed: TakenClosure<Arc<Closure>>,
    since: ComputeInstant,
}

/// When a worker is asked again: so long after a moment, by the scheduler's clock.
struct NextCheck {
    since: ComputeInstant,
    pause: Duration,
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
            Ok(link) => {
                let begun = Instant::now();
                scheduler.set_status(worker, WorkerStatus::Connected);
                match link.serve(&mut stop_signals).await {
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
            Err(ConnectError::Refused(reason)) => {
                scheduler.set_status(worker, WorkerStatus::Refused(reason));
                PAUSE_REFUSED
            }
            Err(ConnectError::Unavailable(reason)) => {
                scheduler.set_status(worker, WorkerStatus::Absent(reason));
                pause = (pause * 3 / 2).min(PAUSE_MAX);
                pause
            }
        };
        let _ = tokio::time::timeout(wait, finished(&mut stop_signals)).await;
    }
    let failure = stop_signals.borrow().finish.clone().unwrap_or_default();
    let told = send_end(&scheduler, worker, failure);
    let limit = end_timeout(&scheduler, FINISH_TIMEOUT);
    if within(&scheduler.clock, limit, told).await != Some(true) {
        tracing::debug!(worker, "the worker was not told that the job has ended");
    }
}

/// How long the end may take: not long when the coordinator was told to end.
fn end_timeout(scheduler: &Scheduler, otherwise: Duration) -> Duration {
    if scheduler.options.interruption.is_raised() {
        INTERRUPTED_FINISH_TIMEOUT
    } else {
        otherwise
    }
}

/// Tells a worker without a stream that the job has ended: one that is still busy with a step, or
/// that was just started again. Whether it has heard of it.
async fn send_end(scheduler: &Scheduler, worker: usize, failure: String) -> bool {
    let Ok(mut channel) = dial(scheduler, worker).await else {
        return false;
    };
    let finish = Outgoing::new(&finish(scheduler, failure), Vec::new());
    let Ok(mut answer) = channel.call(finish).await else {
        return false;
    };
    matches!(answer.message::<Report>().await, Ok(None))
}

fn finish(scheduler: &Scheduler, failure: String) -> Order {
    let run = scheduler.run;
    Order::Finish { failure, run }
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

async fn attach(scheduler: &Scheduler, worker: usize) -> Result<Link<'_>, ConnectError> {
    let mut channel = dial(scheduler, worker).await?;
    let (outbound, receiver) = mpsc::channel(ORDER_QUEUE);
    let attach = Order::<ByteBuf>::Attach(Attach {
        run: scheduler.run,
        worker,
        workers: scheduler.addresses.len(),
        parameter_servers: scheduler.parameter_servers.clone(),
        max_message_bytes: scheduler.options.max_message_bytes,
        configuration: scheduler.configuration.clone(),
    });
    // The queue is new: there is room.
    let _ = outbound.try_send(framed(&attach).freeze());
    let limit = scheduler.options.max_message_bytes;
    let attaching = async {
        let answer = channel.call(Outgoing::stream(receiver)).await?;
        let mut inbound = answer.limited(limit.saturating_add(MESSAGE_OVERHEAD_BYTES));
        let first: Report = inbound.header().await?;
        Ok((inbound, first))
    };
    let attached = within(&scheduler.clock, HANDSHAKE_TIMEOUT, attaching).await;
    let silent = || later("it is connected but does not answer");
    let (inbound, first) = attached
        .ok_or_else(silent)?
        .map_err(|error: ReadError| later(error.to_string()))?;
    let welcome = match first {
        Report::Welcome(welcome) => welcome,
        Report::Refused(refused) => return Err(refused),
        Report::Outcome { .. } | Report::Servers(_) => {
            return Err(later("its first message is no Welcome"));
        }
    };
    if welcome.steps != scheduler.steps {
        let differs = |a: &[String], b: &[String]| a.iter().find(|step| !b.contains(step)).cloned();
        let (theirs, ours) = (&welcome.steps, &scheduler.steps);
        let what = match (differs(ours, theirs), differs(theirs, ours)) {
            (Some(step), _) => format!("it has no step `{step}`"),
            (None, Some(step)) => format!("it has a step `{step}`, the coordinator has none"),
            (None, None) => "its steps are listed in another order".to_string(),
        };
        let what = format!("it runs another program: {what}; start the same one everywhere");
        return Err(ConnectError::Refused(what));
    }
    if let Err(error) = same_settings(worker, &welcome.configuration, &scheduler.configuration) {
        let reason = error.to_string();
        // Before the status, which would tell it as one of another job's processes.
        scheduler.fail(error.into());
        return Err(ConnectError::Refused(reason));
    }
    Ok(Link {
        scheduler,
        worker,
        channel,
        outbound,
        inbound,
        limit: welcome.max_message_bytes,
        current: None,
        apart: None,
    })
}

fn later(reason: impl Into<String>) -> ConnectError {
    ConnectError::Unavailable(reason.into())
}

impl Link<'_> {
    /// Sends closures and takes their results until the stream ends. A closure that is under way
    /// then goes back to the queue.
    async fn serve(mut self, stop_signals: &mut watch::Receiver<StopSignals>) -> StreamEnd {
        let end = self.exchange(stop_signals).await;
        if let Some(CurrentClosure { handed, .. }) = &self.current {
            let reason = match &end {
                StreamEnd::Lost(reason) => reason,
                StreamEnd::Finished => "the coordinator ends",
            };
            self.scheduler.closure_lost(LostClosure {
                closure: handed.id,
                worker: self.worker,
                reason: reason.to_string(),
                accusation: None,
            });
        }
        if matches!(end, StreamEnd::Finished) {
            drop(self.outbound);
            // Until the worker has read the message.
            let drained =
                async { while let Ok(Some(_)) = self.inbound.message::<Report>().await {} };
            let limit = end_timeout(self.scheduler, HANDSHAKE_TIMEOUT);
            within(&self.scheduler.clock, limit, drained).await;
        }
        end
    }

    async fn exchange(&mut self, stop_signals: &mut watch::Receiver<StopSignals>) -> StreamEnd {
        let mut looks = tokio::time::interval(POLL_INTERVAL);
        loop {
            let ended = tokio::select! {
                report = self.inbound.message() => self.handle_report(report),
                handed = self.scheduler.take(), if self.is_free() => self.send_closure(handed),
                _ = stop_signals.changed() => {
                    let stop_signals = stop_signals.borrow_and_update().clone();
                    if let Some(failure) = stop_signals.finish {
                        let finish = framed(&finish(self.scheduler, failure)).freeze();
                        let _ = self.outbound.send(finish).await;
                        Err(StreamEnd::Finished)
                    } else {
                        self.cancel(stop_signals.cancelled_below)
                    }
                }
                _ = looks.tick() => self.look(),
            };
            if let Err(end) = ended {
                return end;
            }
        }
    }

    /// Whether the worker takes a closure.
    fn is_free(&self) -> bool {
        self.current.is_none() && self.apart.is_none()
    }

    /// A closure that the worker had has ended.
    fn ended(&mut self, handed: &TakenClosure<Arc<Closure>>, outcome: Result<Bytes, PsError>) {
        let outcome = outcome.map_err(|error| match error {
            PsError::Cancelled => PsError::Cancelled,
            source => PsError::Closure {
                closure: handed.id,
                step: handed.payload.step.to_string(),
                worker: self.worker,
                source: Arc::new(source),
            },
        });
        match outcome {
            // One that answers pings and no calls may answer others: the path of this worker loses
            // what is large, or the server was busy for a while.
            Err(error) if accuses(error.root_cause()) => self.accuse(handed.id, error),
            outcome => {
                let closure = &handed.payload;
                self.scheduler.closure_ended(handed.id, closure, outcome);
            }
        }
    }

    /// The worker says that it does not reach a server, or gets no answer of it. Whether that is
    /// lost the coordinator finds out by asking it; if it answers, the closure runs on another
    /// worker, and this one gets the next when it reaches all servers again.
    fn accuse(&mut self, closure: u64, error: PsError) {
        self.set_apart(error.root_cause(), Duration::ZERO);
        let reason = error.root_cause().to_string();
        self.scheduler.closure_lost(LostClosure {
            closure,
            worker: self.worker,
            reason,
            accusation: Some(error),
        });
    }

    /// The worker does not reach a server; it is asked again after a pause.
    fn set_apart(&mut self, error: &PsError, pause: Duration) {
        let (worker, is_news) = (self.worker, self.apart.is_none());
        if is_news {
            tracing::warn!(worker, %error, "the worker gets nothing to do until it reaches it");
        }
        let since = self.scheduler.clock.now();
        self.apart = Some(NextCheck { since, pause });
        let status = WorkerStatus::Absent(error.to_string());
        self.scheduler.set_status(worker, status);
    }

    /// Asks a worker whether it reaches the servers again, when it is time.
    fn ask_about_servers(&mut self) -> Result<(), StreamEnd> {
        let clock = &self.scheduler.clock;
        let is_time = |next: &&mut NextCheck| clock.elapsed(next.since) >= next.pause;
        let Some(next) = self.apart.as_mut().filter(is_time) else {
            return Ok(());
        };
        *next = NextCheck {
            since: clock.now(),
            pause: CHECK_TIMEOUT,
        };
        self.order(&Order::<ByteBuf>::CheckServers)
    }

    /// The worker has asked all servers.
    fn servers_checked(&mut self, outcome: Result<(), PsError>) {
        match outcome {
            Ok(()) => {
                let worker = self.worker;
                tracing::info!(worker, "the worker reaches all parameter servers again");
                self.apart = None;
                self.scheduler.set_status(worker, WorkerStatus::Connected);
            }
            Err(error) => self.set_apart(&error, PAUSE_MAX),
        }
    }

    /// Sends the worker a closure, unless it would not take one so large.
    fn send_closure(&mut self, handed: TakenClosure<Arc<Closure>>) -> Result<(), StreamEnd> {
        let closure = &handed.payload;
        let bytes = closure.arguments.len();
        if bytes > self.limit {
            let error = PsError::invalid(format!(
                "the arguments have {bytes} bytes, the worker takes {} at most; raise \
                 `WorkerOptions::max_message_bytes`",
                self.limit
            ));
            self.ended(&handed, Err(error));
            return Ok(());
        }
        let execute = self.order(&Order::Execute(Execute {
            closure: handed.id,
            step: closure.step.to_string(),
            arguments: serde_bytes::Bytes::new(&closure.arguments),
            datasets: closure.datasets.clone(),
        }));
        self.current = Some(CurrentClosure {
            handed,
            since: self.scheduler.clock.now(),
        });
        execute
    }

    fn order(&self, order: &Order<impl Serialize>) -> Result<(), StreamEnd> {
        let sent = self.outbound.try_send(framed(order).freeze());
        sent.map_err(|_| lost("it does not take what is sent"))
    }

    /// A call surfaces an error: the closure is to stop. If it was given up already, so is the
    /// stream; the worker is used again when its step has ended.
    fn cancel(&self, below: u64) -> Result<(), StreamEnd> {
        match &self.current {
            Some(CurrentClosure { handed, .. }) if handed.id < below => {
                if self.scheduler.is_wanted(handed.id) {
                    self.order(&Order::<ByteBuf>::Cancel(handed.id))
                } else {
                    Err(lost("its step did not stop when it was cancelled"))
                }
            }
            _ => Ok(()),
        }
    }

    /// Something came from the worker, or nothing will any more.
    fn handle_report(
        &mut self,
        report: Result<Option<Report>, ReadError>,
    ) -> Result<(), StreamEnd> {
        let otherwise = match report {
            Ok(Some(Report::Outcome { closure, outcome })) => {
                let is_it = |it: &mut CurrentClosure| it.handed.id == closure;
                let Some(CurrentClosure { handed, .. }) = self.current.take_if(is_it) else {
                    let what = format!("it reports closure {closure}, which it does not have");
                    return Err(lost(what));
                };
                self.ended(&handed, outcome.map(|value| value.into_vec().into()));
                return Ok(());
            }
            Ok(Some(Report::Servers(outcome))) => {
                // Of one that was asked twice the first answer may have been enough.
                if self.apart.is_some() {
                    self.servers_checked(outcome);
                }
                return Ok(());
            }
            Ok(Some(Report::Refused(
                ConnectError::Refused(reason) | ConnectError::Unavailable(reason),
            ))) => reason,
            Ok(Some(Report::Welcome(_))) => "it sent what is not understood".to_string(),
            // A stream ends well only if the worker ends, or its connection.
            Ok(None) => "its process ended".to_string(),
            Err(error) => error.to_string(),
        };
        let end = self.channel.closed();
        Err(lost(end.map_or(otherwise, |end| end.to_string())))
    }

    /// Whether the worker gives signs of life, where there is little time, and its step comes to an
    /// end. Otherwise its connection ends when it is silent for too long.
    fn look(&mut self) -> Result<(), StreamEnd> {
        self.ask_about_servers()?;
        let options = &self.scheduler.options;
        let silence = self.channel.silence();
        if let Some(silence) = silence.filter(|_| options.interruption.is_raised()) {
            return Err(lost(format!("it has been silent for {silence:.1?}")));
        }
        let clock = &self.scheduler.clock;
        let too_long = |it: &mut CurrentClosure| clock.elapsed(it.since) > options.step_timeout;
        let Some(CurrentClosure { handed, .. }) = self.current.take_if(too_long) else {
            return Ok(());
        };
        let error = PsError::Deadline {
            op: "step",
            waited: options.step_timeout,
            reason: "it still runs; raise `CoordinatorOptions::step_timeout` if it should"
                .to_string(),
        };
        self.ended(&handed, Err(error));
        Err(lost("its step ran too long"))
    }
}

/// Whether this error of a closure says nothing of its work, but of the way to a server: asking the
/// server, and another worker, shows more.
fn accuses(error: &PsError) -> bool {
    matches!(error, PsError::Unavailable { .. } | PsError::Timeout { .. })
}

fn lost(reason: impl Into<String>) -> StreamEnd {
    StreamEnd::Lost(reason.into())
}
