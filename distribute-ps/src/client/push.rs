//! Pushes and assignments.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::TensorData;
use bytes::Bytes;

use crate::client::split::Piece;
use crate::client::{VariableClient, in_parallel};
use crate::error::{PsError, Result};
use crate::server::elements;
use crate::update::{
    Gradient, NonFinite, PushOutcome, RunId, Staleness, StalenessPolicy, UpdateId, Versions,
};
use crate::variable::VariableRef;
use crate::wire::{
    Assign, Assignment, Combine, Outcome, Part, Prepare, Push, Request, UpdateEffect,
};

/// What is sent to one server in one call.
#[derive(Default)]
struct Batch {
    parts: Vec<Part>,
    payload: Vec<Bytes>,
    /// Gradient (or variable) and shard of each part.
    places: Vec<(usize, usize)>,
}

impl VariableClient {
    /// Applies gradients. `base` is empty or has one entry per gradient: the versions that it was
    /// computed at, which a staleness bound and synchronous mode need.
    ///
    /// On each server the push is applied as a whole, or nothing of it. Where stale gradients are
    /// refused, it is refused by all servers or by none.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::Row`], [`PsError::NonFinite`],
    /// [`PsError::Stale`], [`PsError::StalenessTimeout`], [`PsError::TooLarge`].
    pub fn push(
        &self,
        update: UpdateId,
        gradients: Vec<(VariableRef, Gradient)>,
        base: &[Versions],
    ) -> Result<PushOutcome> {
        let (run, rules) = self.in_run()?;
        self.same_run(update)?;
        let bf16 = self.inner.options.bf16;
        let shards = |variable: &VariableRef| variable.placement().shards.len();
        let counts = gradients
            .iter()
            .map(|(variable, _)| shards(variable))
            .collect();
        if rules.non_finite == NonFinite::Refuse && self.num_servers() > 1 {
            // One server alone checks before it applies; of several, each checks its own part.
            gradients
                .iter()
                .try_for_each(|(variable, gradient)| finite(variable, gradient))?;
        }
        let mut pieces = Vec::new();
        for (index, (variable, gradient)) in gradients.into_iter().enumerate() {
            let base = base.get(index).map_or(&[][..], |versions| &versions.0);
            let cut = variable.cut_gradient(gradient, base, bf16)?;
            pieces.extend(cut.into_iter().map(|piece| (index, piece)));
        }
        let refuses = |staleness: Staleness| staleness.policy == StalenessPolicy::Refuse;
        // One server alone decides and applies at once.
        let servers: BTreeSet<usize> = pieces.iter().map(|(_, piece)| piece.server).collect();
        let prepared = rules.staleness.is_some_and(refuses) && servers.len() > 1;
        if prepared {
            self.prepare(update, run, &pieces)?;
        }
        self.send_parts("push", run, pieces, counts, |parts| {
            Request::Push(Push {
                update: update.key(),
                parts,
                is_prepared: prepared,
            })
        })
    }

