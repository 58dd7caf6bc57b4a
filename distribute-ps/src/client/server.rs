//! The connection to one server: calls with a deadline, repeated once when the connection broke.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use distribute_core::collectives::Interruption;
use hyper::body::Incoming;
use prost::Message;

use crate::client::ClientOptions;
use crate::client::pool::Pool;
use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::rpc::message::{Outgoing, ReadError, Reader, call};
use crate::rpc::{Channel, ConnectError, ConnectionEnd, RpcOptions};
use crate::update::RunId;
use crate::wire_error::from_status;

/// How long a broken connection may take to come back.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// After an interruption: how often a server is asked for a sign of life, and how long it may take.
const POLL_INTERVAL: Duration = Duration::from_millis(150);
const SILENT_AFTER: Duration = Duration::from_millis(800);
/// What every server answers at once, whatever else it does.
const HEALTH_PATH: &str = "/grpc.health.v1.Health/Check";
/// The pause between attempts while a server does not listen yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// One server as the client knows it.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) index: usize,
    pub(super) address: String,
    rpc: RpcOptions,
    timeout: Duration,
    /// Ends calls to a server that gives no sign of life.
    interruption: Interruption,
    /// The server has given no sign of life after an interruption.
    is_silent: AtomicBool,
    pub(super) pool: Arc<Pool>,
    channel: tokio::sync::Mutex<Option<Channel>>,
    /// The run that this process coordinates: a new connection says so again.
    coordinates: tokio::sync::Mutex<Option<RunId>>,
}

/// One call: what is sent, and which sizes of tensors come back.
pub(super) struct Call<H, S> {
    pub(super) op: &'static str,
    pub(super) path: &'static str,
    pub(super) header: H,
    pub(super) payload: Vec<Bytes>,
    /// The bytes of each tensor of the reply, or what is wrong with its header.
    pub(super) sizes: S,
    /// Whether a repetition does what one call does.
    pub(super) may_repeat: bool,
}

/// A reply without a payload.
pub(super) fn no_payload<R>(_: &R) -> Result<Vec<u64>, String> {
    Ok(Vec::new())
}

