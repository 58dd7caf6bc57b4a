//! The calls that a server answers (see `proto/parameter_server.proto`).

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use burn::tensor::DType;
use bytes::Bytes;
use http::{Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::rpc::Peer;
use crate::rpc::message::{Outgoing, ReadError, Reader};
use crate::server::elements::{self, Combine, FiniteCheck};
use crate::server::reservations::UpdateKey;
use crate::server::shard::{
    Assignment, Counts, Payload, Plan, PushOutcome, Shard, ShardGradient, UpdateTerms,
};
use crate::server::snapshot;
use crate::server::store::{Run, Store, blocking};
use crate::update::NonFinite;
use crate::wire_error::to_status;

/// The service.
#[derive(Debug, Clone)]
pub(super) struct ParameterService {
    pub(super) store: Arc<Store>,
}

impl NamedService for ParameterService {
    const NAME: &'static str = "distribute.ps.v1.ParameterServer";
}

impl Service<Request<Body>> for ParameterService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let store = self.store.clone();
        Box::pin(async move {
            let answered = answer(store, request).await;
            Ok(answered.map_or_else(
                |error| to_status(&error).into_http(),
                Outgoing::into_response,
            ))
        })
    }
}

/// One call and what it needs.
pub(super) struct Call {
    store: Arc<Store>,
    peer: Arc<Peer>,
    reader: Reader<Body>,
}

async fn answer(store: Arc<Store>, request: Request<Body>) -> Result<Outgoing> {
    let Some(peer) = request.extensions().get::<Arc<Peer>>().cloned() else {
        return Err(PsError::invalid("the connection is unknown"));
    };
    let (parts, body) = request.into_parts();
    let method = parts.uri.path().rsplit('/').next().unwrap_or_default();
    let call = Call {
        store,
        peer,
        reader: Reader::new(body),
    };
    match method {
        "Attach" => call.attach().await,
        "Join" => call.join().await,
        "Create" => call.create().await,
        "Catalog" => call.catalog().await,
        "Pull" => call.pull().await,
        "PullRows" => call.pull_rows().await,
        "Prepare" => call.prepare().await,
        "Push" => call.push().await,
        "Assign" => call.assign().await,
        "Control" => call.control().await,
        "Snapshot" => call.snapshot().await,
        "Restore" => call.restore().await,
        other => Err(PsError::invalid(format!("there is no method `{other}`"))),
    }
}

/// A reply without a payload.
fn reply(message: &impl Message) -> Outgoing {
    Outgoing::new(message, Vec::new())
}

fn unread(error: ReadError) -> PsError {
    let what = match error {
        ReadError::Broken(end) => end.to_string(),
        ReadError::Nonsense(what) => what,
        ReadError::Status(status) => status.to_string(),
    };
    PsError::Protocol {
        address: String::new(),
        what,
    }
}

/// What is announced of a payload.
struct AnnouncedPart {
    shard: Arc<Shard>,
    part: wire::Part,
    is_narrow: bool,
}

impl AnnouncedPart {
    /// Checks the announcement of a part against its shard.
    fn check(op: &'static str, run: &Run, part: wire::Part) -> Result<Self> {
        let shard = run.shard(part.id)?;
        let own = elements::name(shard.dtype)?;
        let is_narrow = part.dtype == "bf16" && own == "f32";
        if part.dtype != own && !is_narrow {
            return Err(PsError::DType {
                op,
                name: shard.name().to_string(),
                expected: own.to_string(),
                found: part.dtype,
            });
        }
        let whole = shard.bytes as u64;
        let expected = match part.rows {
            None => Some(whole),
            Some(rows) => rows.checked_mul(shard.row_bytes as u64),
        };
        let expected = expected.map(|bytes| bytes >> u32::from(is_narrow));
        if expected != Some(part.bytes) {
            let size = (shard.dtype.size() >> usize::from(is_narrow)) as u64;
            return Err(PsError::Shape {
                op,
                name: shard.name().to_string(),
                expected: vec![usize::try_from(expected.unwrap_or(u64::MAX) / size).unwrap_or(0)],
                found: vec![usize::try_from(part.bytes / size).unwrap_or(usize::MAX)],
            });
        }
        Ok(Self {
            shard,
            part,
            is_narrow,
        })
    }

