//! The cases of `op = loss_scale`: an optimizer inside of a `LossScaleOptimizer`.

use std::sync::Arc;

use burn::tensor::{Device, Shape, Tensor, TensorData};
use distribute_core::{DefaultStrategy, LossScale, TrainState};
use serde_json::{Value, json};

use super::{ReplicaGradients, Run, Setup, Tensors, gradients, sum};
use crate::case::Case;
use crate::compare::equal;
use crate::env::Env;
use crate::families::support::{Variables, expected};
use crate::json::Fields;
use crate::outcome::{Checked, Deviation, Failure, Outcome};

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    let strategy = &*env.strategy(case)?;
    let rule = Scale::of(case)?;
    let steps = gradients(case)?;
    let deviation = deviation(case, rule.clone(), &steps)?;
    let plain = Setup::of(case.inputs.field("optimizer")?)?;
    let scaled = Setup {
        optimizer: Arc::clone(&plain.optimizer),
        loss_scale: LossScale::dynamic()
            .initial(rule.value)?
            .growth_steps(rule.growth_steps)?,
        ..plain
    };
    let (variables, tolerance) = (case.inputs.field("variables")?, env.tolerance());
    let default = DefaultStrategy::new();
    let mut pair = Pair {
        run: Run::new(strategy, &scaled, variables, tolerance)?,
        alone: Run::new(&default, &plain, variables, tolerance)?,
        rule,
    };
    let wanted = expected(case)?.list("steps")?;
    equal(&json!(wanted.len()), &json!(steps.len()))?;
    for (index, (gradients, wanted)) in steps.into_iter().zip(wanted).enumerate() {
        let result = pair.step(gradients, wanted, deviation);
        result.map_err(|failure| failure.at(format!("step {index}: ")))?;
    }
    Ok(deviation.map_or(Outcome::Passed, Outcome::Deviation))
}

/// The rule of a scale, as numbers.
#[derive(Clone)]
struct Scale {
    value: f64,
    good_steps: u64,
    growth_steps: u64,
    skipped: u64,
}

/// Between which a scale stays.
const BOUNDS: [f64; 2] = [1.0, (1_u128 << 127) as f64];

impl Scale {
    fn of(case: &Case) -> Result<Self, Failure> {
        let number = |name: &str| {
            let value = case.inputs.field(name)?;
            value.as_f64().ok_or_else(|| Failure::schema(name))
        };
        let growth_steps = case.inputs.field("dynamic_growth_steps")?;
        let positive = growth_steps.as_u64().filter(|steps| *steps > 0);
        Ok(Self {
            value: number("initial_scale")?,
            good_steps: 0,
            growth_steps: positive.ok_or_else(|| Failure::schema(growth_steps))?,
            skipped: 0,
        })
    }

    /// One update; whether the scale would have left its bounds.
    fn step(&mut self, is_finite: bool) -> bool {
        self.good_steps = if is_finite { self.good_steps + 1 } else { 0 };
        self.skipped += u64::from(!is_finite);
        let wished = if !is_finite {
            self.value / 2.0
        } else if self.good_steps == self.growth_steps {
            self.value * 2.0
        } else {
            self.value
        };
        self.good_steps %= self.growth_steps;
        self.value = wished.clamp(BOUNDS[0], BOUNDS[1]);
        self.value != wished
    }
}

fn is_finite(gradients: &ReplicaGradients) -> bool {
    let mut all = gradients.iter().flatten();
    all.all(|gradient| gradient.iter::<f32>().all(f32::is_finite))
}

