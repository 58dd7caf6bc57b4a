//! The thread of a communicator: every call of NCCL is made by it.
//!
//! The thread that calls operations sends it one request at a time and looks, while it waits for
//! the answer, whether the group still holds. Memory of a running operation belongs to the request,
//! so that nothing is freed under a device that cannot be stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::raw::{
    Call, Comm, Context, Event, LibraryError, Nccl, OwnedStream, PinnedMemory, Span, Stream,
    UniqueId,
};
use crate::error::{CollectiveError, Result};

/// How often the caller looks whether the group still holds.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How many grace periods the thread has to come back when it was told to abort: one for the call
/// that it is in, one for the abort, one for the device.
const PATIENCE: u32 = 3;

/// The longest pause between two polls.
const LONGEST_PAUSE: Duration = Duration::from_micros(200);

/// One round of an operation, in this order.
#[derive(Default)]
pub(super) struct Round {
    /// What the device copies from and to.
    pub(super) host: Option<PinnedMemory>,
    /// Streams of the caller that the round waits for.
    pub(super) after: Vec<Stream>,
    /// Filled from the beginning of `host`.
    pub(super) upload: Option<Span>,
    /// One group.
    pub(super) calls: Vec<Call>,
    /// Copied to the beginning of `host`.
    pub(super) download: Option<Span>,
}

