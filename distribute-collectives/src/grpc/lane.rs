//! One HTTP/2 connection with one stream: messages in both directions between two ranks.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};

use crate::grpc::frames::{Assembler, Message};
use crate::grpc::lent_bytes::{self, LentBytes};
use crate::grpc::pool::{Pool, Segment};
use crate::grpc::socket::SocketState;
use crate::grpc::stall::Progress;
use crate::grpc::stream::Stream;
use crate::wire::OVERHEAD_BYTES;

/// Payload bytes of a segment that fills one HTTP/2 frame. A little below 128 KiB, so that with all
/// that stands in front of it it fills two of the largest packets (65483 bytes of payload on the
/// loopback interface) instead of two and a tiny third one.
pub(super) const SEGMENT_BYTES: usize = 128 * 1024 - 256;

/// The same between two ranks, for operations over at most [`PAIR_BYTES`]. They have one neighbour,
/// so little is gained by passing small segments on early, and fewer messages cost less. What a
/// rank sends of 1 MiB in one phase is three of them, without a rest: two in a row stay in 512 KiB
/// of cache. What does not stay in the caches is better sent in pieces that do.
pub(super) const PAIR_SEGMENT_BYTES: usize = (512 * 1024_usize).div_ceil(3).next_multiple_of(64);
pub(super) const PAIR_BYTES: usize = 4 << 20;

/// The largest HTTP/2 frame that is accepted: one segment with all that stands in front of it.
pub(super) const FRAME_BYTES: u32 = (PAIR_SEGMENT_BYTES + OVERHEAD_BYTES) as u32;

pub(super) const STREAM_WINDOW_BYTES: u32 = 32 << 20;
pub(super) const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;

/// Bytes of HTTP headers that a peer may send.
pub(super) const HEADER_LIST_BYTES: u32 = 16 << 10;

/// Messages that were not asked for yet and stay where they were received. Later ones are copied.
const PIECES_MAX: usize = 32;

/// Messages that were not asked for yet. The smallest ones are more than their bytes on the wire; a
/// correct rank never has this many on their way (see `QUEUED_BYTES`).
const MESSAGES_MAX: usize = 64 << 10;

/// The connection, by the end that this rank is.
pub(super) enum Driver {
    Client(h2::client::Connection<Stream, Segment>),
    Server(h2::server::Connection<Stream, Segment>),
}

impl Driver {
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        match self {
            Driver::Client(connection) => Pin::new(connection).poll(context),
            Driver::Server(connection) => connection.poll_closed(context),
        }
    }
}

/// Why nothing more comes from a peer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    /// The connection has gone.
    Lost(String),
    /// The peer sent what makes no sense.
    Protocol(String),
}

impl End {
    fn of(error: &h2::Error, socket: &SocketState) -> Self {
        if let Some(reason) = socket.write_error() {
            return End::Lost(format!("its connection broke: {reason}"));
        }
        match error.reason() {
            Some(Reason::NO_ERROR | Reason::CANCEL) => {
                End::Lost("it closed the connection".to_string())
            }
            Some(reason) if error.is_remote() => {
                End::Protocol(format!("it refused what this rank sent: {reason}"))
            }
            Some(reason) => End::Protocol(format!("not HTTP/2 as agreed: {reason}")),
            None => End::Lost(format!("its connection broke: {error}")),
        }
    }
}

/// Messages in the order in which they came: of collective operations, of point-to-point calls.
pub(super) type Queues = [VecDeque<Message>; 2];

/// How far both ranks have agreed to go on without a lane. Each ends its half of the stream with
/// [`RETIRED`], after all that it has sent there; what comes later needs another lane. The client
/// begins, and the server answers as soon as it has read that.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Retirement {
    No,
    /// This client sends nothing more, the server may.
    Asked,
    /// Neither end sends anything more, and all that was sent has come.
    Agreed,
}

/// The trailer of a half that ends without that its rank leaves the group.
const RETIRED: &str = "lane-retired";

/// One connection to a peer.
pub(super) struct Lane {
    pub(super) socket: Arc<SocketState>,
    driver: Driver,
    send: SendStream<Segment>,
    receive: RecvStream,
    assembler: Assembler,
    /// Messages that were not asked for yet: of collective operations, of point-to-point calls.
    queues: Queues,
    queued_bytes: usize,
    /// Bytes of segments that HTTP/2 has not written yet.
    outstanding: Arc<AtomicUsize>,
    /// The lent of the last call of [`send_lent`](Self::send_lent).
    lent: Option<Arc<LentBytes>>,
    progress: Progress,
    /// Whether a message was sent, or has come.
    is_used: bool,
    /// Whether this rank has said that it leaves the group.
    is_finished: bool,
    retirement: Retirement,
    ended: Option<End>,
}

