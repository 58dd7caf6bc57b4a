//! The connection to one server: calls with a deadline, repeated once when the connection broke.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use distribute_core::collectives::Interruption;
use distribute_net::compute_clock::ComputeClock;
use distribute_net::handshake::Purpose::ParameterServer;
use serde::de::DeserializeOwned;

use crate::client::ClientOptions;
use crate::client::pool::Pool;
use crate::error::{PsError, Result};
use crate::rpc::clock::within;
use crate::rpc::message::{Outgoing, ReadError};
use crate::rpc::{Channel, ConnectError, ConnectionEnd, POLL_INTERVAL, RpcOptions};
use crate::update::{RunId, RunOptions};
use crate::wire::Request;

/// How long one attempt to connect may take, of a new connection or of one that was broken.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// The same for a server that has just been silent for as long as a connection lives without a sign
/// of life: together with that time it is known within 5 s that it is lost.
const SILENT_RECONNECT_TIMEOUT: Duration = Duration::from_millis(800);
/// The last attempt within a limit gets as long, whatever is left of that: a server that is there
/// is not lost because little time was left when it was dialled.
const LAST_ATTEMPT: Duration = Duration::from_secs(2);
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
    pub(super) pool: Arc<Pool>,
    channel: tokio::sync::Mutex<Option<Channel>>,
    /// The run that this process coordinates: a new connection says so again.
    coordinates: tokio::sync::Mutex<Option<RunId>>,
}

/// One call: what is sent, and which sizes of tensors come back.
pub(super) struct Call<S> {
    pub(super) op: &'static str,
    pub(super) run: RunId,
    pub(super) request: Request,
    pub(super) payload: Vec<Bytes>,
    /// The bytes of each tensor of the reply, or what is wrong with its message.
    pub(super) sizes: S,
}

/// A reply without a payload.
fn no_payload<R>(_: &R) -> Result<Vec<u64>, String> {
    Ok(Vec::new())
}

impl Server {
    pub(super) fn new(
        index: usize,
        address: String,
        options: &ClientOptions,
        pool: &Arc<Pool>,
        clock: &Arc<ComputeClock>,
    ) -> Self {
        let mut rpc = RpcOptions::new(ParameterServer, Some(index), options.security.clone());
        rpc.keepalive_interval = options.keepalive_interval;
        rpc.keepalive_timeout = options.keepalive_timeout;
        rpc.clock = clock.clone();
        Self {
            index,
            address,
            rpc,
            timeout: options.timeout,
            interruption: options.interruption.clone(),
            pool: pool.clone(),
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
            connected = self.connect_within(limit) => connected,
            () = interruption.raised() => Err(self.interrupted("", begin)),
        }
    }

