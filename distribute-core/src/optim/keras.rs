//! What Keras' optimizers have in common: a learning rate, and a rule with its numbers.

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Optimizer, ParameterUpdate, SlotStart, Updated};
use crate::Result;
use crate::macros::forward;

/// The rule of an optimizer of Keras. Its fields are the optimizer's hyper-parameters but the
/// learning rate, by Keras' names, and its [`Default`] is Keras'. The methods come from
/// [`Optimizer`].
pub trait Rule: Clone + Debug + Default + Serialize + DeserializeOwned + Send + Sync {
    /// The name of the optimizer.
    const NAME: &'static str;

    /// Keras' default.
    const LEARNING_RATE: f64 = 0.001;

    /// The flags that [`Optimizer::config`] leaves out while they are off: checkpoints from before
    /// there was such a flag have the same configuration.
    const LATER_FLAGS: &'static [&'static str] = &[];

    /// The names of all state tensors that may be kept per parameter.
    const SLOTS: &'static [&'static str];

    /// The names of those that are kept with these numbers.
    fn slots(&self) -> &[&'static str] {
        Self::SLOTS
    }

    /// What the elements of a slot start as.
    fn slot_start(&self, slot: &str) -> SlotStart {
        let _ = slot;
        SlotStart::Number(0.0)
    }

    /// The numbers that `update` needs at a step, which counts from 1.
    fn coefficients(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let _ = step;
        vec![learning_rate]
    }

    /// The updated parameter and slots.
    ///
    /// # Errors
    /// If the number of coefficients or slots is not this rule's.
    fn update(&self, of: ParameterUpdate<'_>) -> Result<Updated>;
}

/// The numbers of a rule with their defaults, and the methods of its optimizer that set them;
/// behind `with` those that have no method of their own.
macro_rules! numbers {
    (
        $(#[$of_rule:meta])*
        $Rule:ident of $Optimizer:ident {
            $($(#[$of_setter:meta])* $number:ident: $type:ty = $default:expr,)+
        }
        $(with { $($other:ident: $type_of_other:ty = $default_of_other:expr,)+ })?
    ) => {
        $(#[$of_rule])*
        #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
        pub struct $Rule {
            $($number: $type,)+
            $($($other: $type_of_other,)+)?
        }

        impl Default for $Rule {
            fn default() -> Self {
                Self {
                    $($number: $default,)+
                    $($($other: $default_of_other,)+)?
                }
            }
        }

        impl $Optimizer {
            $(
                $(#[$of_setter])*
                pub fn $number(mut self, $number: $type) -> Self {
                    self.rule.$number = $number;
                    self
                }
            )+
        }
    };
}
pub(super) use numbers;

/// An optimizer of Keras: a rule, and the learning rate that every rule has.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[must_use]
pub struct KerasOptimizer<R> {
    learning_rate: f64,
    #[serde(flatten)]
    pub(super) rule: R,
}

impl<R: Rule> KerasOptimizer<R> {
    /// This optimizer with Keras' defaults for all but the learning rate.
    pub fn new(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            rule: R::default(),
        }
    }
}

/// Keras' defaults.
impl<R: Rule> Default for KerasOptimizer<R> {
    fn default() -> Self {
        Self::new(R::LEARNING_RATE)
    }
}

impl<R: Rule> Optimizer for KerasOptimizer<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    forward! { self => self.rule;
        fn slots() -> &[&'static str];
        fn slot_start(slot: &str) -> SlotStart;
        fn coefficients(learning_rate: f64, step: u64) -> Vec<f64>;
        fn update(of: ParameterUpdate<'_>) -> Result<Updated>;
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    fn config(&self) -> Value {
        // Numbers and flags can always be written.
        let mut config = serde_json::to_value(self).unwrap_or_default();
        if let Some(all) = config.as_object_mut() {
            all.retain(|name, value| {
                *value != json!(false) || !R::LATER_FLAGS.contains(&name.as_str())
            });
        }
        config
    }
}