/// What the thread is asked to do; it answers by a channel of the request's own.
type Request = Box<dyn FnOnce(&mut ThreadSide) + Send>;

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum RequestError {
    /// What the caller saw while it waited: the group has failed, or a deadline passed.
    #[error("{0}")]
    GroupEnded(CollectiveError),
    /// The deadline of NCCL's part passed.
    #[error("it took longer than {0:.1?}")]
    TimedOut(Duration),
    /// A library failed.
    #[error("{0}")]
    Library(#[from] LibraryError),
    /// The thread has ended, or it does not answer any more.
    #[error("the thread of NCCL does not answer; end this process")]
    Stuck,
}

/// What the two threads share.
#[derive(Default)]
struct ThreadShared {
    /// The thread is to end what runs.
    stop: AtomicBool,
    /// What the device does could not be ended.
    stuck: AtomicBool,
}

/// The caller's side.
pub(super) struct NcclThread {
    requests: Option<SyncSender<Request>>,
    /// Closed when the thread ends; nothing comes by it.
    ended: Receiver<()>,
    shared: Arc<ThreadShared>,
    thread: Option<JoinHandle<()>>,
    grace: Duration,
}

impl NcclThread {
    /// Starts the thread.
    pub(super) fn start(
        context: Arc<Context>,
        nccl: Arc<Nccl>,
        grace: Duration,
    ) -> std::io::Result<Self> {
        let (requests, inbox) = sync_channel::<Request>(1);
        let (living, ended) = sync_channel(0);
        let shared = Arc::new(ThreadShared::default());
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name("distribute-nccl".to_string())
            .spawn(move || {
                let _living = living;
                let outer = context.clone();
                let live = || {
                    let mut side = ThreadSide {
                        context,
                        nccl,
                        shared: own,
                        grace,
                        connected: None,
                    };
                    inbox.iter().for_each(|request| request(&mut side));
                    side.close();
                };
                // Without a current context nothing answers, which the caller finds out.
                let _ = outer.with(live);
            })?;
        Ok(NcclThread {
            requests: Some(requests),
            ended,
            shared,
            thread: Some(thread),
            grace,
        })
    }

    /// Whether something is left that could not be ended.
    pub(super) fn is_stuck(&self) -> bool {
        self.shared.stuck.load(Ordering::Acquire)
    }

    /// Ends NCCL's communicator. Returns within about three times the grace period.
    pub(super) fn abort(&mut self) {
        let _ = self.ask(Duration::ZERO, &|| Ok(()), |side| {
            side.abort();
            Ok(())
        });
    }

    /// Has the thread carry out a request, and waits for its answer: for so long, and while the
    /// group still holds.
    pub(super) fn ask<R: Send + 'static>(
        &mut self,
        timeout: Duration,
        health: &dyn Fn() -> Result<()>,
        request: impl FnOnce(&mut ThreadSide) -> Result<R, RequestError> + Send + 'static,
    ) -> Result<R, RequestError> {
        if self.is_stuck() {
            return Err(RequestError::Stuck);
        }
        self.shared.stop.store(false, Ordering::Release);
        let (outbox, answer) = sync_channel(1);
        let request: Request = Box::new(move |side| {
            // Fails when the caller has given up.
            let _ = outbox.send(request(side));
        });
        match &self.requests {
            Some(inbox) if inbox.send(request).is_ok() => self.wait(&answer, timeout, health),
            _ => Err(RequestError::Stuck),
        }
    }

    /// Waits for the answer. When the group fails or the deadline passes, the thread is told to
    /// abort; when it does not come back from the call that it is in, it is given up.
    fn wait<R>(
        &mut self,
        answer: &Receiver<Result<R, RequestError>>,
        timeout: Duration,
        health: &dyn Fn() -> Result<()>,
    ) -> Result<R, RequestError> {
        let begin = Instant::now();
        let mut lost_at = None;
        let mut stopped: Option<(Instant, RequestError)> = None;
        loop {
            match answer.recv_timeout(POLL_INTERVAL) {
                // The request finished in spite of all.
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(request_error)) => return Err(stopped.map_or(request_error, |(_, why)| why)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.give_up()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match &stopped {
                None => {
                    let elapsed = begin.elapsed();
                    let late = (elapsed > timeout).then_some(RequestError::TimedOut(elapsed));
                    if let Some(why) = self.group_error(health(), &mut lost_at).or(late) {
                        self.shared.stop.store(true, Ordering::Release);
                        stopped = Some((Instant::now(), why));
                    }
                }
                Some((at, why)) if at.elapsed() > PATIENCE * self.grace => {
                    let why = why.clone();
                    self.give_up();
                    return Err(why);
                }
                Some(_) => {}
            }
        }
    }

    /// Whether the group ends what runs. A lost rank may have done its part: the rest of the
    /// operation then comes to its end by itself.
    fn group_error(
        &self,
        health: Result<()>,
        lost_at: &mut Option<Instant>,
    ) -> Option<RequestError> {
        let error = health.err()?;
        let lost = matches!(error, CollectiveError::PeerLost { .. });
        let ends = !lost || lost_at.get_or_insert_with(Instant::now).elapsed() > self.grace;
        ends.then_some(RequestError::GroupEnded(error))
    }

    fn give_up(&mut self) -> RequestError {
        self.shared.stuck.store(true, Ordering::Release);
        RequestError::Stuck
    }
}

impl Drop for NcclThread {
    fn drop(&mut self) {
        self.requests = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        let mut left = 0;
        while let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(2 * self.grace) {
            if left == 1 || self.is_stuck() {
                // The thread is given up; the next process begins anew.
                tracing::error!("NCCL does not end: the thread of its communicator is left behind");
                return;
            }
            left += 1;
            self.shared.stop.store(true, Ordering::Release);
        }
        let _ = thread.join();
    }
}

/// The thread's side.
pub(super) struct ThreadSide {
    pub(super) context: Arc<Context>,
    nccl: Arc<Nccl>,
    shared: Arc<ThreadShared>,
    grace: Duration,
    /// Made by `connect`: where the work is put, a mark there, and the communicator, which are
    /// dropped in this order.
    connected: Option<(OwnedStream, Event, Comm)>,
}

impl ThreadSide {
    pub(super) fn connect(
        &mut self,
        id: &UniqueId,
        rank: usize,
        world_size: usize,
    ) -> Result<(), RequestError> {
        let (stream, event) = (OwnedStream::new(&self.context)?, Event::new(&self.context)?);
        let comm = Comm::begin(&self.nccl, id, rank, world_size)?;
        let (_, _, comm) = &*self.connected.insert((stream, event, comm));
        wait(&self.shared, || comm.state()).inspect_err(|_| comm.abort())
    }

    /// One round, to its end.
    pub(super) fn run(&mut self, mut round: Round) -> Result<Option<PinnedMemory>, RequestError> {
        let Err(request_error) = self.carry_out(&mut round) else {
            return Ok(round.host.take());
        };
        self.abort();
        if !self.drain() {
            // The device may still use it.
            self.shared.stuck.store(true, Ordering::Release);
            std::mem::forget(round);
        }
        Err(request_error)
    }

    /// Puts the round into the stream and waits until that is empty.
    fn carry_out(&self, round: &mut Round) -> Result<(), RequestError> {
        let (stream, event, comm) = self.connected.as_ref().ok_or(RequestError::Stuck)?;
        for other in &round.after {
            event.record_in(*other)?;
            stream.wait(event)?;
        }
        if let (Some(span), Some(host)) = (&round.upload, &round.host) {
            span.upload(host, stream)?;
        }
        if !round.calls.is_empty() {
            comm.issue(&round.calls, stream)?;
            // Until then the calls may not be in the stream yet.
            wait(&self.shared, || comm.state())?;
        }
        if let (Some(span), Some(host)) = (&round.download, &mut round.host) {
            span.download(host, stream)?;
        }
        event.record(stream)?;
        wait(&self.shared, || {
            comm.state()?;
            event.is_reached()
        })
    }

    /// Whether the stream becomes empty after an abort.
    fn drain(&self) -> bool {
        let Some((stream, event, _)) = &self.connected else {
            return true;
        };
        let end = Instant::now() + self.grace;
        event.record(stream).is_ok()
            && poll(|| Instant::now() >= end, || event.is_reached()) == Ok(true)
    }

    fn abort(&self) {
        if let Some((_, _, comm)) = &self.connected {
            comm.abort();
        }
    }

    /// Ends the communicator in an orderly way, if that is possible within the grace period.
    fn close(&mut self) {
        let Some((_, _, comm)) = &self.connected else {
            return;
        };
        let end = Instant::now() + self.grace;
        let is_over = || Instant::now() >= end || self.shared.stop.load(Ordering::Acquire);
        let finalized = comm.finalize();
        match finalized.and_then(|()| poll(is_over, || comm.state())) {
            Ok(true) => comm.destroy(),
            _ => comm.abort(),
        }
    }
}

/// Polls until it is ready, or the thread is to end what runs.
fn wait(
    shared: &ThreadShared,
    ready: impl FnMut() -> Result<bool, LibraryError>,
) -> Result<(), RequestError> {
    if poll(|| shared.stop.load(Ordering::Acquire), ready)? {
        Ok(())
    } else {
        Err(RequestError::Stuck)
    }
}

/// Polls until it is ready, or it is over; whether it is ready. Quickly at first: small operations
/// take some 20 microseconds.
fn poll(
    is_over: impl Fn() -> bool,
    mut ready: impl FnMut() -> Result<bool, LibraryError>,
) -> Result<bool, LibraryError> {
    let mut polls = 0_u32;
    while !ready()? {
        if is_over() {
            return Ok(false);
        }
        polls = polls.saturating_add(1);
        match polls {
            0..64 => std::hint::spin_loop(),
            64..256 => std::thread::yield_now(),
            _ => {
                let pause = Duration::from_micros(u64::from(polls - 255) * 2);
                std::thread::sleep(LONGEST_PAUSE.min(pause));
            }
        }
    }
    Ok(true)
}