    async fn connect_within(&self, limit: Duration) -> Result<()> {
        let begin = self.rpc.clock.now();
        loop {
            let left = limit.saturating_sub(self.rpc.clock.elapsed(begin));
            let within = left.clamp(LAST_ATTEMPT, RECONNECT_TIMEOUT);
            let attempt = Channel::connect(&self.address, &self.rpc, within).await;
            match attempt {
                Ok(channel) => {
                    *self.channel.lock().await = Some(channel);
                    return Ok(());
                }
                Err(ConnectError::Unavailable(_)) if left > CONNECT_PAUSE => {
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
        let limit = match place.as_ref().and_then(Channel::closed) {
            Some(ConnectionEnd::Silent) => SILENT_RECONNECT_TIMEOUT,
            _ => RECONNECT_TIMEOUT,
        };
        let opened = Channel::connect(&self.address, &self.rpc, limit).await;
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
    pub(super) async fn call<R, S>(&self, call: Call<S>) -> Result<(R, Vec<Vec<u8>>)>
    where
        R: DeserializeOwned,
        S: Fn(&R) -> Result<Vec<u64>, String>,
    {
        let (op, begun) = (call.op, Instant::now());
        let called = tokio::select! {
            called = within(&self.rpc.clock, self.timeout, self.call_or_repeat(call)) => called,
            () = self.silence() => {
                return Err(self.interrupted(", which gives no sign of life", begun));
            }
        };
        match called {
            Some(done) => done,
            None => Err(PsError::Timeout {
                op,
                server: self.index,
                address: self.address.clone(),
                waited: self.timeout,
            }),
        }
    }

    fn interrupted(&self, why: &str, begun: Instant) -> PsError {
        PsError::Interrupted {
            task: "this process".to_string(),
            what: format!("parameter server {} at {}{why}", self.index, self.address),
            waited: begun.elapsed(),
        }
    }

    /// Ready when the interruption was raised and the server gives no sign of life.
    async fn silence(&self) {
        self.interruption.raised().await;
        loop {
            let channel = self.channel.lock().await;
            // What else is wrong with the connection shows in the call itself.
            if channel.as_ref().is_some_and(|it| it.silence().is_some()) {
                return;
            }
            drop(channel);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn call_or_repeat<R, S>(&self, call: Call<S>) -> Result<(R, Vec<Vec<u8>>)>
    where
        R: DeserializeOwned,
        S: Fn(&R) -> Result<Vec<u64>, String>,
    {
        let mut may_repeat = call.request.may_repeat();
        loop {
            let mut channel = self.channel().await?;
            let end = match exchange(&mut channel, &call, &self.pool).await {
                // It did not come quickly enough, which another time it may.
                Ok(Err(PsError::Deadline { .. })) if may_repeat => {
                    may_repeat = false;
                    continue;
                }
                Ok(reply) => return reply.map_err(|error| self.with_server_address(error)),
                Err(ReadError::Broken(end)) => channel.closed().unwrap_or(end),
                Err(error) => {
                    let (address, what) = (self.address.clone(), error.to_string());
                    return Err(PsError::Protocol { address, what });
                }
            };
            // A server that hangs would let a repetition wait once more.
            if !may_repeat || end == ConnectionEnd::Silent {
                return Err(self.unavailable(end.to_string()));
            }
            may_repeat = false;
        }
    }

    /// An error of the server, which does not know by which number and address it was reached.
    fn with_server_address(&self, error: PsError) -> PsError {
        let (server, address) = (self.index, self.address.clone());
        match error {
            PsError::OtherRun { reason, .. } => PsError::OtherRun {
                server,
                address,
                reason,
            },
            PsError::Protocol { what, .. } => PsError::Protocol { address, what },
            error => error,
        }
    }

    /// A call whose reply has no payload.
    pub(super) async fn ask<R: DeserializeOwned>(
        &self,
        op: &'static str,
        run: RunId,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<R> {
        let call = Call {
            op,
            run,
            request,
            payload,
            sizes: no_payload,
        };
        self.call(call).await.map(|(reply, _)| reply)
    }
}

/// Tells the server that the coordinator of its run is here. One that is in another run says so to
/// the call that follows.
async fn join_as_coordinator(channel: &mut Channel, run: RunId, pool: &Pool) {
    let call = Call {
        op: "join",
        run,
        request: Request::Join {
            is_coordinator: true,
        },
        payload: Vec::new(),
        sizes: no_payload,
    };
    let _: Result<Result<(RunOptions, _)>, ReadError> = exchange(channel, &call, pool).await;
}

/// One attempt: what the server answers, or why it cannot be read.
async fn exchange<R, S>(
    channel: &mut Channel,
    call: &Call<S>,
    pool: &Pool,
) -> Result<Result<(R, Vec<Vec<u8>>)>, ReadError>
where
    R: DeserializeOwned,
    S: Fn(&R) -> Result<Vec<u64>, String>,
{
    let outgoing = Outgoing::new(&(call.run, &call.request), call.payload.clone());
    let mut reader = channel.call(outgoing).await?;
    let reply: R = match reader.header::<Result<R>>().await? {
        Ok(reply) => reply,
        Err(error) => return Ok(Err(error)),
    };
    let sizes = (call.sizes)(&reply).map_err(ReadError::Nonsense)?;
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
    Ok(Ok((reply, tensors)))
}
