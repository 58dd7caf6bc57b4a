//! Messages in MessagePack, each behind its length, and payloads of raw bytes behind them: written
//! from where the bytes lie, read as they come.
//!
//! They are the bodies of HTTP/2 requests and responses. Raw, because the elements of tensors would
//! be copied into a message and out of it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use distribute_net::compute_clock::{ComputeClock, ComputeInstant};
use http_body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::rpc::clock::within;
use crate::rpc::failure::ConnectionEnd;
use crate::rpc::rope::Rope;
use crate::value;

/// Bytes before a message: its length.
const PREFIX_BYTES: usize = 4;
/// The largest piece of a payload that is sent.
pub(crate) const PIECE_BYTES: usize = crate::rpc::FRAME_BYTES as usize;
/// Pieces up to this length are copied together: a frame of its own costs more.
const SMALL_BYTES: usize = 4 << 10;
/// The most bytes that are copied together.
const GATHERED_BYTES: usize = 64 << 10;
/// The largest message before a payload.
pub(crate) const HEADER_BYTES: usize = 16 << 20;

/// A message as it is sent.
pub(crate) fn framed(message: &impl Serialize) -> BytesMut {
    let mut framed = BytesMut::from(&[0; PREFIX_BYTES][..]);
    // What this crate sends always has a form.
    let _ = rmp_serde::encode::write(&mut (&mut framed).writer(), message);
    // Less than 4 GiB: limits of options keep messages smaller.
    let length = u32::try_from(framed.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    framed[..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    framed
}

/// The bytes of a call's one direction.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    frames: VecDeque<Bytes>,
    /// Where further ones come from.
    more: Option<mpsc::Receiver<Bytes>>,
}

impl Outgoing {
    /// A message, and a payload: large pieces are sent from where they lie.
    pub(crate) fn new(header: &impl Serialize, payload: Vec<Bytes>) -> Self {
        let mut gathered = framed(header);
        let mut frames = VecDeque::new();
        for mut bytes in payload {
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
                if piece.len() <= SMALL_BYTES && gathered.len() < GATHERED_BYTES {
                    gathered.extend_from_slice(&piece);
                } else {
                    frames.extend([gathered.split().freeze(), piece]);
                }
            }
        }
        frames.push_back(gathered.freeze());
        frames.retain(|frame| !frame.is_empty());
        Self { frames, more: None }
    }

    /// Messages that are made while they are sent, as [`framed`] makes them.
    pub(crate) fn stream(more: mpsc::Receiver<Bytes>) -> Self {
        Self {
            frames: VecDeque::new(),
            more: Some(more),
        }
    }

    /// A body of these pieces.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of_pieces(pieces: impl Iterator<Item = Bytes>) -> Self {
        Self {
            frames: pieces.collect(),
            more: None,
        }
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match (self.frames.pop_front(), &mut self.more) {
            (None, Some(more)) => ready!(more.poll_recv(context)),
            (next, _) => next,
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.more.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.more {
            None => SizeHint::with_exact(self.frames.iter().map(|frame| frame.len() as u64).sum()),
            Some(_) => SizeHint::default(),
        }
    }
}

/// Why bytes of a call cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The connection or the call was broken off.
    #[error(transparent)]
    Broken(ConnectionEnd),
    /// The bytes make no sense or are too many.
    #[error("{0}")]
    Nonsense(String),
    /// They do not come.
    #[error("{came} bytes came within {limit:.1?}")]
    Slow {
        /// How many came of those that should.
        came: usize,
        /// The time they had.
        limit: Duration,
    },
}

impl ReadError {
    pub(crate) fn nonsense(what: impl Into<String>) -> Self {
        Self::Nonsense(what.into())
    }
}

/// This many bytes of a payload have to come within the time of a [`Pace`], or what is left of it.
const PACE_BYTES: usize = 1 << 20;

/// How quickly a payload has to come.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// By which the time is measured.
    pub(crate) clock: Arc<ComputeClock>,
    /// For each [`PACE_BYTES`].
    pub(crate) limit: Duration,
}

