//! Constraints on parameters, for any optimizer.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{BurnOptimizer, Optimizer, ParameterUpdate, SlotStart, Updated};
use crate::macros::forward;
use crate::{Error, Result};

/// What the configuration of an optimizer calls its constraints.
const KEY: &str = "constraints";
/// Keras' epsilon, which keeps the division by a norm from zero.
const EPSILON: f64 = 1e-7;
/// The most axes that a parameter may have.
const MOST_AXES: usize = 6;

/// What a parameter is made to fulfil behind every update (Keras: `keras.constraints`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constraint {
    /// The path of the parameter, for example `conv1.weight`.
    pub path: String,
    /// The extents of the parameter, of which there are 6 at most.
    pub shape: Vec<usize>,
    /// The rule.
    pub rule: ConstraintRule,
}

/// The rule of a [`Constraint`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub enum ConstraintRule {
    /// No element is below zero (Keras: `NonNeg`).
    NonNegative,
    /// The Euclidean norms along axes are within bounds (Keras: `MinMaxNorm`; `MaxNorm` without a
    /// lower bound, `UnitNorm` with 1 as both).
    Norm {
        /// The axes of the parameter along which a norm is taken, from 0 on.
        axes: Vec<usize>,
        /// The least norm.
        at_least: f64,
        /// The largest norm.
        at_most: f64,
        /// How much of the way to the bounds one update goes, from 0 to 1.
        rate: f64,
    },
}

impl Constraint {
    fn is_of(&self, path: &str) -> bool {
        // On parameter servers the name of the state stands before it.
        path.strip_suffix(self.path.as_str())
            .is_some_and(|before| before.is_empty() || before.ends_with(['.', '/']))
    }

    fn elements(&self) -> usize {
        self.shape
            .iter()
            .fold(1, |all, extent| all.saturating_mul(*extent))
    }

    /// The parameter, flattened, as the rule makes it.
    fn applied(&self, parameter: Tensor<1>) -> Result<Tensor<1>> {
        let ConstraintRule::Norm {
            axes,
            at_least,
            at_most,
            rate,
        } = &self.rule
        else {
            return Ok(parameter.clamp_min(0.0));
        };
        let found = parameter.dims();
        if found != [self.elements()] || self.shape.len() > MOST_AXES {
            return Err(Error::invalid(format!(
                "the constraint on `{}` is for the whole parameter of shape {:?}, here are {} of \
                 its elements; with parameter servers use no partitioner for it",
                self.path, self.shape, found[0]
            )));
        }
        let mut shape = [1; MOST_AXES];
        for (extent, own) in shape.iter_mut().zip(&self.shape) {
            *extent = *own;
        }
        let whole = parameter.reshape(shape);
        let squares = whole.clone() * whole.clone();
        let norms = axes.iter().filter(|axis| **axis < MOST_AXES);
        let norms = norms.fold(squares, |sum, axis| sum.sum_dim(*axis)).sqrt();
        let within = norms.clone().clamp(*at_least, *at_most);
        let wanted = within.mul_scalar(*rate) + norms.clone().mul_scalar(1.0 - rate);
        let factors = wanted / norms.add_scalar(EPSILON);
        Ok((whole * factors).reshape(found))
    }
}

/// An optimizer behind whose update parameters are made to fulfil constraints (Keras: the argument
/// `constraint` of a variable, such as `kernel_constraint` of a layer).
///
/// A constraint is computed of the updated parameter alone, so that every replica makes the same
/// bits. It works wherever the optimizer does: also in compiled steps, and on parameter servers for
/// parameters that are not partitioned. A parameter without a gradient is left alone.
///
/// ```
/// use distribute_core::optim::{Constrained, Constraint, ConstraintRule, Optimizer, Sgd};
///
/// let positive = Constraint {
///     path: "weight".to_string(),
///     shape: vec![3, 2],
///     rule: ConstraintRule::NonNegative,
/// };
/// assert_eq!(Constrained::of(Sgd::new(0.1), vec![positive]).name(), "sgd");
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Constrained<O> {
    inner: O,
    constraints: Vec<Constraint>,
}

impl<O: Optimizer> Constrained<O> {
    /// This optimizer with these constraints; the name of the optimizer stays. A path that no
    /// parameter of the model has is an error of the first update.
    pub fn of(optimizer: O, constraints: Vec<Constraint>) -> Self {
        Self {
            inner: optimizer,
            constraints,
        }
    }
}

