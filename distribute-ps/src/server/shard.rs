//! One shard: its value, the optimizer's slots beside it, and which updates it has had.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use burn::tensor::DType;
use parking_lot::{Mutex, MutexGuard};

use crate::error::{PsError, Result};
use crate::rpc::rope::Rope;
use crate::server::elements;
use crate::server::optimizers::{Built, Rule};
use crate::server::segments::{SEGMENT, Segments};
use crate::update::{OUTSIDE, UpdateKey};
use crate::wire::{Assignment, Combine, Counts, Outcome, ShardSpec, UpdateEffect};

/// The most update ids that a shard remembers.
const UPDATE_IDS_MAX: usize = 1 << 20;
/// How many of them of each source outside of closures.
const OUTSIDE_REMEMBERED: u32 = 1024;

/// A gradient's or value's bytes as they came, perhaps narrowed on their way.
#[derive(Debug, Clone)]
pub(super) struct Payload {
    pub(super) rope: Rope,
    /// Whether `rope` holds bf16 for a variable of f32.
    pub(super) is_narrow: bool,
}

impl Payload {
    /// Bytes of the variable's type.
    pub(super) fn len(&self) -> usize {
        self.rope.len() * (1 + usize::from(self.is_narrow))
    }

    fn read(&self, offset: usize, count: usize) -> Vec<u8> {
        if self.is_narrow {
            elements::widen(&self.rope.read(offset / 2, count / 2))
        } else {
            self.rope.read(offset, count)
        }
    }

    /// The same, from where it lies if it is in one piece there.
    fn view(&self, offset: usize, count: usize) -> Cow<'_, [u8]> {
        let in_place = if self.is_narrow {
            None
        } else {
            self.rope.slice(offset, count)
        };
        in_place.map_or_else(|| self.read(offset, count).into(), Cow::Borrowed)
    }
}

/// A gradient of one shard.
#[derive(Debug, Clone)]
pub(super) struct ShardGradient {
    /// The rows that it has, absent for a dense one.
    pub(super) rows: Option<Vec<u64>>,
    pub(super) values: Payload,
}

/// What a gradient will do to its shard.
#[derive(Debug)]
pub(super) enum Plan {
    Nothing(UpdateEffect),
    /// It waits for the others of its round.
    Accumulate(ShardGradient),
    /// An optimizer that cannot fail is applied in place.
    Apply(ShardGradient),
    /// An optimizer has been applied to a copy.
    Replace {
        value: Segments,
        slots: Vec<Segments>,
    },
}

/// The rules under which an update comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct UpdateTerms {
    /// Closure and sequence; absent for updates that may be repeated.
    pub(super) id: Option<UpdateKey>,
    /// Closures below are finished.
    pub(super) low_water: u64,
    pub(super) base: Option<u64>,
    pub(super) synchronous: Option<usize>,
    pub(super) learning_rate: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) value: Option<Segments>,
    /// Empty until the first update.
    pub(super) slots: Vec<Segments>,
    pub(super) counts: Counts,
    applied: BTreeSet<UpdateKey>,
    round: Vec<ShardGradient>,
}

/// One shard of a variable.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) spec: ShardSpec,
    pub(super) dtype: DType,
    /// Bytes of the shard, and of one of its rows.
    pub(super) bytes: usize,
    pub(super) row_bytes: usize,
    pub(super) optimizer: Option<Built>,
    state: Mutex<State>,
}

