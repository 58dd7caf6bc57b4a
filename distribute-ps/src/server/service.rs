//! The calls that a server answers (see [`wire`](crate::wire)).

use std::sync::Arc;

use burn::tensor::DType;
use bytes::Bytes;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde::Serialize;

use crate::error::{PsError, Result};
use crate::rpc::Peer;
use crate::rpc::message::{Outgoing, ReadError, Reader};
use crate::server::elements::{self, FiniteCheck};
use crate::server::shard::{Payload, Plan, Shard, ShardGradient, UpdateTerms};
use crate::server::snapshot;
use crate::server::store::{Run, Store, blocking};
use crate::update::{NonFinite, RunId, UpdateKey};
use crate::wire::{
    Assign, Assignment, Got, Outcome, Part, Prepare, Pull, PullRows, Pulled, Push, Request, State,
};
use crate::wire_error::sendable;

/// One call and what it needs.
struct Call {
    run: Arc<Run>,
    peer: Arc<Peer>,
    reader: Reader<Incoming>,
    /// The largest payload.
    max_bytes: u64,
}

/// Answers a call.
pub(super) async fn answer(
    store: Arc<Store>,
    reader: Reader<Incoming>,
    peer: Arc<Peer>,
) -> Outgoing {
    let replied = reply_to(store, reader, peer).await;
    replied.unwrap_or_else(|error| Outgoing::new(&Err::<(), _>(sendable(&error)), Vec::new()))
}

async fn reply_to(
    store: Arc<Store>,
    mut reader: Reader<Incoming>,
    peer: Arc<Peer>,
) -> Result<Outgoing> {
    let (id, request): (RunId, Request) = reader.header().await.map_err(unread)?;
    if let Request::Attach(rules) = &request {
        store.attach(id, *rules, &peer)?;
    }
    let run = store.run(id)?;
    let call = Call {
        run: run.clone(),
        peer,
        reader,
        max_bytes: store.options.max_request_bytes,
    };
    match request {
        Request::Attach(_) => {}
        Request::Join { is_coordinator } => {
            if is_coordinator {
                run.claim(&call.peer);
            }
            return Ok(reply(run.rules));
        }
        Request::Create(shards) => return Ok(reply(run.table.create(shards, &store.options)?)),
        Request::Catalog => {
            let shards = run.table.shards();
            let specs: Vec<_> = shards.iter().map(|shard| &shard.spec).collect();
            return Ok(reply(specs));
        }
        Request::Pull(request) => return call.pull(request).await,
        Request::PullRows(request) => return call.pull_rows(request).await,
        Request::Prepare(request) => return call.prepare(request).await,
        Request::Push(request) => return call.push(request).await,
        Request::Assign(request) => return call.assign(request).await,
        Request::FinishedBelow(closure) => {
            let finished = move || {
                run.finished_below(closure);
                Ok(())
            };
            blocking(finished).await?;
        }
        Request::CancelledBelow(closure) => run.admission.cancelled_below(closure),
        Request::Abandon(closure) => run.admission.abandon(closure),
        Request::Withdraw(update) => run.admission.release(update),
        Request::LearningRate(rate) => run.set_learning_rate(Some(rate)),
        Request::ShutDown => store.finish(),
        Request::Snapshot => {
            let (state, payload) = blocking(move || Ok(snapshot::take(&run))).await?;
            return Ok(replied(state, payload));
        }
        Request::Restore(state) => return call.restore(state).await,
    }
    Ok(reply(()))
}

/// A reply.
fn replied(value: impl Serialize, payload: Vec<Bytes>) -> Outgoing {
    Outgoing::new(&Ok::<_, PsError>(value), payload)
}

/// A reply without a payload.
fn reply(value: impl Serialize) -> Outgoing {
    replied(value, Vec::new())
}

fn unread(error: ReadError) -> PsError {
    PsError::Protocol {
        address: String::new(),
        what: error.to_string(),
    }
}

/// What is announced of a payload.
struct AnnouncedPart {
    shard: Arc<Shard>,
    part: Part,
    is_narrow: bool,
}