    /// Bytes in the payload; saturates.
    fn payload_bytes(&self) -> u64 {
        let ids = self.part.rows.unwrap_or(0).saturating_mul(8);
        self.part.bytes.saturating_add(ids)
    }
}

impl Call {
    async fn header<M: Message + Default>(&mut self) -> Result<M> {
        self.reader.header().await.map_err(unread)
    }

    async fn attach(mut self) -> Result<Outgoing> {
        let request: wire::Attach = self.header().await?;
        self.store.attach(&request, &self.peer)?;
        Ok(reply(&wire::Empty {}))
    }

    async fn join(mut self) -> Result<Outgoing> {
        let request: wire::Join = self.header().await?;
        let run = self.store.run(&request.run)?;
        if request.coordinator {
            run.claim(&self.peer);
        }
        Ok(reply(&run.rules.to_wire(request.run)))
    }

    async fn create(mut self) -> Result<Outgoing> {
        let request: wire::Create = self.header().await?;
        let run = self.store.run(&request.run)?;
        let ids = run.create(request.shards, &self.store.options)?;
        Ok(reply(&wire::Created { ids }))
    }

    async fn catalog(mut self) -> Result<Outgoing> {
        let request: wire::Catalog = self.header().await?;
        let run = self.store.run(&request.run)?;
        let shards = run
            .shards()
            .iter()
            .map(|shard| shard.wire.clone())
            .collect();
        Ok(reply(&wire::CatalogReply { shards }))
    }

    async fn pull(mut self) -> Result<Outgoing> {
        let request: wire::Pull = self.header().await?;
        let run = self.store.run(&request.run)?;
        if let Some(closure) = request.closure {
            run.wait_to_pull(closure).await?;
        }
        let wanted = request.wants.iter().map(|want| run.shard(want.id));
        let shards: Vec<Arc<Shard>> = wanted.collect::<Result<_>>()?;
        // Noting where pieces lie takes no time, unless an update is being applied.
        let is_light = !request.bf16 && !shards.iter().any(|shard| shard.is_busy());
        match is_light {
            true => pulled(&run, &request, &shards),
            false => blocking(move || pulled(&run, &request, &shards)).await,
        }
    }

    /// Reads row numbers.
    async fn rows(&mut self, count: u64) -> Result<Vec<u64>> {
        let bytes = self
            .reader
            .rope(count.saturating_mul(8))
            .await
            .map_err(unread)?;
        let bytes = bytes.read(0, bytes.len());
        let (numbers, _) = bytes.as_chunks::<8>();
        Ok(numbers
            .iter()
            .map(|number| u64::from_le_bytes(*number))
            .collect())
    }

    /// Refuses what is larger than the server's limit, then waits for memory.
    async fn reserve(&mut self, bytes: u64) -> Result<Option<tokio::sync::OwnedSemaphorePermit>> {
        let limit = self.store.options.max_request_bytes;
        if bytes > limit {
            return Err(PsError::TooLarge {
                what: "a request".to_string(),
                bytes,
                limit,
                option: "max_request_bytes",
            });
        }
        Ok(self.peer.reserve(bytes).await)
    }

    async fn pull_rows(mut self) -> Result<Outgoing> {
        let request: wire::PullRows = self.header().await?;
        let run = self.store.run(&request.run)?;
        let shard = run.shard(request.id)?;
        let row_bytes = shard.row_bytes as u64 + 8;
        let _memory = self
            .reserve(request.count.saturating_mul(row_bytes))
            .await?;
        let rows = self.rows(request.count).await?;
        blocking(move || {
            let (bytes, counts) = shard.read_rows(&rows)?;
            let payload = sent(&shard, vec![bytes.into()], request.bf16);
            let bytes = payload.iter().map(|piece| piece.len() as u64).sum();
            let reply = wire::Pulled {
                got: vec![counts.got(bytes)],
                learning_rate: run.learning_rate(),
            };
            Ok(Outgoing::new(&reply, payload))
        })
        .await
    }

