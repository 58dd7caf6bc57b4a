//! Pushes and assignments.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::TensorData;
use bytes::Bytes;

use crate::client::split::Piece;
use crate::client::{VariableClient, in_parallel};
use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::server::elements;
use crate::update::{
    Gradient, NonFinite, PushOutcome, Staleness, StalenessPolicy, UpdateId, Versions,
};
use crate::variable::VariableRef;

/// What is sent to one server in one call.
#[derive(Default)]
struct Batch {
    parts: Vec<wire::Part>,
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
            self.prepare(update, &run, &pieces)?;
        }
        self.send_parts("push", path!("Push"), pieces, counts, |parts| wire::Push {
            run: run.clone(),
            closure: update.closure,
            sequence: update.sequence,
            bf16,
            parts,
            prepared,
        })
    }

    /// Has an update decided by all of its servers: refused by one, it is applied by none. They are
    /// asked in their order, so that two updates never wait for each other.
    fn prepare(&self, update: UpdateId, run: &[u8], pieces: &[(usize, Piece)]) -> Result<()> {
        let mut requests: BTreeMap<usize, wire::Prepare> = BTreeMap::new();
        for (_, piece) in pieces {
            let request = requests
                .entry(piece.server)
                .or_insert_with(|| wire::Prepare {
                    run: run.to_vec(),
                    closure: update.closure,
                    sequence: update.sequence,
                    ..wire::Prepare::default()
                });
            request.parts.push(piece.part.clone());
        }
        let servers = self.inner.servers.clone();
        let withdrawn = wire::Control {
            run: run.to_vec(),
            withdrawn: Some(wire::Withdrawn {
                closure: update.closure,
                sequence: update.sequence,
            }),
            ..wire::Control::default()
        };
        self.inner.driver.run(async move {
            let mut refused = None;
            let mut holding = Vec::new();
            for (server, mut request) in requests {
                let server = &servers[server];
                request.only_ask = refused.is_some();
                let path = path!("Prepare");
                match server.ask("push", path, request, Vec::new()).await {
                    // It comes again, and was decided the first time.
                    Ok(wire::Prepared { has_it: true }) => return Ok(()),
                    Ok(wire::Prepared { has_it: false }) => holding.push(server),
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
            let Some(error) = refused else {
                return Ok(());
            };
            for server in holding {
                // A server that cannot be told forgets it with the connection.
                let _ = server
                    .send("push", path!("Control"), withdrawn.clone())
                    .await;
            }
            Err(error)
        })
    }

    fn same_run(&self, update: UpdateId) -> Result<()> {
        match self.run() {
            Some(run) if run == update.run => Ok(()),
            _ => Err(PsError::OtherRun {
                server: 0,
                address: self.addresses().swap_remove(0),
                reason: format!("the update is from run {}, this client is not", update.run),
            }),
        }
    }

    /// Sends parts to their servers, and puts the outcomes together.
    pub(super) fn send_parts<H: prost::Message + 'static>(
        &self,
        op: &'static str,
        path: &'static str,
        pieces: Vec<(usize, Piece)>,
        shards: Vec<usize>,
        header: impl Fn(Vec<wire::Part>) -> H,
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
            let header = header(batch.parts);
            async move {
                let reply = server.ask::<wire::Pushed>(op, path, header, batch.payload);
                Ok((batch.places, reply.await?.outcomes))
            }
        });
        let replies = self.inner.driver.run(in_parallel(works.collect()))?;
        let zeros = |count: usize| Versions(vec![0; count]);
        let zeros: Vec<Versions> = shards.into_iter().map(zeros).collect();
        let mut outcome = PushOutcome {
            versions: zeros.clone(),
            updates: zeros,
            ..PushOutcome::default()
        };
        for (places, outcomes) in replies {
            for ((index, shard), done) in places.into_iter().zip(outcomes) {
                outcome.versions[index].0[shard] = done.version;
                outcome.updates[index].0[shard] = done.updates;
                match done.what {
                    0 => outcome.applied += 1,
                    1 => outcome.already_applied += 1,
                    2 => outcome.accumulated += 1,
                    _ => outcome.dropped += 1,
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
        let outcome = self.assignment("initialize", 0, None, variable, value)?;
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
        self.assignment("assign", 0, Some(update), variable, value)
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
        self.assignment("assign_add", 1, Some(update), variable, value)
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
        self.assignment("assign_sub", 2, Some(update), variable, value)
    }

    fn assignment(
        &self,
        op: &'static str,
        operation: u32,
        update: Option<UpdateId>,
        variable: &VariableRef,
        value: TensorData,
    ) -> Result<PushOutcome> {
        let (run, _) = self.in_run()?;
        update.map_or(Ok(()), |update| self.same_run(update))?;
        let pieces = variable.cut(op, value, &[], false)?;
        let pieces = pieces.into_iter().map(|piece| (0, piece)).collect();
        let shards = vec![variable.placement().shards.len()];
        self.send_parts(op, path!("Assign"), pieces, shards, |parts| wire::Assign {
            run: run.clone(),
            closure: update.map(|update| update.closure),
            sequence: update.map_or(0, |update| update.sequence),
            operation,
            parts,
        })
    }
}

/// Refuses NaN and infinity.
fn finite(variable: &VariableRef, gradient: &Gradient) -> Result<()> {
    let values = match gradient {
        Gradient::Dense(values) => values,
        Gradient::Sparse { rows, .. } | Gradient::Table { rows, .. } => rows,
    };
    match elements::all_finite(values.dtype(), values.as_bytes()) {
        true => Ok(()),
        false => Err(PsError::NonFinite {
            name: variable.name().to_string(),
        }),
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
            let worker = VariableClient::connect(&self.addresses, ClientOptions::default());
            let worker = worker.unwrap();
            worker.join(self.run).unwrap();
            let pieces = self.w.cut("push", floats(-1.0), &base.0, false).unwrap();
            let pieces: Vec<_> = pieces.into_iter().map(|piece| (0, piece)).collect();
            let run = self.run.0.to_le_bytes();
            worker.prepare(self.id(closure), &run, &pieces).unwrap();
            worker
        }
    }

    /// A worker that is gone after its update was decided stands in nobody's way, and its update
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

    /// Nobody overtakes a decided update beyond its bound; who waits for it is woken when it is
    /// applied, or when its connection ends.
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
                        let withdrawn = Some(wire::Withdrawn {
                            closure: 1,
                            sequence: 0,
                        });
                        let control = wire::Control {
                            withdrawn,
                            ..wire::Control::default()
                        };
                        slow.control("push", control).unwrap();
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
