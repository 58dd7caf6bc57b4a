//! gRPC messages whose payload is raw bytes: written from where the bytes lie, read as they come.
//!
//! A call is a stream both ways. The first message is protobuf, the others are pieces of one
//! payload.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use prost::Message;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_service::Service;

use crate::rpc::channel::{Channel, ConnectionEnd};
use crate::rpc::rope::Rope;

/// Bytes before a gRPC message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// The largest piece of a payload that is sent.
pub(crate) const PIECE_BYTES: usize = crate::rpc::FRAME_BYTES as usize;
/// The longest message of a payload.
const MESSAGE_BYTES: usize = 1 << 30;
/// Pieces up to this length are copied together: a frame of its own costs more.
const SMALL_BYTES: usize = 4 << 10;
/// The most bytes that are copied together.
const GATHERED_BYTES: usize = 64 << 10;
/// The largest first message.
pub(crate) const HEADER_BYTES: usize = 16 << 20;
const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

fn prefix(target: &mut BytesMut, length: usize) {
    target.put_u8(0);
    // At most MESSAGE_BYTES, or a header that this process made from less than 4 GiB.
    target.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// The frames of a call's one direction.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    frames: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Outgoing {
    /// A first message, and a payload: large pieces are sent from where they lie.
    pub(crate) fn new(header: &impl Message, payload: Vec<Bytes>) -> Self {
        let length = header.encoded_len();
        let mut gathered = BytesMut::with_capacity(2 * PREFIX_BYTES + length);
        prefix(&mut gathered, length);
        header.encode_raw(&mut gathered);
        let mut frames = VecDeque::new();
        let mut left: usize = payload.iter().map(Bytes::len).sum();
        // Of the message that is being written.
        let mut message = 0;
        for mut bytes in payload {
            while !bytes.is_empty() {
                if message == 0 {
                    message = left.min(MESSAGE_BYTES);
                    prefix(&mut gathered, message);
                }
                let piece = bytes.split_to(bytes.len().min(PIECE_BYTES).min(message));
                left -= piece.len();
                message -= piece.len();
                if piece.len() <= SMALL_BYTES && gathered.len() < GATHERED_BYTES {
                    gathered.extend_from_slice(&piece);
                } else {
                    frames.extend([gathered.split().freeze(), piece]);
                }
            }
        }
        frames.push_back(gathered.freeze());
        frames.retain(|frame| !frame.is_empty());
        Self {
            frames,
            trailers: None,
        }
    }

    /// The answer of a server that did what it was asked for.
    pub(crate) fn into_response(mut self) -> Response<Body> {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        self.trailers = Some(trailers);
        let mut response = Response::new(Body::new(self));
        response.headers_mut().insert("content-type", CONTENT_TYPE);
        response
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.frames.pop_front() {
            Some(bytes) => Some(Frame::data(bytes)),
            None => self.trailers.take().map(Frame::trailers),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.frames.iter().map(|frame| frame.len() as u64).sum())
    }
}

/// Why bytes of a call cannot be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The connection or the call was broken off.
    Broken(ConnectionEnd),
    /// The peer answered with an error.
    Status(Status),
    /// The bytes make no sense or are too many.
    Nonsense(String),
}