    /// Reads the values of one part.
    async fn values(&mut self, announced: &AnnouncedPart) -> Result<Payload> {
        let rope = self.reader.rope(announced.part.bytes).await;
        Ok(Payload {
            rope: rope.map_err(unread)?,
            is_narrow: announced.is_narrow,
        })
    }

    /// The same, none of them NaN or infinite.
    async fn finite_values(&mut self, announced: &AnnouncedPart) -> Result<Payload> {
        let dtype = match announced.is_narrow {
            true => DType::BF16,
            false => announced.shard.dtype,
        };
        let mut check = FiniteCheck::new(dtype);
        let bytes = announced.part.bytes;
        let rope = self
            .reader
            .rope_seen(bytes, |piece| check.look(piece))
            .await;
        let rope = rope.map_err(unread)?;
        match check.is_finite() {
            true => Ok(Payload {
                rope,
                is_narrow: announced.is_narrow,
            }),
            false => Err(PsError::NonFinite {
                name: announced.shard.name().to_string(),
            }),
        }
    }

    async fn push(mut self) -> Result<Outgoing> {
        let request: wire::Push = self.header().await?;
        let run = self.store.run(&request.run)?;
        let announce = |part| AnnouncedPart::check("push", &run, part);
        let announced: Vec<_> = request
            .parts
            .into_iter()
            .map(announce)
            .collect::<Result<_>>()?;
        let bytes = announced.iter().map(AnnouncedPart::payload_bytes);
        let _memory = self.reserve(bytes.fold(0, u64::saturating_add)).await?;
        let mut gradients = Vec::with_capacity(announced.len());
        for part in announced {
            let rows = match part.part.rows {
                None => None,
                Some(count) => Some(self.rows(count).await?),
            };
            if let Some(rows) = &rows {
                part.shard.check_rows(rows)?;
            }
            let values = match run.rules.non_finite {
                NonFinite::Refuse => self.finite_values(&part).await?,
                NonFinite::Apply => self.values(&part).await?,
            };
            gradients.push((part.shard, part.part.base, ShardGradient { rows, values }));
        }
        self.reader.end().await.map_err(unread)?;
        let id = (request.closure, request.sequence);
        match run.refuse_beyond().is_some() && !request.prepared {
            true => {
                let parts = gradients
                    .iter()
                    .map(|(shard, base, _)| (shard.clone(), *base));
                run.prepare(id, parts.collect(), &self.peer).await?;
            }
            false => run.wait_to_push(request.closure).await?,
        }
        match is_light(&run, &gradients) {
            true => apply(&run, id, gradients),
            false => blocking(move || apply(&run, id, gradients)).await,
        }
    }

    /// Whether an update of several servers may come.
    async fn prepare(mut self) -> Result<Outgoing> {
        let request: wire::Prepare = self.header().await?;
        let run = self.store.run(&request.run)?;
        let part = |part: wire::Part| Ok((run.shard(part.id)?, part.base));
        let parts: Vec<_> = request.parts.into_iter().map(part).collect::<Result<_>>()?;
        let key = (request.closure, request.sequence);
        let has_it = match request.only_ask {
            true => {
                let terms = run.terms(Some(key), None);
                parts.iter().any(|(shard, _)| shard.look(&terms).0)
            }
            false => run.prepare(key, parts, &self.peer).await?,
        };
        Ok(reply(&wire::Prepared { has_it }))
    }