/// What has come lately.
struct Progress {
    since: ComputeInstant,
    came: usize,
}

/// Reads what a call brings as it comes.
pub(crate) struct Reader<B> {
    body: B,
    /// None: a payload may take its time.
    pace: Option<Pace>,
    /// The longest message.
    message_max: usize,
    /// What has come of the network and was not used.
    rest: Bytes,
    /// What has come of the next message or of its length.
    begun: Vec<u8>,
    /// The length of the next message, when that has come.
    length: Option<usize>,
    ended: bool,
}

impl<B> Reader<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: std::error::Error + 'static,
{
    pub(crate) fn new(body: B) -> Self {
        Self {
            body,
            pace: None,
            message_max: HEADER_BYTES,
            rest: Bytes::new(),
            begun: Vec::new(),
            length: None,
            ended: false,
        }
    }

    /// With messages up to this length.
    pub(crate) fn limited(self, message_max: usize) -> Self {
        Self {
            message_max,
            ..self
        }
    }

    /// Whose payloads have to come at this pace.
    pub(crate) fn at_pace(self, pace: Pace) -> Self {
        let pace = Some(pace);
        Self { pace, ..self }
    }

    /// [`fill`](Self::fill), as long as enough has come lately.
    async fn fill_at_pace(&mut self, progress: &mut Option<Progress>) -> Result<bool, ReadError> {
        let Some(Pace { clock, limit }) = self.pace.clone() else {
            return self.fill().await;
        };
        let progress = progress.get_or_insert_with(|| Progress {
            since: clock.now(),
            came: 0,
        });
        if progress.came >= PACE_BYTES {
            (progress.since, progress.came) = (clock.now(), 0);
        }
        let left = limit.saturating_sub(clock.elapsed(progress.since));
        let came = progress.came;
        let filled = within(&clock, left, self.fill()).await;
        filled.unwrap_or(Err(ReadError::Slow { came, limit }))
    }

