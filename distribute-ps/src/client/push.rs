//! Pushes and assignments.

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use bytes::Bytes;

use crate::client::split::Piece;
use crate::client::{VariableClient, in_parallel};
use crate::error::{PsError, Result};
use crate::generated as wire;
use crate::server::elements;
use crate::update::{Gradient, NonFinite, PushOutcome, UpdateId, Versions};
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
    /// On each server the push is checked as a whole before anything of it is applied.
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
        self.send_parts("push", path!("Push"), pieces, counts, |parts| wire::Push {
            run: run.clone(),
            closure: update.closure,
            sequence: update.sequence,
            bf16,
            parts,
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
