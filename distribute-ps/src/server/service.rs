//! The calls that a server answers (see [`wire`](crate::wire)).

use std::sync::Arc;

use burn::tensor::DType;
use bytes::Bytes;
use hyper::body::Incoming;
use serde::Serialize;

use crate::error::{PsError, Result};
use crate::rpc::Peer;
use crate::rpc::message::{Outgoing, ReadError, Reader};
use crate::server::admission::{DecidedUpdate, PushTurn};
use crate::server::apply::{Gradients, apply, apply_light, assign};
use crate::server::elements::{self, FiniteCheck};
use crate::server::segments::Segments;
use crate::server::shard::{Payload, Shard, ShardGradient};
use crate::server::snapshot;
use crate::server::store::{Run, Store, blocking};
use crate::update::{NonFinite, RunId};
use crate::wire::{
    Assign, Counts, Part, Prepare, Pull, PullRows, Pulled, PulledItem, Push, Request, State,
};
use crate::wire_error::sendable;

/// One call and what it needs.
struct Call {
    run: Arc<Run>,
    peer: Arc<Peer>,
    reader: Reader<Incoming>,
    /// Its limits, and the memory of payloads.
    store: Arc<Store>,
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
        store: store.clone(),
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
    match error {
        ReadError::Slow { limit, .. } => PsError::Deadline {
            op: "read",
            waited: limit,
            reason: format!(
                "{error}: what the server keeps free for the call others wait for; is the link to \
                 the server slow, or the process busy?"
            ),
        },
        error => PsError::Protocol {
            address: String::new(),
            what: error.to_string(),
        },
    }
}

/// Memory for a payload.
type Memory = Option<tokio::sync::OwnedSemaphorePermit>;

/// The resources of an update until it is applied or fails. They go with the work: a call that
/// is broken off does not end an update that is being applied.
#[derive(Default)]
struct Held {
    turn: Option<PushTurn>,
    decided: Option<DecidedUpdate>,
    memory: Memory,
}

