//! Moving averages of the weights, kept by any optimizer.

use serde_json::json;

use super::{BurnOptimizer, Coefficient, Optimizer, ParameterUpdate, SlotStart, Updated};
use crate::macros::forward;
use crate::{Error, Result};

/// The slot that has the averages.
pub(crate) const AVERAGE: &str = "average";

/// An optimizer that keeps an exponential moving average of every weight (the arguments `use_ema`,
/// `ema_momentum` and `ema_overwrite_frequency` of every optimizer of Keras).
///
/// After each update `average = momentum * average + (1 - momentum) * w`; after the first one the
/// average is the weight. The averages are the slot `average`: they are in checkpoints, on
/// parameter servers and in captured steps like any other.
/// [`TrainState::apply_averages`](crate::TrainState::apply_averages) puts them in the place of the
/// weights (Keras: `finalize_variable_values`). The average of a parameter without a gradient
/// stays as it is in that update.
///
/// ```
/// use distribute_core::optim::{Adam, MovingAverage, Optimizer};
///
/// let averaged = MovingAverage::of(Adam::new(1e-3), 0.99)?;
/// assert_eq!(averaged.slots(), ["momentum", "velocity", "average"]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct MovingAverage<O> {
    inner: O,
    slots: Vec<&'static str>,
    momentum: f64,
    overwrite_frequency: Option<u64>,
}

impl<O: Optimizer> MovingAverage<O> {
    /// This optimizer with averages; the name of the optimizer stays. Keras' momentum is 0.99.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the momentum is not a number from 0 to 1.
    pub fn of(optimizer: O, momentum: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&momentum) {
            return Err(Error::invalid(format!(
                "the momentum of moving averages must be a number from 0 to 1, got {momentum}"
            )));
        }
        let slots = optimizer.slots().iter().copied();
        Ok(Self {
            slots: slots.chain([AVERAGE]).collect(),
            inner: optimizer,
            momentum,
            overwrite_frequency: None,
        })
    }

    /// Also replaces the weights by their averages, in every `updates`-th update.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for 0.
    pub fn overwrite_every(mut self, updates: u64) -> Result<Self> {
        if updates == 0 {
            return Err(Error::invalid(
                "the weights can be replaced by their averages in every update (1) or more \
                 rarely, got 0",
            ));
        }
        self.overwrite_frequency = Some(updates);
        Ok(self)
    }
}

impl<O: Optimizer> Optimizer for MovingAverage<O> {
    forward! { self => self.inner;
        fn name() -> &'static str;
        fn learning_rate() -> f64;
        fn check_parameters(paths: &[String]) -> Result<()>;
        fn burn() -> Option<&BurnOptimizer>;
    }

    fn slots(&self) -> &[&'static str] {
        &self.slots
    }

    fn slot_start(&self, slot: &str) -> SlotStart {
        match slot {
            AVERAGE => SlotStart::Parameter,
            _ => self.inner.slot_start(slot),
        }
    }

    fn config(&self) -> serde_json::Value {
        let mut config = self.inner.config();
        config["use_ema"] = json!(true);
        config["ema_momentum"] = json!(self.momentum);
        if let Some(updates) = self.overwrite_frequency {
            config["ema_overwrite_frequency"] = json!(updates);
        }
        config
    }

    /// The optimizer's; then the weights of the old average and of the new value; then, if
    /// weights are ever replaced, the share of the weight and of the average in what it becomes.
    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let mut all = self.inner.coefficients(learning_rate, step);
        let momentum = if step == 1 { 0.0 } else { self.momentum };
        all.extend([momentum, 1.0 - momentum]);
        if let Some(updates) = self.overwrite_frequency {
            let replaces = step.is_multiple_of(updates);
            all.extend([f64::from(!replaces), f64::from(replaces)]);
        }
        all
    }

    fn update(&self, mut of: ParameterUpdate<'_>) -> Result<Updated> {
        let wrong = || Error::invalid("moving averages need their coefficients and their slot");
        let own = self.overwrite_frequency.map_or(2, |_| 4);
        let count = of.coefficients.len().checked_sub(own).ok_or_else(wrong)?;
        let (coefficients, own) = of.coefficients.split_at(count);
        let [old, new, replacement @ ..] = own else {
            return Err(wrong());
        };
        let average = of.slots.pop().ok_or_else(wrong)?;
        let (parameter, mut slots) = self.inner.update(ParameterUpdate { coefficients, ..of })?;
        let average = old.scale(average) + new.scale(parameter.clone());
        slots.push(average.clone());
        let parameter = match replacement {
            [Coefficient::Host(keeps), _] if *keeps == 1.0 => parameter,
            [Coefficient::Host(_), _] => average,
            [keeps, replaces] => keeps.scale(parameter) + replaces.scale(average),
            _ => parameter,
        };
        Ok((parameter, slots))
    }
}