impl Shard {
    pub(super) fn new(
        spec: ShardSpec,
        bytes: usize,
        row_bytes: usize,
        optimizer: Option<Built>,
    ) -> Self {
        Self {
            dtype: spec.variable.dtype,
            spec,
            bytes,
            row_bytes,
            optimizer,
            state: Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.spec.variable.name
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The same without waiting; `None` while it is read or changed.
    pub(super) fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock()
    }

    /// Whether its optimizer is applied by arithmetic of this crate.
    pub(super) fn has_kernel(&self) -> bool {
        let built = self.optimizer.as_ref();
        self.dtype == DType::F32 && built.is_some_and(|built| built.kernel.is_some())
    }

    fn uninitialized(&self) -> PsError {
        PsError::Uninitialized {
            name: self.name().to_string(),
        }
    }

    /// The value at one version.
    pub(super) fn read(&self) -> Result<(Segments, Counts)> {
        self.read_in(&self.state())
    }

    /// The same without waiting; `None` while it is changed.
    pub(super) fn try_read(&self) -> Option<Result<(Segments, Counts)>> {
        self.try_state().map(|state| self.read_in(&state))
    }

    fn read_in(&self, state: &State) -> Result<(Segments, Counts)> {
        let value = state.value.clone().ok_or_else(|| self.uninitialized())?;
        Ok((value, state.counts))
    }

    /// Some rows at one version.
    pub(super) fn read_rows(&self, rows: &[u64]) -> Result<(Vec<u8>, Counts)> {
        self.check_rows(rows)?;
        let state = self.state();
        let value = state.value.as_ref().ok_or_else(|| self.uninitialized())?;
        let mut bytes = Vec::with_capacity(rows.len() * self.row_bytes);
        for row in rows {
            value.copy(*row as usize * self.row_bytes, self.row_bytes, &mut bytes);
        }
        Ok((bytes, state.counts))
    }

    fn rule<'a>(&'a self, built: &'a Built, terms: &UpdateTerms, step: u64) -> Rule<'a> {
        Rule::new(built, self.name(), terms.learning_rate, step, self.dtype)
    }

    /// The names of the optimizer's slots; none without an optimizer.
    pub(super) fn slots(&self) -> &[&'static str] {
        let built = self.optimizer.as_ref();
        built.map_or(&[], |built| built.optimizer.slots())
    }

    /// Row numbers are those within the shard.
    pub(super) fn check_rows(&self, rows: &[u64]) -> Result<()> {
        let ShardSpec {
            variable,
            offset,
            rows: own,
            ..
        } = &self.spec;
        match rows.iter().find(|row| **row >= *own as u64) {
            None => Ok(()),
            Some(row) => Err(PsError::Row {
                name: self.name().to_string(),
                row: row.saturating_add(*offset as u64),
                rows: variable.shape.first().copied().unwrap_or(1) as u64,
            }),
        }
    }

    /// What keeps an assignment from being made, before any of its shards is changed.
    pub(super) fn check_assign(&self, assignment: Assignment, terms: &UpdateTerms) -> Result<()> {
        let state = self.state();
        let is_made = assignment == Assignment::Assign || state.is_duplicate(terms);
        if is_made || state.value.is_some() {
            state.check_room(terms)
        } else {
            Err(self.uninitialized())
        }
    }

    /// Puts or adds a value.
    pub(super) fn assign(
        &self,
        assignment: Assignment,
        value: &Payload,
        terms: &UpdateTerms,
    ) -> Result<Outcome> {
        let mut state = self.state();
        if state.is_duplicate(terms) {
            return Ok((UpdateEffect::AlreadyApplied, state.counts));
        }
        match assignment {
            Assignment::Assign => state.value = Some(Segments::from_rope(&value.rope)),
            Assignment::Combine(operation) => {
                let target = state.value.as_mut().ok_or_else(|| self.uninitialized())?;
                for index in 0..target.count() {
                    let part = target.part_mut(index);
                    let other = value.view(index * SEGMENT, part.len());
                    elements::combine(self.dtype, operation, part, &other);
                }
            }
        }
        state.remember(terms);
        let version = state.counts.version + 1;
        state.replaced(version);
        Ok((UpdateEffect::Applied, state.counts))
    }

    /// Whether it has had this update, and its version.
    pub(super) fn look(&self, terms: &UpdateTerms) -> (bool, u64) {
        let state = self.state();
        (state.is_duplicate(terms), state.counts.version)
    }

    /// The version that a gradient was computed at.
    pub(super) fn base(&self, base: Option<u64>) -> Result<u64> {
        base.ok_or_else(|| {
            PsError::invalid(format!(
                "push of variable `{}`: this run needs the versions that the gradient was \
                 computed at (staleness bound or synchronous mode)",
                self.name()
            ))
        })
    }

    /// Finds out what a gradient will do. All that can go wrong goes wrong here, where nothing is
    /// changed yet: an optimizer of which that is not known is applied to a copy.
    pub(super) fn plan(&self, gradient: ShardGradient, terms: &UpdateTerms) -> Result<Plan> {
        let state = self.state();
        let gradient = match self.plan_in(&state, gradient, terms)? {
            ControlFlow::Break(plan) => return Ok(plan),
            ControlFlow::Continue(gradient) => gradient,
        };
        let (value, built) = (state.value.as_ref(), self.optimizer.as_ref());
        let (Some(value), Some(built)) = (value, built) else {
            return Err(self.uninitialized());
        };
        let (mut value, mut slots) = (value.clone(), state.slots.clone());
        let rule = self.rule(built, terms, state.counts.updates + 1);
        drop(state);
        self.apply(&rule, &mut value, &mut slots, &gradient)?;
        Ok(Plan::Replace { value, slots })
    }

    /// [`plan`](Self::plan) as far as it takes no time: a gradient that goes on is for an optimizer
    /// that is to be applied to a copy.
    pub(super) fn plan_in(
        &self,
        state: &State,
        gradient: ShardGradient,
        terms: &UpdateTerms,
    ) -> Result<ControlFlow<Plan, ShardGradient>> {
        if state.is_duplicate(terms) {
            let plan = Plan::Nothing(UpdateEffect::AlreadyApplied);
            return Ok(ControlFlow::Break(plan));
        }
        if state.value.is_none() {
            return Err(self.uninitialized());
        }
        state.check_room(terms)?;
        let gradient = match terms.synchronous {
            None => gradient,
            Some(_) if self.base(terms.base)? != state.counts.version => {
                return Ok(ControlFlow::Break(Plan::Nothing(UpdateEffect::Dropped)));
            }
            Some(wanted) if state.round.len() + 1 < wanted => {
                return Ok(ControlFlow::Break(Plan::Accumulate(gradient)));
            }
            Some(_) => {
                let mut round = state.round.clone();
                round.push(gradient);
                self.mean(round)?
            }
        };
        if self.optimizer.is_none() {
            return Err(PsError::invalid(format!(
                "push of variable `{}`: it has no optimizer; use assign_add",
                self.name()
            )));
        }
        Ok(if self.has_kernel() {
            ControlFlow::Break(Plan::Apply(gradient))
        } else {
            ControlFlow::Continue(gradient)
        })
    }

    /// Does what was planned. For a plan that depends on the others that have come
    /// (`Accumulate`, `Replace`) nothing may have come in between.
    pub(super) fn commit(&self, plan: Plan, terms: &UpdateTerms) -> Result<Outcome> {
        self.commit_in(&mut self.state(), plan, terms)
    }

    /// The same, for who has the shard.
    pub(super) fn commit_in(
        &self,
        state: &mut State,
        plan: Plan,
        terms: &UpdateTerms,
    ) -> Result<Outcome> {
        if state.is_duplicate(terms) {
            return Ok((UpdateEffect::AlreadyApplied, state.counts));
        }
        match (plan, &self.optimizer) {
            (Plan::Nothing(outcome), _) => return Ok((outcome, state.counts)),
            (Plan::Accumulate(gradient), _) => {
                state.round.push(gradient);
                state.remember(terms);
                return Ok((UpdateEffect::Accumulated, state.counts));
            }
            (Plan::Replace { value, slots }, _) => {
                state.value = Some(value);
                state.slots = slots;
            }
            (Plan::Apply(gradient), Some(built)) => {
                let rule = self.rule(built, terms, state.counts.updates + 1);
                let value = state.value.as_mut().ok_or_else(|| self.uninitialized())?;
                self.apply(&rule, value, &mut state.slots, &gradient)?;
            }
            (Plan::Apply(_), None) => return Err(self.uninitialized()),
        }
        state.round.clear();
        state.counts.version += 1;
        state.counts.updates += 1;
        state.remember(terms);
        Ok((UpdateEffect::Applied, state.counts))
    }

    /// The mean of a round; sparse only if all are.
    fn mean(&self, round: Vec<ShardGradient>) -> Result<ShardGradient> {
        let count = round.len();
        let mut rows = Vec::new();
        let mut sum = Vec::new();
        if round.iter().all(|gradient| gradient.rows.is_some()) {
            for gradient in round {
                rows.extend(gradient.rows.unwrap_or_default());
                sum.extend(gradient.values.read(0, gradient.values.len()));
            }
            elements::divide(self.dtype, &mut sum, count);
            return Ok(ShardGradient::of(Some(rows), sum));
        }
        sum.resize(self.bytes, 0);
        for gradient in round {
            let values = gradient.values.read(0, gradient.values.len());
            match gradient.rows {
                None => elements::combine(self.dtype, Combine::Add, &mut sum, &values),
                Some(rows) => {
                    for (row, value) in rows.iter().zip(values.chunks(self.row_bytes.max(1))) {
                        let begin = *row as usize * self.row_bytes;
                        let target = &mut sum[begin..begin + self.row_bytes];
                        elements::combine(self.dtype, Combine::Add, target, value);
                    }
                }
            }
        }
        elements::divide(self.dtype, &mut sum, count);
        Ok(ShardGradient::of(None, sum))
    }

    fn apply(
        &self,
        rule: &Rule<'_>,
        value: &mut Segments,
        slots: &mut Vec<Segments>,
        gradient: &ShardGradient,
    ) -> Result<()> {
        if slots.is_empty() {
            *slots = rule.built.new_slots(value, self.bytes, self.dtype);
        }
        match &gradient.rows {
            None => apply_dense(rule, value, slots, &gradient.values),
            Some(rows) => self.apply_rows(rule, value, slots, rows, &gradient.values),
        }
    }

    /// Updates the rows of a sparse gradient and their slots only.
    fn apply_rows(
        &self,
        rule: &Rule<'_>,
        value: &mut Segments,
        slots: &mut [Segments],
        rows: &[u64],
        values: &Payload,
    ) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let (rows, gradient) = self.summed(rows, values);
        let gather = |from: &Segments| {
            let mut bytes = Vec::with_capacity(gradient.len());
            for row in &rows {
                from.copy(*row as usize * self.row_bytes, self.row_bytes, &mut bytes);
            }
            bytes
        };
        let mut parameter = gather(value);
        let mut updated: Vec<Vec<u8>> = slots.iter().map(gather).collect();
        let mut views: Vec<&mut [u8]> = updated.iter_mut().map(Vec::as_mut_slice).collect();
        rule.apply(&mut parameter, &gradient, &mut views)?;
        let scatter = |into: &mut Segments, bytes: &[u8]| {
            for (row, bytes) in rows.iter().zip(bytes.chunks(self.row_bytes.max(1))) {
                into.write(*row as usize * self.row_bytes, bytes);
            }
        };
        scatter(value, &parameter);
        for (slot, updated) in slots.iter_mut().zip(&updated) {
            scatter(slot, updated);
        }
        Ok(())
    }