/// Where this library does something else with a case of these gradients.
fn deviation(
    case: &Case,
    mut rule: Scale,
    steps: &[Vec<ReplicaGradients>],
) -> Result<Option<Deviation>, Failure> {
    let is_keras_3 = case.inputs.text("library")? == "keras3";
    let (mut first_decides, mut leaves_bounds, mut is_subnormal) = (false, false, false);
    for step in steps {
        let all = is_finite(&sum(std::slice::from_ref(step), 1));
        first_decides |= step.first().is_some_and(is_finite) != all;
        is_subnormal |= ((1.0 / rule.value) as f32).is_subnormal();
        leaves_bounds |= rule.step(all);
    }
    Ok(match () {
        () if is_keras_3 && first_decides => Some(Deviation::AnyReplica),
        () if is_keras_3 && leaves_bounds => Some(Deviation::ScaleBounds),
        () if !is_keras_3 && is_subnormal => Some(Deviation::SubnormalScale),
        () if !is_keras_3 && rule.skipped > 0 => Some(Deviation::SkippedCount),
        () => None,
    })
}

/// The run of a case, and what it must be equal to: one replica without a loss scale that is given
/// the sum over the replicas divided by the scale, or nothing where that is not finite.
struct Pair<'a> {
    run: Run<'a>,
    alone: Run<'a>,
    rule: Scale,
}

impl Pair<'_> {
    fn step(
        &mut self,
        gradients: Vec<ReplicaGradients>,
        wanted: &Value,
        deviation: Option<Deviation>,
    ) -> Result<(), Failure> {
        let sum = sum(std::slice::from_ref(&gradients), 1);
        let is_finite = is_finite(&sum);
        let before = self.run.found()?.0;
        if deviation.is_none_or(|found| found == Deviation::SkippedCount) {
            self.run.same_scales(wanted, "scale_before")?;
        }
        self.run.step(gradients)?;
        if is_finite {
            let scale = self.rule.value;
            let unscaled = sum.into_iter().map(|it| {
                let sum = Tensor::<1>::from_data(it?, &Device::flex());
                Some(sum.div_scalar(scale).into_data())
            });
            self.alone.step(vec![unscaled.collect()])?;
        }
        self.rule.step(is_finite);
        self.run.equals(&self.alone)?;
        for state in self.run.state.values()? {
            let (own, rule) = (state.loss_scale(), &self.rule);
            let found = (own.scale(), own.good_steps(), own.skipped_steps());
            let wanted = (rule.value, rule.good_steps, rule.skipped);
            equal(&json!(wanted), &json!(found))?;
        }
        match deviation {
            Some(Deviation::AnyReplica | Deviation::ScaleBounds) => Ok(()),
            // The variables are compared with one replica's.
            Some(Deviation::SubnormalScale) => self.run.same_scales(wanted, "scale_after"),
            _ => self.compare(wanted, before, deviation),
        }
    }

    /// Compares with what the file says about a step.
    fn compare(
        &self,
        wanted: &Value,
        before: Vec<Tensors>,
        deviation: Option<Deviation>,
    ) -> Result<(), Failure> {
        self.run.same_scales(wanted, "scale_after")?;
        let states = self.run.state.values()?.iter();
        let counters: Vec<u64> = states.map(|it| it.loss_scale().good_steps()).collect();
        equal(wanted.field("step_counter")?, &json!(counters))?;
        let pairs = self.run.found()?.0.into_iter().zip(before);
        let changed = pairs.map(|(after, before)| {
            let mut variables = after.iter().filter(|(name, _)| name.starts_with("model/"));
            variables.any(|(name, after)| before.get(name) != Some(after))
        });
        equal(
            wanted.field("changed")?,
            &json!(changed.collect::<Vec<_>>()),
        )?;
        let skipped = match deviation {
            Some(Deviation::SkippedCount) => self.rule.skipped,
            _ => 0,
        };
        self.run.compare(wanted, skipped)
    }
}

impl Run<'_> {
    /// Compares every replica's loss scale.
    fn same_scales(&self, wanted: &Value, name: &str) -> Result<(), Failure> {
        let states = self.state.values()?.iter();
        let scale = |it: &TrainState<Variables>| it.loss_scale().scale() as f32;
        let scales = states.map(|it| TensorData::new(vec![scale(it)], Shape::new([])));
        let scales: Vec<_> = scales.collect();
        let same = self.tolerance.same_list(wanted.field(name)?, &scales);
        same.map_err(|failure| failure.at(name))
    }
}