impl Held {
    /// The update was applied, or refused.
    fn done(self) {
        if let Some(turn) = self.turn {
            turn.done();
        }
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
        let noted = if request.bf16 {
            None
        } else {
            shards.iter().map(|shard| shard.try_read()).collect()
        };
        match noted {
            Some(values) => pulled(&run, &request, &shards, values),
            None => {
                let pull = move || {
                    let values = shards.iter().map(|shard| shard.read());
                    pulled(&run, &request, &shards, values.collect())
                };
                blocking(pull).await
            }
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
    async fn reserve(&mut self, bytes: u64) -> Result<Memory> {
        let limit = self.store.options.max_request_bytes;
        if bytes > limit {
            return Err(PsError::TooLarge {
                what: "a request".to_string(),
                bytes,
                limit,
                option: "max_request_bytes",
            });
        }
        Ok(self.store.payloads.reserve(bytes).await)
    }

    async fn pull_rows(mut self, request: PullRows) -> Result<Outgoing> {
        let shard = self.run.table.shard(request.id)?;
        let row_bytes = shard.row_bytes as u64 + 8;
        let memory = self
            .reserve(request.count.saturating_mul(row_bytes))
            .await?;
        let rows = self.rows(request.count).await?;
        blocking(move || {
            let _memory = memory;
            let (bytes, counts) = shard.read_rows(&rows)?;
            let payload = sent(&shard, vec![bytes.into()], request.bf16);
            let bytes = payload.iter().map(|piece| piece.len() as u64).sum();
            let pulled = Pulled {
                got: vec![PulledItem { counts, bytes }],
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
        let rope = self
            .reader
            .rope_seen(announced.part.bytes, look)
            .await
            .map_err(unread)?;
        if check.is_finite() {
            Ok(Payload {
                rope,
                is_narrow: announced.is_narrow,
            })
        } else {
            Err(PsError::NonFinite {
                name: announced.shard.name().to_string(),
            })
        }
    }

    /// Checks the parts of an update. None of their bytes is read.
    fn announced(&self, op: &'static str, parts: Vec<Part>) -> Result<Vec<AnnouncedPart>> {
        let announce = |part| AnnouncedPart::check(op, &self.run, part);
        parts.into_iter().map(announce).collect()
    }

    /// Waits for memory for these parts.
    async fn room_for(&mut self, parts: &[AnnouncedPart]) -> Result<Memory> {
        let bytes = parts.iter().map(AnnouncedPart::payload_bytes);
        self.reserve(bytes.fold(0, u64::saturating_add)).await
    }

    /// A push waits for others before its gradients are read: those that wait hold no memory, and
    /// those that hold some are applied whatever the others do.
    async fn push(mut self, request: Push) -> Result<Outgoing> {
        let (run, id) = (self.run.clone(), request.update);
        let announced = self.announced("push", request.parts)?;
        let mut held = Held::default();
        if run.admission.refuse_beyond().is_some() {
            if !request.is_prepared {
                let parts = announced.iter().map(|it| (it.shard.clone(), it.part.base));
                run.prepare(id, parts.collect(), &self.peer).await?;
            }
            held.decided = Some(run.admission.decided(id));
        } else {
            held.turn = Some(run.admission.wait_to_push(id.0).await?);
        }
        held.memory = self.room_for(&announced).await?;
        let gradients = self.gradients(announced).await?;
        let applied = match apply_light(&run, id, gradients) {
            Ok(applied) => {
                held.done();
                applied
            }
            Err(gradients) => {
                let work = move || {
                    let applied = apply(&run, id, gradients);
                    held.done();
                    applied
                };
                blocking(work).await
            }
        };
        applied.map(reply)
    }

    /// Reads the gradients of a push.
    async fn gradients(&mut self, announced: Vec<AnnouncedPart>) -> Result<Gradients> {
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
        Ok(gradients)
    }

    /// Whether an update of several servers may come.
    async fn prepare(self, request: Prepare) -> Result<Outgoing> {
        let run = self.run;
        let part = |part: Part| Ok((run.table.shard(part.id)?, part.base));
        let parts: Vec<_> = request.parts.into_iter().map(part).collect::<Result<_>>()?;
        let has_it = if request.only_ask {
            let terms = run.terms(Some(request.update), None);
            let look = move || Ok(parts.iter().any(|(shard, _)| shard.look(&terms).0));
            blocking(look).await?
        } else {
            run.prepare(request.update, parts, &self.peer).await?
        };
        Ok(reply(has_it))
    }

    async fn assign(mut self, request: Assign) -> Result<Outgoing> {
        let (assignment, update) = (request.assignment, request.update);
        let whole = |part: Part| Part { rows: None, ..part };
        let parts = request.parts.into_iter().map(whole).collect();
        let announced = self.announced(assignment.name(), parts)?;
        if announced.iter().any(|part| part.is_narrow) {
            return Err(PsError::invalid("assigned values do not travel as bf16"));
        }
        let run = self.run.clone();
        let mut held = Held::default();
        if let Some(key) = update.filter(|_| run.admission.refuse_beyond().is_some()) {
            // It overtakes what is decided as a gradient would, and is never too old itself.
            let parts = announced
                .iter()
                .map(|it| (it.shard.clone(), Some(u64::MAX)));
            run.prepare(key, parts.collect(), &self.peer).await?;
            held.decided = Some(run.admission.decided(key));
        }
        held.memory = self.room_for(&announced).await?;
        let mut values = Vec::with_capacity(announced.len());
        for part in announced {
            let value = self.values(&part, NonFinite::Apply).await?;
            values.push((part.shard, value));
        }
        self.reader.end().await.map_err(unread)?;
        let work = move || {
            let assigned = assign(&run, assignment, update, values);
            held.done();
            assigned
        };
        blocking(work).await.map(reply)
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
    if bf16 && shard.dtype == DType::F32 {
        pieces
            .iter()
            .map(|piece| elements::narrow(piece).into())
            .collect()
    } else {
        pieces
    }
}

/// What is pulled of one shard, at one version.
type Value = Result<(Segments, Counts)>;

/// The values that a pull is answered with.
fn pulled(
    run: &Run,
    request: &Pull,
    shards: &[Arc<Shard>],
    values: Vec<Value>,
) -> Result<Outgoing> {
    let mut got = Vec::with_capacity(request.wants.len());
    let mut payload = Vec::new();
    for ((want, shard), value) in request.wants.iter().zip(shards).zip(values) {
        let (value, counts) = value?;
        if want.known == Some(counts.version) {
            got.push(PulledItem { counts, bytes: 0 });
            continue;
        }
        let pieces = sent(shard, value.bytes(), request.bf16);
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        got.push(PulledItem { counts, bytes });
        payload.extend(pieces);
    }
    let learning_rate = run.learning_rate();
    Ok(replied(Pulled { got, learning_rate }, payload))
}