impl Lane {
    /// `outstanding` counts the bytes of segments to the rank.
    pub(super) fn new(
        socket: Arc<SocketState>,
        driver: Driver,
        (send, receive): (SendStream<Segment>, RecvStream),
        max_message_bytes: usize,
        outstanding: Arc<AtomicUsize>,
    ) -> Self {
        Lane {
            socket,
            driver,
            send,
            receive,
            assembler: Assembler::new(max_message_bytes),
            queues: Queues::default(),
            queued_bytes: 0,
            outstanding,
            lent: None,
            progress: Progress::default(),
            is_used: false,
            is_finished: false,
            retirement: Retirement::No,
            ended: None,
        }
    }

    /// Reads at most `frames` DATA frames, writes what can be written. Returns whether bytes moved.
    pub(super) fn drive(&mut self, frames: usize) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let mut context = Context::from_waker(Waker::noop());
        let before = self.socket.moved();
        self.socket.allow_frames(frames);
        let connection = self.driver.poll(&mut context);
        let may_come = self.retirement != Retirement::Agreed;
        let taken = if may_come && (frames > 0 || connection.is_ready()) {
            self.take_pieces(&mut context)
        } else {
            Ok(())
        };
        self.ended = taken.err().or_else(|| match connection {
            Poll::Pending => None,
            Poll::Ready(Ok(())) => Some(End::Lost("it closed the connection".to_string())),
            Poll::Ready(Err(error)) => Some(End::of(&error, &self.socket)),
        });
        if self.ended.is_some() {
            // Ends the connection at once; what was received stays.
            self.socket.shut_down();
        }
        self.socket.moved() != before
    }

    /// Takes what has arrived; an error when nothing more comes.
    fn take_pieces(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        while let Poll::Ready(piece) = self.receive.poll_data(context) {
            let Some(piece) = piece else {
                return self.take_end(context);
            };
            self.take_piece(piece.map_err(|error| End::of(&error, &self.socket))?)?;
        }
        Ok(())
    }

    /// Takes the end of what the peer sends: it leaves the group, or only this lane.
    fn take_end(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        let trailers = match self.receive.poll_trailers(context) {
            Poll::Pending => return Ok(()),
            Poll::Ready(trailers) => trailers.map_err(|error| End::of(&error, &self.socket))?,
        };
        if !trailers.is_some_and(|trailers| trailers.contains_key(RETIRED)) {
            return Err(End::Lost("it left the group".to_string()));
        }
        match (&self.driver, self.retirement) {
            (Driver::Server(_), Retirement::No) => self.end_stream(true),
            (Driver::Client(_), Retirement::Asked) => {}
            _ => {
                let what = "it ended a lane out of turn".to_string();
                return Err(End::Protocol(what));
            }
        }
        self.retirement = Retirement::Agreed;
        // What this end has said of it goes out; nothing is read.
        self.socket.allow_frames(0);
        let _ = self.driver.poll(context);
        Ok(())
    }

    fn take_piece(&mut self, mut piece: Bytes) -> Result<(), End> {
        while !piece.is_empty() {
            let found = self
                .assembler
                .next(&mut piece)
                .map_err(|error| End::Protocol(error.to_string()))?;
            if let Some(mut message) = found {
                let queued: usize = self.queues.iter().map(VecDeque::len).sum();
                if queued >= MESSAGES_MAX {
                    let what = format!("{queued} messages that this rank does not expect");
                    return Err(End::Protocol(what));
                }
                if queued >= PIECES_MAX {
                    message.detach();
                }
                self.is_used = true;
                self.queued_bytes += message.wire_bytes();
                let kind = message.header.operation.kind;
                self.queues[usize::from(kind.is_point_to_point())].push_back(message);
            }
        }
        Ok(())
    }

    /// Hands a message to HTTP/2 and writes what the kernel takes; [`drive`](Self::drive) writes
    /// the rest.
    pub(super) fn send(&mut self, segment: Segment) -> Result<(), End> {
        self.is_used = true;
        let sent = self
            .send
            .send_data(segment, false)
            .map_err(|error| End::of(&error, &self.socket));
        self.drive(0);
        sent.and_then(|()| self.broken().map_or(Ok(()), Err))
    }

    /// The same for a message that ends with bytes of the caller: what the kernel takes at once is
    /// not copied before.
    pub(super) fn send_lent(&mut self, segment: Segment, bytes: &[u8]) -> Result<(), End> {
        let mut kept = self.lent.take().unwrap_or_default();
        let sent = lent_bytes::lend(&mut kept, bytes, |lent| {
            self.send(segment.followed_by(lent))
        });
        self.lent = Some(kept);
        sent
    }

    /// The oldest message that was not asked for yet.
    pub(super) fn next_message(&mut self, point_to_point: bool) -> Option<Message> {
        self.queues[usize::from(point_to_point)].pop_front()
    }

    /// Takes a message back whose payload is not needed any more: its sender may send as much.
    pub(super) fn consumed(&mut self, message: Message) {
        let bytes = message.wire_bytes();
        self.queued_bytes -= bytes;
        self.assembler.recycle(message);
        // Fails only when the connection has ended, which the next drive tells.
        let _ = self.receive.flow_control().release_capacity(bytes);
    }

    /// Says that nothing more will be sent, as gRPC does it: the client ends its stream, the
    /// server adds a status.
    pub(super) fn finish(&mut self, pool: &Arc<Pool>) {
        self.is_finished = true;
        match self.driver {
            _ if self.retirement != Retirement::No => {}
            Driver::Client(_) => {
                let nothing = pool.take(0, &self.outstanding);
                // Fails only when the stream has ended already.
                let _ = self.send.send_data(nothing, true);
            }
            Driver::Server(_) => self.end_stream(false),
        }
    }

    fn end_stream(&mut self, retires: bool) {
        let mut trailers = http::HeaderMap::new();
        if matches!(self.driver, Driver::Server(_)) {
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        }
        if retires {
            trailers.insert(RETIRED, http::HeaderValue::from_static("1"));
        }
        // Fails only when the stream has ended already.
        let _ = self.send.send_trailers(trailers);
    }

    /// Asks the server to go on without this lane.
    pub(super) fn retire(&mut self) {
        self.retirement = Retirement::Asked;
        self.end_stream(true);
        self.drive(0);
    }

    /// Whether this end is the one that may [`retire`](Self::retire) the lane, nothing of it is on
    /// its way and nothing is left to take.
    pub(super) fn may_retire(&self) -> bool {
        matches!(self.driver, Driver::Client(_))
            && self.takes_segments()
            && self.ended.is_none()
            && !self.has_pending_output()
            && self.queued_bytes == 0
    }

    /// Whether what is sent to the rank goes over this lane.
    pub(super) fn takes_segments(&self) -> bool {
        self.retirement == Retirement::No
    }

    /// Whether nothing more comes over this lane, by agreement.
    pub(super) fn is_retired(&self) -> bool {
        self.retirement == Retirement::Agreed
    }

    /// Whether the connection is not needed any more: the server waits for the client to close it,
    /// so that nothing is lost that is still on its way.
    pub(super) fn is_over(&self) -> bool {
        let is_client = matches!(self.driver, Driver::Client(_));
        self.is_retired() && (is_client || self.ended.is_some())
    }

    /// Whether this rank has said that nothing more will be sent.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether any message was sent or has come.
    pub(super) fn is_used(&self) -> bool {
        self.is_used
    }

    /// The messages that were not asked for, when the lane is not needed any more.
    pub(super) fn into_queues(self) -> Queues {
        self.queues
    }

    pub(super) fn ended(&self) -> Option<&End> {
        self.ended.as_ref()
    }

    /// Why nothing more passes, unless that was agreed on.
    pub(super) fn broken(&self) -> Option<End> {
        if self.is_retired() {
            return None;
        }
        let broken = |reason: &str| End::Lost(format!("its connection broke: {reason}"));
        self.ended
            .clone()
            .or_else(|| self.socket.write_error().map(broken))
    }

    pub(super) fn outstanding_bytes(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn outstanding(&self) -> &Arc<AtomicUsize> {
        &self.outstanding
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// One look at what is on its way: how many bytes, and for how long none has arrived.
    pub(super) fn standing_still(&mut self, now: Instant) -> Option<(usize, Duration)> {
        let sent = self.socket.sent().filter(|_| self.ended.is_none())?;
        Some((sent.in_flight, self.progress.look(now, sent)))
    }

    /// Whether something waits for the peer's kernel or for the peer.
    pub(super) fn has_pending_output(&self) -> bool {
        self.ended.is_none() && (self.outstanding_bytes() > 0 || self.socket.is_write_blocked())
    }

    /// Whether the last drive could have read more.
    pub(super) fn may_read_more(&self) -> bool {
        self.ended.is_none() && self.socket.may_read_more()
    }

    /// Whether the peer's kernel has all that was sent.
    pub(super) fn is_delivered(&self) -> bool {
        self.ended.is_some() || (!self.has_pending_output() && self.socket.is_delivered())
    }
}