impl Server {
    pub(super) fn new(
        index: usize,
        address: String,
        options: &ClientOptions,
        pool: Arc<Pool>,
    ) -> Self {
        let rpc = RpcOptions {
            security: options.security.clone(),
            keepalive_interval: options.keepalive_interval,
            keepalive_timeout: options.keepalive_timeout,
            ..RpcOptions::default()
        };
        Self {
            index,
            address,
            rpc,
            timeout: options.timeout,
            interruption: options.interruption.clone(),
            is_silent: AtomicBool::new(false),
            pool,
            channel: tokio::sync::Mutex::default(),
            coordinates: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn unavailable(&self, reason: impl Into<String>) -> PsError {
        PsError::Unavailable {
            server: self.index,
            address: self.address.clone(),
            reason: reason.into(),
        }
    }

    fn connect_error(&self, error: ConnectError) -> PsError {
        match error {
            ConnectError::Refused(reason) => PsError::Refused {
                address: self.address.clone(),
                reason,
            },
            ConnectError::Unavailable(reason) => self.unavailable(reason),
        }
    }

    /// Waits until the server listens.
    pub(super) async fn connect(&self, limit: Duration, interruption: &Interruption) -> Result<()> {
        let begin = Instant::now();
        tokio::select! {
            connected = self.connect_within(limit, begin) => connected,
            () = interruption.raised() => Err(PsError::Interrupted {
                task: "this process".to_string(),
                what: format!("parameter server {} at {}", self.index, self.address),
                waited: begin.elapsed(),
            }),
        }
    }

    async fn connect_within(&self, limit: Duration, begin: Instant) -> Result<()> {
        loop {
            let left = limit.saturating_sub(begin.elapsed());
            let attempt =
                Channel::connect(&self.address, &self.rpc, left.min(RECONNECT_TIMEOUT)).await;
            match attempt {
                Ok(channel) => {
                    *self.channel.lock().await = Some(channel);
                    return Ok(());
                }
                Err(ConnectError::Unavailable(_)) if begin.elapsed() + CONNECT_PAUSE < limit => {
                    tokio::time::sleep(CONNECT_PAUSE).await;
                }
                Err(error) => return Err(self.connect_error(error)),
            }
        }
    }

    /// The open connection, or a new one.
    async fn channel(&self) -> Result<Channel> {
        let mut place = self.channel.lock().await;
        if let Some(channel) = &*place
            && channel.closed().is_none()
        {
            return Ok(channel.clone());
        }
        let opened = Channel::connect(&self.address, &self.rpc, RECONNECT_TIMEOUT).await;
        let mut channel = opened.map_err(|error| self.connect_error(error))?;
        if let Some(run) = *self.coordinates.lock().await {
            join_as_coordinator(&mut channel, run, &self.pool).await;
        }
        *place = Some(channel.clone());
        Ok(channel)
    }

    /// This process coordinates the run.
    pub(super) async fn claim(&self, run: RunId) {
        *self.coordinates.lock().await = Some(run);
    }

    /// Makes a call.
    pub(super) async fn call<R, H, S>(&self, call: Call<H, S>) -> Result<(R, Vec<Vec<u8>>)>
    where
        R: Message + Default,
        H: Message,
        S: Fn(&R) -> Result<Vec<u64>, String>,
    {
        let (op, begun) = (call.op, Instant::now());
        let called = tokio::select! {
            called = tokio::time::timeout(self.timeout, self.call_or_repeat(call)) => called,
            () = self.silence() => return Err(self.interrupted(begun)),
        };
        match called {
            Ok(done) => done,
            Err(_) => Err(PsError::Timeout {
                op,
                server: self.index,
                address: self.address.clone(),
                waited: self.timeout,
            }),
        }
    }

    fn interrupted(&self, begun: Instant) -> PsError {
        PsError::Interrupted {
            task: "this process".to_string(),
            what: format!(
                "parameter server {} at {}, which gives no sign of life",
                self.index, self.address
            ),
            waited: begun.elapsed(),
        }
    }

    /// Ready when the interruption was raised and the server has not given a sign of life for a
    /// while since then.
    async fn silence(&self) {
        self.interruption.raised().await;
        while !self.is_silent.load(Ordering::Relaxed) {
            match tokio::time::timeout(SILENT_AFTER, self.is_alive()).await {
                // What is wrong with the connection shows in the call itself.
                Ok(_) => tokio::time::sleep(POLL_INTERVAL).await,
                Err(_) => self.is_silent.store(true, Ordering::Relaxed),
            }
        }
    }

    async fn is_alive(&self) -> Result<(), ReadError> {
        let channel = self.channel().await;
        let mut channel =
            channel.map_err(|error| ReadError::Broken(ConnectionEnd::Broken(error.to_string())))?;
        let question = Outgoing::new(&wire::Empty {}, Vec::new());
        let mut reader: Reader<Incoming> = call(&mut channel, HEALTH_PATH, question).await?;
        reader.header::<wire::Empty>().await.map(drop)
    }

    async fn call_or_repeat<R, H, S>(&self, call: Call<H, S>) -> Result<(R, Vec<Vec<u8>>)>
    where
        R: Message + Default,
        H: Message,
        S: Fn(&R) -> Result<Vec<u64>, String>,
    {
        let mut may_repeat = call.may_repeat;
        loop {
            let mut channel = self.channel().await?;
            let failed = match exchange(&mut channel, &call, &self.pool).await {
                Ok(reply) => return Ok(reply),
                Err(failed) => failed,
            };
            let end = match failed {
                ReadError::Status(status) => {
                    return Err(from_status(&status, self.index, &self.address));
                }
                ReadError::Nonsense(what) => {
                    let address = self.address.clone();
                    return Err(PsError::Protocol { address, what });
                }
                ReadError::Broken(end) => channel.closed().unwrap_or(end),
            };
            // A server that hangs would let a repetition wait once more.
            if !may_repeat || end == ConnectionEnd::Silent {
                return Err(self.unavailable(end.to_string()));
            }
            may_repeat = false;
        }
    }

    /// A call whose reply has no payload.
    pub(super) async fn ask<R: Message + Default>(
        &self,
        op: &'static str,
        path: &'static str,
        header: impl Message,
        payload: Vec<Bytes>,
    ) -> Result<R> {
        let call = Call {
            op,
            path,
            header,
            payload,
            sizes: no_payload,
            may_repeat: true,
        };
        self.call(call).await.map(|(reply, _)| reply)
    }

    /// [`wire::Control`] and other calls without an answer.
    pub(super) async fn send(
        &self,
        op: &'static str,
        path: &'static str,
        header: impl Message,
    ) -> Result<()> {
        let reply = self.ask::<wire::Empty>(op, path, header, Vec::new()).await;
        reply.map(drop)
    }
}

/// Tells the server that the coordinator of its run is here. One that is in another run says so to
/// the call that follows.
async fn join_as_coordinator(channel: &mut Channel, run: RunId, pool: &Pool) {
    let call = Call {
        op: "join",
        path: path!("Join"),
        header: wire::Join {
            run: run.0.to_le_bytes().to_vec(),
            coordinator: true,
        },
        payload: Vec::new(),
        sizes: no_payload,
        may_repeat: false,
    };
    let _: Result<(wire::Attach, _), ReadError> = exchange(channel, &call, pool).await;
}

/// One attempt.
async fn exchange<R, H, S>(
    channel: &mut Channel,
    request: &Call<H, S>,
    pool: &Pool,
) -> Result<(R, Vec<Vec<u8>>), ReadError>
where
    R: Message + Default,
    H: Message,
    S: Fn(&R) -> Result<Vec<u64>, String>,
{
    let outgoing = Outgoing::new(&request.header, request.payload.clone());
    let mut reader: Reader<Incoming> = call(channel, request.path, outgoing).await?;
    let header: R = reader.header().await?;
    let sizes = (request.sizes)(&header).map_err(ReadError::Nonsense)?;
    let mut tensors = Vec::with_capacity(sizes.len());
    for size in sizes {
        let capacity = usize::try_from(size).unwrap_or(usize::MAX);
        let no_memory = |_| ReadError::Nonsense(format!("no memory for {size} bytes"));
        let mut bytes = pool.take(capacity).map_err(no_memory)?;
        reader
            .payload(size, |piece| bytes.extend_from_slice(&piece))
            .await?;
        tensors.push(bytes);
    }
    reader.end().await?;
    Ok((header, tensors))
}