    /// Distinct rows in ascending order, and their gradients: those with one row added up.
    fn summed(&self, rows: &[u64], values: &Payload) -> (Vec<u64>, Vec<u8>) {
        let mut places = BTreeMap::new();
        for row in rows {
            places.insert(*row, 0);
        }
        for (place, entry) in places.values_mut().enumerate() {
            *entry = place * self.row_bytes;
        }
        let mut sums = vec![0; places.len() * self.row_bytes];
        for (index, row) in rows.iter().enumerate() {
            let value = values.read(index * self.row_bytes, self.row_bytes);
            let begin = places[row];
            let target = &mut sums[begin..begin + self.row_bytes];
            elements::combine(self.dtype, Combine::Add, target, &value);
        }
        (places.into_keys().collect(), sums)
    }

    /// Forgets update ids of finished closures.
    pub(super) fn forget_below(&self, closure: u64) {
        let mut state = self.state();
        state.applied = state.applied.split_off(&(closure, 0));
    }
}

impl ShardGradient {
    fn of(rows: Option<Vec<u64>>, values: Vec<u8>) -> Self {
        Self {
            rows,
            values: Payload {
                rope: values.into(),
                is_narrow: false,
            },
        }
    }
}

impl State {
    /// The value was replaced, not by a gradient: gradients of its round that have come were
    /// computed at the one before.
    pub(super) fn replaced(&mut self, version: u64) {
        self.counts.version = version;
        self.round.clear();
    }