    /// Gets more bytes; `false` at the end of the call.
    async fn fill(&mut self) -> Result<bool, ReadError> {
        while self.rest.is_empty() && !self.ended {
            let next = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            match next.await {
                None => self.ended = true,
                Some(Err(error)) => return Err(ReadError::Broken(ConnectionEnd::of(&error))),
                // No peer sends trailers.
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
        Ok(!self.rest.is_empty())
    }

    /// Gathers this many bytes in `begun`; `false` if the call ends before.
    async fn gather(&mut self, count: usize) -> Result<bool, ReadError> {
        while self.begun.len() < count {
            if !self.fill().await? {
                return Ok(false);
            }
            let more = self.rest.len().min(count - self.begun.len());
            self.begun.extend_from_slice(&self.rest.split_to(more));
        }
        Ok(true)
    }

    /// The next message; nothing at the end of the call. Nothing is lost if this is dropped and
    /// called again.
    pub(crate) async fn message<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ReadError> {
        let length = match self.length {
            Some(length) => length,
            None => {
                if !self.gather(PREFIX_BYTES).await? {
                    return if self.begun.is_empty() {
                        Ok(None)
                    } else {
                        Err(ReadError::nonsense("the call ends within a length"))
                    };
                }
                let prefix = self
                    .begun
                    .drain(..)
                    .fold(0, |all, byte| all << 8 | u32::from(byte));
                *self.length.insert(prefix as usize)
            }
        };
        if length > self.message_max {
            return Err(ReadError::Nonsense(format!(
                "a message of {length} bytes, more than {}",
                self.message_max
            )));
        }
        if !self.gather(length).await? {
            return Err(ReadError::nonsense("the call ends within a message"));
        }
        self.length = None;
        let bytes = std::mem::take(&mut self.begun);
        let decoded = value::decode(&bytes).map(Some);
        decoded.map_err(|reason| ReadError::Nonsense(format!("no message: {reason}")))
    }

    /// The first message of a call.
    pub(crate) async fn header<M: DeserializeOwned>(&mut self) -> Result<M, ReadError> {
        let message = self.message().await?;
        message.ok_or_else(|| ReadError::nonsense("the call has no message"))
    }

    /// Hands on exactly this many bytes of the payload, in pieces.
    pub(crate) async fn payload(
        &mut self,
        count: u64,
        mut use_piece: impl FnMut(Bytes),
    ) -> Result<(), ReadError> {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        let mut progress = None;
        while left > 0 {
            if !self.fill_at_pace(&mut progress).await? {
                return Err(ReadError::Nonsense(format!(
                    "the payload lacks {left} bytes"
                )));
            }
            let piece = self.rest.split_to(self.rest.len().min(left));
            left -= piece.len();
            if let Some(Progress { came, .. }) = &mut progress {
                *came += piece.len();
            }
            use_piece(piece);
        }
        Ok(())
    }

    /// [`payload`](Self::payload) as a rope.
    pub(crate) async fn rope(&mut self, count: u64) -> Result<Rope, ReadError> {
        self.rope_seen(count, |_| {}).await
    }

    /// The same, with a check of each piece as soon as it has come.
    pub(crate) async fn rope_seen(
        &mut self,
        count: u64,
        mut look: impl FnMut(&[u8]),
    ) -> Result<Rope, ReadError> {
        let mut rope = Rope::default();
        let take = |piece: Bytes| {
            look(&piece);
            rope.push(piece);
        };
        self.payload(count, take).await?;
        Ok(rope)
    }

    /// Reads to the end, where nothing more may come.
    pub(crate) async fn end(&mut self) -> Result<(), ReadError> {
        if self.fill_at_pace(&mut None).await? {
            Err(ReadError::nonsense("more bytes than announced"))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The whole of a call as it comes: these bytes, in pieces.
    struct Pieces(VecDeque<Bytes>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
        }
    }

    /// These bytes, cut into pieces of these sizes, which are used again and again.
    fn pieces(bytes: &[u8], sizes: &[usize]) -> Pieces {
        let mut rest = Bytes::copy_from_slice(bytes);
        let mut sizes = sizes.iter().cycle();
        let mut pieces = VecDeque::new();
        while !rest.is_empty() {
            let size = sizes.next().map_or(rest.len(), |size| (*size).max(1));
            pieces.push_back(rest.split_to(size.min(rest.len())));
        }
        Pieces(pieces)
    }

    /// What a call says with a first message and a payload of this many bytes.
    fn read(body: Pieces, payload: u64) -> Result<(String, Vec<u8>), String> {
        let mut reader = Reader::new(body);
        let reading = async {
            let header: String = reader.header().await?;
            let rope = reader.rope(payload).await?;
            reader.end().await?;
            Ok((header, rope.read(0, rope.len())))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let read: Result<_, ReadError> = runtime.unwrap().block_on(reading);
        read.map_err(|error| format!("{error:?}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]

        /// Any bytes are an error or a message, the same in whatever pieces they come.
        #[test]
        fn any_bytes_are_an_error_or_a_message(
            lengths in prop::collection::vec(0_u32..40, 0..4),
            filling in prop::collection::vec(any::<u8>(), 0..60),
            sizes in prop::collection::vec(1_usize..9, 0..5),
            payload in 0_u64..40,
        ) {
            let mut bytes = Vec::new();
            for length in lengths {
                bytes.extend(length.to_be_bytes());
                bytes.extend(filling.iter().take(length as usize));
            }
            bytes.extend(&filling);
            let whole = read(pieces(&bytes, &[]), payload);
            prop_assert_eq!(whole, read(pieces(&bytes, &sizes), payload));
        }

        /// What was written is read again.
        #[test]
        fn what_is_written_is_read(
            header in ".{0,40}",
            payload in prop::collection::vec(any::<u8>(), 0..9000),
            sizes in prop::collection::vec(1_usize..4000, 1..5),
        ) {
            let sent = payload.chunks(700).map(Bytes::copy_from_slice).collect();
            let frames = Outgoing::new(&header, sent).frames;
            let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.to_vec()).collect();
            let came = read(pieces(&bytes, &sizes), payload.len() as u64);
            prop_assert_eq!(came, Ok((header, payload)));
        }
    }
}