    /// Has an update decided by all of its servers: refused by one, it is applied by none. They are
    /// asked in their order, so that two updates never wait for each other.
    fn prepare(&self, update: UpdateId, run: RunId, pieces: &[(usize, Piece)]) -> Result<()> {
        let mut parts: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
        for (_, piece) in pieces {
            let of_server = parts.entry(piece.server).or_default();
            of_server.push(piece.part.clone());
        }
        let (servers, update) = (self.inner.servers.clone(), update.key());
        self.inner.driver.run(async move {
            let mut refused = None;
            let mut holding = Vec::new();
            for (server, parts) in parts {
                let server = &servers[server];
                let request = Request::Prepare(Prepare {
                    update,
                    parts,
                    only_ask: refused.is_some(),
                });
                match server.ask("push", run, request, Vec::new()).await {
                    // It comes again, and was decided the first time.
                    Ok(true) => return Ok(()),
                    Ok(false) => holding.push(server),
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            let Some(error) = refused else {
                return Ok(());
            };
            for server in holding {
                // A server that cannot be told forgets it with the connection.
                let withdrawn = server.ask("push", run, Request::Withdraw(update), Vec::new());
                let _: Result<()> = withdrawn.await;
            }
            Err(error)
        })
    }

    fn same_run(&self, update: UpdateId) -> Result<()> {
        if self.in_run()?.0 == update.run {
            Ok(())
        } else {
            Err(PsError::OtherRun {
                server: 0,
                address: self.addresses().swap_remove(0),
                reason: format!("the update is from run {}, this client is not", update.run),
            })
        }
    }

    /// Sends parts to their servers, and puts the outcomes together.
    fn send_parts(
        &self,
        op: &'static str,
        run: RunId,
        pieces: Vec<(usize, Piece)>,
        shards: Vec<usize>,
        request: impl Fn(Vec<Part>) -> Request,
    ) -> Result<PushOutcome> {
        let mut batches: BTreeMap<usize, Batch> = BTreeMap::new();
        for (index, piece) in pieces {
            let batch = batches.entry(piece.server).or_default();
            batch.places.push((index, piece.shard));
            batch.parts.push(piece.part);
            batch.payload.extend(piece.payload);
        }
        let works = batches.into_iter().map(|(server, batch)| {
            let server = self.inner.servers[server].clone();
            let request = request(batch.parts);
            async move {
                let outcomes = server.ask(op, run, request, batch.payload).await?;
                Ok((batch.places, outcomes))
            }
        });
        let replies: Vec<(_, Vec<Outcome>)> =
            self.inner.driver.run(in_parallel(works.collect()))?;
        let zeros: Vec<Versions> = shards
            .into_iter()
            .map(|count| Versions(vec![0; count]))
            .collect();
        let mut outcome = PushOutcome {
            versions: zeros.clone(),
            updates: zeros,
            ..PushOutcome::default()
        };
        for (places, outcomes) in replies {
            for ((index, shard), (effect, counts)) in places.into_iter().zip(outcomes) {
                outcome.versions[index].0[shard] = counts.version;
                outcome.updates[index].0[shard] = counts.updates;
                match effect {
                    UpdateEffect::Applied => outcome.applied += 1,
                    UpdateEffect::AlreadyApplied => outcome.already_applied += 1,
                    UpdateEffect::Accumulated => outcome.accumulated += 1,
                    UpdateEffect::Dropped => outcome.dropped += 1,
                }
            }
        }
        Ok(outcome)
    }

    /// Sets a value that no update id protects, for example the initial one.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::TooLarge`].
    pub fn initialize(&self, variable: &VariableRef, value: TensorData) -> Result<Versions> {
        let op = "initialize";
        let pieces = variable.cut(op, value, &[], false)?;
        let outcome = self.assign_pieces(op, Assignment::Assign, None, variable, pieces)?;
        Ok(outcome.versions.into_iter().next().unwrap_or_default())
    }

    /// Sets a value, at most once per update id.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::TooLarge`].
    pub fn assign(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        self.change(Assignment::Assign, update, [(variable, value)])
    }

    /// Adds to a value, at most once per update id; integers wrap around.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::Uninitialized`].
    pub fn assign_add(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        self.assign_add_all(update, [(variable, value)])
    }

    /// [`assign_add`](Self::assign_add) of several variables as one update, with one call to each
    /// server.
    ///
    /// # Errors
    /// The errors of [`assign_add`](Self::assign_add).
    pub fn assign_add_all<'a>(
        &self,
        update: UpdateId,
        changes: impl IntoIterator<Item = (&'a VariableRef, TensorData)>,
    ) -> Result<PushOutcome> {
        self.change(Assignment::Combine(Combine::Add), update, changes)
    }

    /// Subtracts from a value, at most once per update id; integers wrap around.
    ///
    /// # Errors
    /// [`PsError::Shape`], [`PsError::DType`], [`PsError::Uninitialized`].
    pub fn assign_sub(
        &self,
        update: UpdateId,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        let subtract = Assignment::Combine(Combine::Subtract);
        self.change(subtract, update, [(variable, value)])
    }

    fn change<'a>(
        &self,
        assignment: Assignment,
        update: UpdateId,
        changes: impl IntoIterator<Item = (&'a VariableRef, TensorData)>,
    ) -> Result<PushOutcome> {
        self.same_run(update)?;
        let op = assignment.name();
        let (mut pieces, mut shards) = (Vec::new(), Vec::new());
        for (index, (variable, value)) in changes.into_iter().enumerate() {
            let cut = variable.cut(op, value, &[], false)?;
            pieces.extend(cut.into_iter().map(|piece| (index, piece)));
            shards.push(variable.placement().shards.len());
        }
        self.send_assignment(op, assignment, Some(update), pieces, shards)
    }

    /// Assigns to the shards of these pieces.
    pub(super) fn assign_pieces(
        &self,
        op: &'static str,
        assignment: Assignment,
        update: Option<UpdateId>,
        variable: &VariableRef,
        pieces: Vec<Piece>,
    ) -> Result<PushOutcome> {
        let pieces = pieces.into_iter().map(|piece| (0, piece)).collect();
        let shards = vec![variable.placement().shards.len()];
        self.send_assignment(op, assignment, update, pieces, shards)
    }

    fn send_assignment(
        &self,
        op: &'static str,
        assignment: Assignment,
        update: Option<UpdateId>,
        pieces: Vec<(usize, Piece)>,
        shards: Vec<usize>,
    ) -> Result<PushOutcome> {
        let (run, _) = self.in_run()?;
        self.send_parts(op, run, pieces, shards, |parts| {
            Request::Assign(Assign {
                update: update.map(UpdateId::key),
                assignment,
                parts,
            })
        })
    }
}

/// Refuses NaN and infinity.
fn finite(variable: &VariableRef, gradient: &Gradient) -> Result<()> {
    let values = match gradient {
        Gradient::Dense(values) => values,
        Gradient::Sparse { rows, .. } | Gradient::Table { rows, .. } => rows,
    };
    if elements::all_finite(values.dtype(), values.as_bytes()) {
        Ok(())
    } else {
        Err(PsError::NonFinite {
            name: variable.name().to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use burn::tensor::DType;
    use distribute_core::Sgd;

    use super::*;
    use crate::{ClientOptions, OptimizerSpec, ParameterServer, RoundRobin, RunId, RunOptions};
    use crate::{ServerOptions, VariableSpec};

    const LIMIT: Duration = Duration::from_secs(20);

    fn floats(value: f32) -> TensorData {
        TensorData::new(vec![value; 4], [4])
    }

    /// Two servers that refuse stale gradients, and half a variable on each.
    struct Cluster {
        addresses: Vec<String>,
        client: VariableClient,
        run: RunId,
        w: VariableRef,
        _servers: Vec<ParameterServer>,
    }

    impl Cluster {
        fn new(bound: u64) -> Self {
            let bind = |_| ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
            let servers: Vec<ParameterServer> = (0..2).map(bind).collect();
            let addresses: Vec<_> = servers.iter().map(|it| it.address().to_string()).collect();
            let client = VariableClient::connect(&addresses, ClientOptions::default()).unwrap();
            let (run, policy) = (RunId::random().unwrap(), StalenessPolicy::Refuse);
            let rules = RunOptions {
                staleness: Some(Staleness { bound, policy }),
                ..RunOptions::default()
            };
            client.attach(run, rules).unwrap();
            let spec = VariableSpec {
                name: "w".to_string(),
                shape: vec![4],
                dtype: DType::F32,
                optimizer: Some(OptimizerSpec::of(&Sgd::new(1.0))),
            };
            let halves = crate::partitioners::FixedShardsPartitioner { num_shards: 2 };
            let placement = RoundRobin::new(2).unwrap().place(&[4], 4, Some(&halves));
            let w = client.create(&spec, &placement.unwrap()).unwrap();
            client.initialize(&w, floats(0.0)).unwrap();
            Self {
                addresses,
                client,
                run,
                w,
                _servers: servers,
            }
        }

        fn id(&self, closure: u64) -> UpdateId {
            UpdateId {
                run: self.run,
                closure,
                sequence: 0,
            }
        }

        fn versions(&self) -> Versions {
            let pulled = self.client.pull(std::slice::from_ref(&self.w), &[], None);
            pulled.unwrap().swap_remove(0).versions
        }

        fn push(&self, closure: u64, base: &Versions) -> Result<PushOutcome> {
            let gradients = vec![(self.w.clone(), Gradient::Dense(floats(-1.0)))];
            let base = std::slice::from_ref(base);
            self.client.push(self.id(closure), gradients, base)
        }

        /// A worker whose update is decided, and not sent.
        fn decided(&self, closure: u64, base: &Versions) -> VariableClient {
            let worker =
                VariableClient::connect(&self.addresses, ClientOptions::default()).unwrap();
            worker.join(self.run).unwrap();
            let pieces: Vec<_> = self
                .w
                .cut("push", floats(-1.0), &base.0, false)
                .unwrap()
                .into_iter()
                .map(|piece| (0, piece))
                .collect();
            worker.prepare(self.id(closure), self.run, &pieces).unwrap();
            worker
        }
    }

    /// A worker that is gone after its update was decided blocks no other, and its update
    /// may come again.
    #[test]
    fn a_decided_update_whose_worker_is_gone_is_forgotten() {
        let cluster = Cluster::new(0);
        let base = cluster.versions();
        let lost = cluster.decided(1, &base);
        let error = cluster.push(2, &base).unwrap_err();
        assert!(matches!(error, PsError::Stale { lag: 1, .. }), "{error}");
        drop(lost);
        let begun = Instant::now();
        while cluster.push(2, &base).is_err() {
            let held = "a connection that has ended holds its place";
            assert!(begun.elapsed() < LIMIT, "{held}");
        }
        assert!(matches!(cluster.push(1, &base), Err(PsError::Stale { .. })));
        assert_eq!(cluster.push(1, &cluster.versions()).unwrap().applied, 2);
        assert_eq!(cluster.versions().0, [3, 3]);
    }

    /// No update overtakes a decided one beyond its bound; calls that wait for it are woken when it
    /// is applied, or when its connection ends.
    #[test]
    fn who_would_overtake_a_decided_update_waits_until_it_has_come_or_is_gone() {
        for comes in [true, false] {
            let cluster = Cluster::new(1);
            let base = cluster.versions();
            let slow = cluster.decided(1, &base);
            assert_eq!(cluster.push(2, &base).unwrap().applied, 2);
            std::thread::scope(|scope| {
                let (done, waiting) = std::sync::mpsc::channel();
                let cluster = &cluster;
                scope.spawn(move || done.send(cluster.push(3, &cluster.versions())).unwrap());
                let early = waiting.recv_timeout(Duration::from_millis(300));
                assert!(early.is_err(), "it has overtaken: {early:?}");
                if comes {
                    let gradients = vec![(cluster.w.clone(), Gradient::Dense(floats(-1.0)))];
                    let base = std::slice::from_ref(&base);
                    let pushed = slow.push(cluster.id(1), gradients, base).unwrap();
                    assert_eq!(pushed.versions[0].0, [3, 3]);
                }
                drop(slow);
                let pushed = waiting.recv_timeout(LIMIT).unwrap().unwrap();
                let version = if comes { 4 } else { 3 };
                assert_eq!(pushed.versions[0].0, [version; 2]);
            });
        }
    }

    /// As a push, an assignment of a closure does not overtake the decided update of another one.
    #[test]
    fn an_assignment_waits_for_a_decided_update_until_it_has_come_or_will_not() {
        for end in ["applied", "withdrawn", "gone"] {
            let cluster = Cluster::new(0);
            let base = cluster.versions();
            let slow = cluster.decided(1, &base);
            std::thread::scope(|scope| {
                let (done, waiting) = std::sync::mpsc::channel();
                let cluster = &cluster;
                let assign = || {
                    let (id, value) = (cluster.id(2), floats(7.0));
                    cluster.client.assign(id, &cluster.w, value)
                };
                scope.spawn(move || done.send(assign()).unwrap());
                let early = waiting.recv_timeout(Duration::from_millis(300));
                assert!(early.is_err(), "it has overtaken: {early:?}");
                match end {
                    "applied" => {
                        let gradients = vec![(cluster.w.clone(), Gradient::Dense(floats(-1.0)))];
                        let base = std::slice::from_ref(&base);
                        let pushed = slow.push(cluster.id(1), gradients, base).unwrap();
                        assert_eq!(pushed.versions[0].0, [2, 2]);
                    }
                    "withdrawn" => {
                        slow.tell("push", || Request::Withdraw((1, 0))).unwrap();
                    }
                    _ => drop(slow),
                }
                let assigned = waiting.recv_timeout(LIMIT).unwrap().unwrap();
                let version = if end == "applied" { 3 } else { 2 };
                assert_eq!(assigned.versions[0].0, [version; 2], "{end}");
                assert_eq!(cluster.client.read("w").unwrap(), floats(7.0), "{end}");
            });
            // Its own place was free at once: the next update is not refused for it.
            assert_eq!(cluster.push(3, &cluster.versions()).unwrap().applied, 2);
        }
    }
}