impl AnnouncedPart {
    /// Checks the announcement of a part against its shard.
    fn check(op: &'static str, run: &Run, part: Part) -> Result<Self> {
        let shard = run.table.shard(part.id)?;
        let own = shard.dtype;
        let is_narrow = part.dtype == DType::BF16 && own == DType::F32;
        if part.dtype != own && !is_narrow {
            return Err(PsError::DType {
                op,
                name: shard.name().to_string(),
                expected: own.name().to_string(),
                found: part.dtype.name().to_string(),
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
    async fn pull(self, request: Pull) -> Result<Outgoing> {
        let run = self.run;
        if let Some(closure) = request.closure {
            run.admission.wait_to_pull(closure).await?;
        }
        let wanted = request.wants.iter().map(|want| run.table.shard(want.id));
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
        let limit = self.max_bytes;
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

    async fn pull_rows(mut self, request: PullRows) -> Result<Outgoing> {
        let shard = self.run.table.shard(request.id)?;
        let row_bytes = shard.row_bytes as u64 + 8;
        let _memory = self
            .reserve(request.count.saturating_mul(row_bytes))
            .await?;
        let rows = self.rows(request.count).await?;
        blocking(move || {
            let (bytes, counts) = shard.read_rows(&rows)?;
            let payload = sent(&shard, vec![bytes.into()], request.bf16);
            let bytes = payload.iter().map(|piece| piece.len() as u64).sum();
            let pulled = Pulled {
                got: vec![Got { counts, bytes }],
                learning_rate: self.run.learning_rate(),
            };
            Ok(replied(pulled, payload))
        })
        .await
    }

    /// Reads the values of one part; NaN and infinity are refused if `non_finite` says so.
    async fn values(
        &mut self,
        announced: &AnnouncedPart,
        non_finite: NonFinite,
    ) -> Result<Payload> {
        let mut check = FiniteCheck::new(announced.part.dtype);
        let look = |piece: &[u8]| match non_finite {
            NonFinite::Refuse => check.look(piece),
            NonFinite::Apply => {}
        };
        let rope = self.reader.rope_seen(announced.part.bytes, look).await;
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

    /// Checks the parts of an update, and waits for memory for their payload.
    async fn announced(
        &mut self,
        op: &'static str,
        parts: Vec<Part>,
    ) -> Result<(
        Vec<AnnouncedPart>,
        Option<tokio::sync::OwnedSemaphorePermit>,
    )> {
        let announce = |part| AnnouncedPart::check(op, &self.run, part);
        let announced: Vec<_> = parts.into_iter().map(announce).collect::<Result<_>>()?;
        let bytes = announced.iter().map(AnnouncedPart::payload_bytes);
        let memory = self.reserve(bytes.fold(0, u64::saturating_add)).await?;
        Ok((announced, memory))
    }

    async fn push(mut self, request: Push) -> Result<Outgoing> {
        let (announced, _memory) = self.announced("push", request.parts).await?;
        let non_finite = self.run.rules.non_finite;
        let mut gradients = Vec::with_capacity(announced.len());
        for part in announced {
            let rows = match part.part.rows {
                None => None,
                Some(count) => Some(self.rows(count).await?),
            };
            if let Some(rows) = &rows {
                part.shard.check_rows(rows)?;
            }
            let values = self.values(&part, non_finite).await?;
            gradients.push((part.shard, part.part.base, ShardGradient { rows, values }));
        }
        self.reader.end().await.map_err(unread)?;
        let (run, id) = (self.run, request.update);
        match run.admission.refuse_beyond().is_some() && !request.is_prepared {
            true => {
                let parts = gradients
                    .iter()
                    .map(|(shard, base, _)| (shard.clone(), *base));
                run.prepare(id, parts.collect(), &self.peer).await?;
            }
            false => run.admission.wait_to_push(id.0).await?,
        }
        match is_light(&run, &gradients) {
            true => apply(&run, id, gradients),
            false => blocking(move || apply(&run, id, gradients)).await,
        }
    }

    /// Whether an update of several servers may come.
    async fn prepare(self, request: Prepare) -> Result<Outgoing> {
        let run = self.run;
        let part = |part: Part| Ok((run.table.shard(part.id)?, part.base));
        let parts: Vec<_> = request.parts.into_iter().map(part).collect::<Result<_>>()?;
        let has_it = match request.only_ask {
            true => {
                let terms = run.terms(Some(request.update), None);
                parts.iter().any(|(shard, _)| shard.look(&terms).0)
            }
            false => run.prepare(request.update, parts, &self.peer).await?,
        };
        Ok(reply(has_it))
    }

    async fn assign(mut self, request: Assign) -> Result<Outgoing> {
        let (assignment, update) = (request.assignment, request.update);
        let whole = |part: Part| Part { rows: None, ..part };
        let parts = request.parts.into_iter().map(whole).collect();
        let (announced, _memory) = self.announced(assignment.name(), parts).await?;
        if announced.iter().any(|part| part.is_narrow) {
            return Err(PsError::invalid("assigned values do not travel as bf16"));
        }
        let mut values = Vec::with_capacity(announced.len());
        for part in announced {
            let value = self.values(&part, NonFinite::Apply).await?;
            values.push((part.shard, value));
        }
        self.reader.end().await.map_err(unread)?;
        let run = self.run;
        if let Some(key) = update.filter(|_| run.admission.refuse_beyond().is_some()) {
            // It overtakes what is decided as a gradient would, and is never too old itself.
            let parts = values
                .iter()
                .map(|(shard, _)| (shard.clone(), Some(u64::MAX)));
            run.prepare(key, parts.collect(), &self.peer).await?;
        }
        blocking(move || assign(&run, assignment, update, values)).await
    }

    async fn restore(mut self, state: State) -> Result<Outgoing> {
        let plan = snapshot::Plan::new(&self.run.table, &state)?;
        // What is read is what the server then holds: its limit is that of the variables.
        let mut tensors = Vec::new();
        for bytes in plan.sizes() {
            tensors.push(self.reader.rope(bytes).await.map_err(unread)?);
        }
        self.reader.end().await.map_err(unread)?;
        blocking(move || {
            plan.restore(&self.run, tensors, state.learning_rate);
            Ok(reply(()))
        })
        .await
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
fn pulled(run: &Run, request: &Pull, shards: &[Arc<Shard>]) -> Result<Outgoing> {
    let mut got = Vec::with_capacity(request.wants.len());
    let mut payload = Vec::new();
    for (want, shard) in request.wants.iter().zip(shards) {
        let (value, counts) = shard.read()?;
        if want.known == Some(counts.version) {
            got.push(Got { counts, bytes: 0 });
            continue;
        }
        let pieces = sent(shard, value.bytes(), request.bf16);
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        got.push(Got { counts, bytes });
        payload.extend(pieces);
    }
    let learning_rate = run.learning_rate();
    Ok(replied(Pulled { got, learning_rate }, payload))
}

type Gradients = Vec<(Arc<Shard>, Option<u64>, ShardGradient)>;

/// The most bytes of a push that is applied on the thread of the connections: less than a
/// millisecond of work. Waking another thread would take longer than a small update itself.
const LIGHT_BYTES: usize = 2 << 20;

/// Of the variables' types.
fn bytes_of(gradients: &Gradients) -> usize {
    let bytes = gradients.iter().map(|(_, _, it)| it.values.len());
    bytes.sum()
}

/// Whether a push is applied in no time: built-in arithmetic, not many bytes, and nobody to wait
/// for.
fn is_light(run: &Run, gradients: &Gradients) -> bool {
    let bytes = bytes_of(gradients);
    let is_light = |shard: &Shard| shard.has_kernel() && !shard.is_busy();
    bytes <= LIGHT_BYTES
        && run.rules.synchronous.is_none()
        && run.update_lock.try_read().is_some()
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
    let bytes = bytes_of(&gradients);
    let threads = |works: bool| match works {
        true => (bytes / THREAD_BYTES).min(run.threads),
        false => 1,
    };
    let plan = |(shard, base, gradient): (Arc<Shard>, Option<u64>, ShardGradient)| {
        let terms = run.terms(Some(key), base);
        let plan = shard.plan(gradient, &terms)?;
        Ok((shard, terms, plan))
    };
    let commit = |(shard, terms, plan): (Arc<Shard>, UpdateTerms, Plan)| shard.commit(plan, &terms);
    let plans = on_threads(gradients, threads(alone), plan);
    let outcomes = plans.and_then(|plans| on_threads(plans, threads(!alone), commit));
    // Also of one that failed: it will not come like this again.
    run.admission.release(key);
    Ok(reply(outcomes?))
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
    let assign = |(shard, value): (Arc<Shard>, Payload)| shard.assign(assignment, &value, &terms);
    let outcomes: Result<Vec<Outcome>> =
        checked.and_then(|()| values.into_iter().map(assign).collect());
    // Also of one that failed: it will not come like this again.
    if let Some(key) = id {
        run.admission.release(key);
    }
    Ok(reply(outcomes?))
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
    let next = || work.lock().next();
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