/// Reads the messages of a call as they come.
pub(crate) struct Reader<B> {
    body: B,
    /// What has come of the network and was not used.
    rest: Bytes,
    /// Bytes of the message that is being read.
    message: usize,
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
            rest: Bytes::new(),
            message: 0,
            ended: false,
        }
    }

    /// Gets more bytes; `false` at the end of the call, where the status is checked.
    async fn fill(&mut self) -> Result<bool, ReadError> {
        while self.rest.is_empty() && !self.ended {
            let next = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            match next.await {
                None => self.ended = true,
                Some(Err(error)) => return Err(ReadError::Broken(ConnectionEnd::of(&error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => {
                        self.ended = true;
                        frame.trailers_ref().map_or(Ok(()), check_status)?;
                    }
                },
            }
        }
        Ok(!self.rest.is_empty())
    }

    /// The length of the next message; `None` at the end.
    async fn next_length(&mut self) -> Result<Option<usize>, ReadError> {
        if !self.fill().await? {
            return Ok(None);
        }
        let mut head = [0; PREFIX_BYTES];
        for (index, byte) in head.iter_mut().enumerate() {
            if !self.fill().await? {
                let what = format!("the call ends after {index} bytes of a message's prefix");
                return Err(ReadError::Nonsense(what));
            }
            *byte = self.rest.get_u8();
        }
        let [compressed, length @ ..] = head;
        if compressed != 0 {
            return Err(ReadError::Nonsense("a compressed message".to_string()));
        }
        Ok(Some(u32::from_be_bytes(length) as usize))
    }

    /// The next bytes of the current message, at most so many.
    async fn some(&mut self, most: usize) -> Result<Bytes, ReadError> {
        if !self.fill().await? {
            return Err(ReadError::Nonsense(
                "the call ends within a message".to_string(),
            ));
        }
        let count = self.rest.len().min(self.message).min(most);
        self.message -= count;
        Ok(self.rest.split_to(count))
    }

    /// The first message.
    pub(crate) async fn header<M: Message + Default>(&mut self) -> Result<M, ReadError> {
        let Some(length) = self.next_length().await? else {
            return Err(ReadError::Nonsense("the call has no message".to_string()));
        };
        if length > HEADER_BYTES {
            let what = format!("a first message of {length} bytes, more than {HEADER_BYTES}");
            return Err(ReadError::Nonsense(what));
        }
        self.message = length;
        let mut bytes = Vec::with_capacity(length.min(PIECE_BYTES));
        while self.message > 0 {
            bytes.extend_from_slice(&self.some(usize::MAX).await?);
        }
        let decoded = M::decode(&bytes[..]);
        decoded.map_err(|error| ReadError::Nonsense(format!("no protobuf message: {error}")))
    }

    /// Hands on exactly so many bytes of the payload, in pieces.
    pub(crate) async fn payload(
        &mut self,
        count: u64,
        mut use_piece: impl FnMut(Bytes),
    ) -> Result<(), ReadError> {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        while left > 0 {
            while self.message == 0 {
                let Some(length) = self.next_length().await? else {
                    let what = format!("the payload lacks {left} bytes");
                    return Err(ReadError::Nonsense(what));
                };
                self.message = length;
            }
            let piece = self.some(left).await?;
            left -= piece.len();
            use_piece(piece);
        }
        Ok(())
    }

    /// [`payload`](Self::payload) as a rope.
    pub(crate) async fn rope(&mut self, count: u64) -> Result<Rope, ReadError> {
        self.rope_seen(count, |_| {}).await
    }

    /// The same, where somebody looks at each piece when it has just come.
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
        match self.message == 0 && !self.fill().await? {
            true => Ok(()),
            false => Err(ReadError::Nonsense("more bytes than announced".to_string())),
        }
    }
}

fn check_status(headers: &HeaderMap) -> Result<(), ReadError> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(ReadError::Status(status)),
        _ => Ok(()),
    }
}

/// Calls a method; what the server answers is read from the result.
pub(crate) async fn call(
    channel: &mut Channel,
    path: &'static str,
    request: Outgoing,
) -> Result<Reader<Incoming>, ReadError> {
    let broken = |error: hyper::Error| ReadError::Broken(ConnectionEnd::of(&error));
    let request = Request::post(path)
        .header("content-type", CONTENT_TYPE)
        .header("te", "trailers")
        .body(Body::new(request))
        .map_err(|error| ReadError::Nonsense(error.to_string()))?;
    std::future::poll_fn(|context| channel.poll_ready(context))
        .await
        .map_err(broken)?;
    let response = channel.call(request).await.map_err(broken)?;
    if !response.status().is_success() {
        let what = format!("it answers HTTP {}", response.status());
        return Err(ReadError::Nonsense(what));
    }
    check_status(response.headers())?;
    Ok(Reader::new(response.into_body()))
}