impl<O: Optimizer> Optimizer for Constrained<O> {
    forward! { self => self.inner;
        fn name() -> &'static str;
        fn slots() -> &[&'static str];
        fn slot_start(slot: &str) -> SlotStart;
        fn learning_rate() -> f64;
        fn coefficients(learning_rate: f64, step: u64) -> Vec<f64>;
        fn burn() -> Option<&BurnOptimizer>;
    }

    fn config(&self) -> Value {
        let mut config = self.inner.config();
        // None inside where there is no such key.
        let mut all: Vec<Constraint> = Vec::deserialize(&config[KEY]).unwrap_or_default();
        all.extend(self.constraints.iter().cloned());
        config[KEY] = json!(all);
        config
    }

    fn check_parameters(&self, paths: &[String]) -> Result<()> {
        let is_there = |constraint: &&Constraint| paths.iter().any(|path| constraint.is_of(path));
        match self.constraints.iter().find(|one| !is_there(one)) {
            None => self.inner.check_parameters(paths),
            Some(Constraint { path, .. }) => Err(Error::invalid(format!(
                "there is a constraint on `{path}`, which no parameter of the model is ({})",
                paths.join(", ")
            ))),
        }
    }

    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated> {
        let path = of.path;
        let (parameter, slots) = self.inner.update(of)?;
        let mut mine = self.constraints.iter().filter(|one| one.is_of(path));
        let parameter = mine.try_fold(parameter, |parameter, one| one.applied(parameter))?;
        Ok((parameter, slots))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::optim::{Coefficient, Sgd, from_config};

    fn updated(rule: ConstraintRule) -> Result<Vec<f32>> {
        let path = "layer.kernel".to_string();
        let shape = vec![2, 2];
        let constrained = Constrained::of(Sgd::new(1.0), vec![Constraint { path, shape, rule }]);
        let again = from_config("sgd", &constrained.config())?;
        assert_eq!(again.config(), constrained.config());
        let device = Device::flex();
        let update = ParameterUpdate {
            path: "model/layer.kernel",
            coefficients: &[Coefficient::Host(1.0)],
            parameter: Tensor::from_data([3.0_f32, 0.0, 4.0, 0.5], &device),
            gradient: Tensor::from_data([0.0_f32, 0.0, 0.0, 1.0], &device),
            slots: Vec::new(),
            whole: None,
        };
        let (parameter, _) = again.update(update)?;
        Ok(parameter.into_data().try_to_vec().unwrap())
    }

    /// The columns are (3, 4) and (0, -0.5): `keras.constraints` of the same numbers.
    #[test]
    fn the_updated_parameter_fulfils_the_rule() {
        let norm = |at_least, at_most, rate| ConstraintRule::Norm {
            axes: vec![0],
            at_least,
            at_most,
            rate,
        };
        for (rule, wanted) in [
            (ConstraintRule::NonNegative, [3.0, 0.0, 4.0, 0.0]),
            (norm(0.0, 2.0, 1.0), [1.2, 0.0, 1.6, -0.5]),
            (norm(1.0, 1.0, 1.0), [0.6, 0.0, 0.8, -1.0]),
            (norm(1.0, 4.0, 0.5), [2.7, 0.0, 3.6, -0.75]),
        ] {
            for (found, wanted) in updated(rule).unwrap().iter().zip(wanted) {
                assert!((found - wanted).abs() < 1e-5, "{found} {wanted}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let constraint = Constraint {
            path: "other".to_string(),
            shape: vec![9],
            rule: ConstraintRule::Norm {
                axes: vec![0],
                at_least: 0.0,
                at_most: 1.0,
                rate: 1.0,
            },
        };
        let part = constraint.applied(Tensor::zeros([3], &Device::flex()));
        assert!(part.unwrap_err().to_string().contains("no partitioner"));
        let constrained = Constrained::of(Sgd::new(1.0), vec![constraint]);
        let error = constrained.check_parameters(&["kernel".to_string()]);
        assert!(error.unwrap_err().to_string().contains("`other`"));
        assert!(
            constrained
                .check_parameters(&["a.other".to_string()])
                .is_ok()
        );
    }
}