    /// Whether the update came before, or belongs to a closure that is finished.
    fn is_duplicate(&self, terms: &UpdateTerms) -> bool {
        terms
            .id
            .is_some_and(|id| id.0 < terms.low_water || self.applied.contains(&id))
    }

    fn remember(&mut self, terms: &UpdateTerms) {
        self.applied.extend(terms.id);
        if let Some((source, sequence)) = terms.id
            && source >= OUTSIDE
            && let Some(old) = sequence.checked_sub(OUTSIDE_REMEMBERED)
        {
            // No coordinator says when these are finished. A call is repeated at once if at all.
            let old: Vec<_> = self
                .applied
                .range((source, 0)..=(source, old))
                .copied()
                .collect();
            for id in old {
                self.applied.remove(&id);
            }
        }
    }

    fn check_room(&self, terms: &UpdateTerms) -> Result<()> {
        if terms.id.is_some() && self.applied.len() >= UPDATE_IDS_MAX {
            return Err(PsError::Full {
                what: format!(
                    "a shard remembers {UPDATE_IDS_MAX} update ids; the coordinator has to tell \
                     which closures are finished (`VariableClient::finished_below`)"
                ),
            });
        }
        Ok(())
    }

    /// How many update ids are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.applied.len()
    }
}

fn apply_dense(
    rule: &Rule<'_>,
    value: &mut Segments,
    slots: &mut [Segments],
    gradient: &Payload,
) -> Result<()> {
    for index in 0..value.count() {
        let parameter = value.part_mut(index);
        let slots = slots.iter_mut().map(|slot| slot.part_mut(index));
        let gradient = gradient.view(index * SEGMENT, parameter.len());
        rule.apply(parameter, &gradient, &mut slots.collect::<Vec<_>>())?;
    }
    Ok(())
}