    async fn assign(mut self) -> Result<Outgoing> {
        let request: wire::Assign = self.header().await?;
        let run = self.store.run(&request.run)?;
        let (op, assignment) = match request.operation {
            0 => ("assign", Assignment::Assign),
            1 => ("assign_add", Assignment::Combine(Combine::Add)),
            2 => ("assign_sub", Assignment::Combine(Combine::Subtract)),
            other => return Err(PsError::invalid(format!("there is no assignment {other}"))),
        };
        let announce = |part: wire::Part| {
            let part = wire::Part { rows: None, ..part };
            let announced = AnnouncedPart::check(op, &run, part)?;
            match announced.is_narrow {
                false => Ok(announced),
                true => Err(PsError::invalid("assigned values do not travel as bf16")),
            }
        };
        let announced: Vec<_> = request
            .parts
            .into_iter()
            .map(announce)
            .collect::<Result<_>>()?;
        let bytes = announced.iter().map(AnnouncedPart::payload_bytes);
        let _memory = self.reserve(bytes.fold(0, u64::saturating_add)).await?;
        let mut values = Vec::with_capacity(announced.len());
        for part in announced {
            let value = self.values(&part).await?;
            values.push((part.shard, value));
        }
        self.reader.end().await.map_err(unread)?;
        let id = request.closure.map(|closure| (closure, request.sequence));
        if let Some(key) = id.filter(|_| run.refuse_beyond().is_some()) {
            // It overtakes what is decided as a gradient would, and is never too old itself.
            let parts = values
                .iter()
                .map(|(shard, _)| (shard.clone(), Some(u64::MAX)));
            run.prepare(key, parts.collect(), &self.peer).await?;
        }
        blocking(move || assign(&run, assignment, id, values)).await
    }

    async fn control(mut self) -> Result<Outgoing> {
        let request: wire::Control = self.header().await?;
        let run = self.store.run(&request.run)?;
        let store = self.store.clone();
        blocking(move || {
            if let Some(closure) = request.finished_below {
                run.note_coordinator();
                run.finished_below(closure);
            }
            if let Some(closure) = request.cancelled_below {
                run.cancelled_below(closure);
            }
            if let Some(closure) = request.abandon {
                run.abandon(closure);
            }
            if let Some(update) = request.withdrawn {
                run.release((update.closure, update.sequence));
            }
            if let Some(rate) = request.learning_rate {
                run.set_learning_rate(Some(rate));
            }
            if request.shut_down {
                store.finish();
            }
            Ok(reply(&wire::Empty {}))
        })
        .await
    }

    async fn snapshot(mut self) -> Result<Outgoing> {
        let request: wire::Join = self.header().await?;
        let run = self.store.run(&request.run)?;
        blocking(move || Ok(snapshot::take(&run))).await
    }

    async fn restore(mut self) -> Result<Outgoing> {
        let request: wire::State = self.header().await?;
        let run = self.store.run(&request.run)?;
        let plan = snapshot::Plan::new(&run, &request)?;
        // What is read is what the server then holds: its limit is that of the variables.
        let mut tensors = Vec::new();
        for bytes in plan.sizes() {
            tensors.push(self.reader.rope(bytes).await.map_err(unread)?);
        }
        self.reader.end().await.map_err(unread)?;
        blocking(move || {
            plan.restore(&run, tensors, request.learning_rate);
            Ok(reply(&wire::Empty {}))
        })
        .await
    }
}

impl Counts {
    fn got(self, bytes: u64) -> wire::Got {
        wire::Got {
            version: self.version,
            bytes,
            updates: self.updates,
        }
    }

    fn outcome(self, done: PushOutcome) -> wire::Outcome {
        wire::Outcome {
            what: done as u32,
            version: self.version,
            updates: self.updates,
        }
    }
}

/// A value's bytes as they travel.
fn sent(shard: &Shard, pieces: Vec<Bytes>, bf16: bool) -> Vec<Bytes> {
    match bf16 && shard.dtype == DType::F32 {
        true => pieces
            .iter()
            .map(|piece| elements::narrow(piece).into())
            .collect(),
        false => pieces,
    }
}

/// The values that a pull is answered with.
fn pulled(run: &Run, request: &wire::Pull, shards: &[Arc<Shard>]) -> Result<Outgoing> {
    let mut got = Vec::with_capacity(request.wants.len());
    let mut payload = Vec::new();
    for (want, shard) in request.wants.iter().zip(shards) {
        let (value, counts) = shard.read()?;
        if want.known == Some(counts.version) {
            got.push(counts.got(0));
            continue;
        }
        let pieces = sent(shard, value.bytes(), request.bf16);
        got.push(counts.got(pieces.iter().map(|piece| piece.len() as u64).sum()));
        payload.extend(pieces);
    }
    let learning_rate = run.learning_rate();
    Ok(Outgoing::new(&wire::Pulled { got, learning_rate }, payload))
}

type Gradients = Vec<(Arc<Shard>, Option<u64>, ShardGradient)>;

/// The most bytes of a push that is applied on the thread of the connections: less than a
/// millisecond of work. Waking another thread would take longer than a small update itself.
const LIGHT_BYTES: usize = 2 << 20;

/// Whether a push is applied in no time: built-in arithmetic, not many bytes, and nobody to wait
/// for.
fn is_light(run: &Run, gradients: &Gradients) -> bool {
    let bytes: usize = gradients
        .iter()
        .map(|(_, _, gradient)| gradient.values.len())
        .sum();
    let is_light = |shard: &Shard| shard.has_kernel() && !shard.is_busy();
    bytes <= LIGHT_BYTES
        && run.rules.synchronous.is_none()
        && run.update_lock.try_read().is_ok()
        && gradients.iter().all(|(shard, _, _)| is_light(shard))
}

/// Applies a push that has been read and checked: all of it, or nothing.
fn apply(run: &Run, key: UpdateKey, gradients: Gradients) -> Result<Outgoing> {
    // An optimizer of one's own may fail, and the outcome of a round depends on who came before.
    // Then the plan is what takes time, and nothing else may change the shards before it is
    // committed; else it is the commitment.
    let alone = run.rules.synchronous.is_some()
        || !gradients.iter().all(|(shard, _, _)| shard.has_kernel());
    let _closed = alone.then(|| run.closed());
    let _open = (!alone).then(|| run.open());
    let bytes: usize = gradients
        .iter()
        .map(|(_, _, gradient)| gradient.values.len())
        .sum();
    let threads = |works: bool| match works {
        true => (bytes / THREAD_BYTES).min(run.threads),
        false => 1,
    };
    let plan = |(shard, base, gradient): (Arc<Shard>, Option<u64>, ShardGradient)| {
        let terms = run.terms(Some(key), base);
        let plan = shard.plan(gradient, &terms)?;
        Ok((shard, terms, plan))
    };
    let commit = |(shard, terms, plan): (Arc<Shard>, UpdateTerms, Plan)| {
        let (done, counts) = shard.commit(plan, &terms)?;
        Ok(counts.outcome(done))
    };
    let plans = on_threads(gradients, threads(alone), plan);
    let outcomes = plans.and_then(|plans| on_threads(plans, threads(!alone), commit));
    // Also of one that failed: it will not come like this again.
    run.release(key);
    Ok(reply(&wire::Pushed {
        outcomes: outcomes?,
    }))
}

/// Applies an assignment that has been read and checked.
fn assign(
    run: &Run,
    assignment: Assignment,
    id: Option<UpdateKey>,
    values: Vec<(Arc<Shard>, Payload)>,
) -> Result<Outgoing> {
    let _open = run.open();
    let terms = run.terms(id, None);
    let check = |(shard, _): &(Arc<Shard>, Payload)| shard.check_assign(assignment, &terms);
    let checked: Result<()> = values.iter().try_for_each(check);
    let assign = |(shard, value): (Arc<Shard>, Payload)| {
        let (done, counts) = shard.assign(assignment, &value, &terms)?;
        Ok(counts.outcome(done))
    };
    let outcomes = checked.and_then(|()| values.into_iter().map(assign).collect());
    // Also of one that failed: it will not come like this again.
    if let Some(key) = id {
        run.release(key);
    }
    Ok(reply(&wire::Pushed {
        outcomes: outcomes?,
    }))
}

/// Bytes of gradients that are worth a thread.
const THREAD_BYTES: usize = 4 << 20;

/// Works on the shards of a push on several threads; results in the same order.
fn on_threads<T: Send, R: Send>(
    shards: Vec<T>,
    threads: usize,
    one: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if threads < 2 {
        return shards.into_iter().map(one).collect();
    }
    let mut results: Vec<Option<Result<R>>> = shards.iter().map(|_| None).collect();
    let work = Mutex::new(shards.into_iter().zip(&mut results));
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let run = || {
            while let Some((shard, result)) = next() {
                *result = Some(one(shard));
            }
        };
        (1..threads).for_each(|_| drop(scope.spawn(run)));
        run();
    });
    drop(work);
    results.into_iter().flatten().collect()
}
