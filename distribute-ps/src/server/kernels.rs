//! The built-in optimizers on `f32` where it lies: one pass, without temporary tensors.
//!
//! The operations are the same as in `distribute_core::optim`, in the same order and each rounded
//! to `f32`, so the bits are the same. All is inlined into [`wide`](super::wide).

use serde_json::Value;

use crate::variable::OptimizerSpec;

/// What an optimizer does to each element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kernel {
    /// SGD; with the slot `momentum` unless the momentum is zero.
    Sgd { momentum: f64, nesterov: bool },
    /// Adam, or AdamW, which shrinks the parameter first.
    Adam {
        beta_1: f64,
        beta_2: f64,
        epsilon: f64,
        decays: bool,
    },
}

/// Little-endian `f32`, at any address.
type Element = [u8; 4];

fn get(element: Element) -> f32 {
    f32::from_le_bytes(element)
}

/// As burn rounds the numbers of a rule.
fn round(number: f64) -> f32 {
    number as f32
}

impl Kernel {
    /// The arithmetic of an optimizer that every server knows; `None` for what is applied as
    /// tensor operations: averages of weights, weight decay of some variables only, and the
    /// optimizers that are not here.
    pub(super) fn of(spec: &OptimizerSpec) -> Option<Self> {
        let number = |key: &str| spec.config.get(key).and_then(Value::as_f64);
        let flag = |key: &str| spec.config.get(key) == Some(&Value::Bool(true));
        let has = |key: &str| spec.config.get(key).is_some();
        let decays = spec.name == "adamw" || has("weight_decay");
        let by_path = [
            "exclude_from_weight_decay",
            "learning_rate_factors",
            "constraints",
        ];
        if flag("use_ema") || flag("amsgrad") || by_path.into_iter().any(has) {
            return None;
        }
        match spec.name.as_str() {
            "sgd" if !decays => Some(Self::Sgd {
                momentum: number("momentum")?,
                nesterov: flag("nesterov"),
            }),
            "adam" | "adamw" => Some(Self::Adam {
                beta_1: number("beta_1")?,
                beta_2: number("beta_2")?,
                epsilon: number("epsilon")?,
                decays,
            }),
            _ => None,
        }
    }

    /// Updates parameter and slots, which are as long as the gradient: whole elements. `false` if
    /// coefficients or slots do not fit the rule; nothing is changed then.
    #[inline(always)]
    pub(super) fn apply(
        self,
        coefficients: &[f64],
        parameter: &mut [u8],
        gradient: &[u8],
        slots: &mut [&mut [u8]],
    ) -> bool {
        let parameter = parameter.as_chunks_mut::<4>().0;
        let gradient = gradient.as_chunks::<4>().0;
        match (self, coefficients, slots) {
            (Self::Sgd { momentum: 0.0, .. }, [rate], []) => {
                sgd(round(*rate), parameter, gradient);
            }
            (Self::Sgd { momentum, nesterov }, [rate], [velocity]) => {
                let velocity = velocity.as_chunks_mut::<4>().0;
                let (rate, momentum) = (round(*rate), round(momentum));
                if nesterov {
                    momentum_sgd::<true>(rate, momentum, parameter, gradient, velocity)
                } else {
                    momentum_sgd::<false>(rate, momentum, parameter, gradient, velocity)
                }
            }
            (
                Self::Adam {
                    beta_1,
                    beta_2,
                    epsilon,
                    decays,
                },
                [rate, keep @ ..],
                [m, v],
            ) if keep.len() == usize::from(decays) => {
                let numbers = AdamNumbers {
                    rate: round(*rate),
                    // Times 1 changes nothing.
                    keep: round(keep.first().copied().unwrap_or(1.0)),
                    toward_1: round(1.0 - beta_1),
                    toward_2: round(1.0 - beta_2),
                    epsilon: round(epsilon),
                };
                let (m, v) = (m.as_chunks_mut::<4>().0, v.as_chunks_mut::<4>().0);
                adam(numbers, parameter, gradient, m, v);
            }
            _ => return false,
        }
        true
    }
}

#[inline(always)]
fn sgd(rate: f32, parameter: &mut [Element], gradient: &[Element]) {
    for (p, g) in parameter.iter_mut().zip(gradient) {
        *p = (get(*p) - get(*g) * rate).to_le_bytes();
    }
}

#[inline(always)]
fn momentum_sgd<const NESTEROV: bool>(
    rate: f32,
    momentum: f32,
    parameter: &mut [Element],
    gradient: &[Element],
    velocity: &mut [Element],
) {
    for ((p, g), v) in parameter.iter_mut().zip(gradient).zip(velocity) {
        let step = get(*g) * rate;
        let faster = get(*v) * momentum - step;
        *v = faster.to_le_bytes();
        let moved = if NESTEROV {
            get(*p) + faster * momentum - step
        } else {
            get(*p) + faster
        };
        *p = moved.to_le_bytes();
    }
}

#[derive(Debug, Clone, Copy)]
struct AdamNumbers {
    rate: f32,
    keep: f32,
    toward_1: f32,
    toward_2: f32,
    epsilon: f32,
}

#[inline(always)]
fn adam(
    numbers: AdamNumbers,
    parameter: &mut [Element],
    gradient: &[Element],
    m: &mut [Element],
    v: &mut [Element],
) {
    for ((p, g), (m, v)) in parameter.iter_mut().zip(gradient).zip(m.iter_mut().zip(v)) {
        let g = get(*g);
        let first = get(*m) + (g - get(*m)) * numbers.toward_1;
        let second = get(*v) + (g * g - get(*v)) * numbers.toward_2;
        *m = first.to_le_bytes();
        *v = second.to_le_bytes();
        let step = first * numbers.rate / (second.sqrt() + numbers.epsilon);
        *p = (get(*p) * numbers.keep - step).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::tensor::DType;
    use distribute_core::optim::{Adam, AdamW, Optimizer, Sgd, WeightDecay};
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use crate::server::optimizers::{Built, Optimizers, Rule};
    use crate::variable::OptimizerSpec;

    const ELEMENTS: usize = 1003;

    fn random(rng: &mut ChaCha8Rng) -> Vec<u8> {
        let numbers = (0..ELEMENTS).map(|_| rng.random_range(-2.0_f32..2.0));
        numbers.flat_map(f32::to_le_bytes).collect()
    }

    /// Three updates by a rule: parameter, then slots.
    fn updated(built: &Built, seed: u64) -> Vec<Vec<u8>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let slots = built.optimizer.slots().len();
        let mut tensors = vec![vec![0; ELEMENTS * 4]; 1 + slots];
        tensors[0] = random(&mut rng);
        for step in 1..=3 {
            let gradient = random(&mut rng);
            let rule = Rule::new(built, "w", Some(0.013), step, DType::F32);
            let (parameter, slots) = tensors.split_first_mut().unwrap();
            let mut slots: Vec<&mut [u8]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
            rule.apply(parameter, &gradient, &mut slots).unwrap();
        }
        tensors
    }

    #[test]
    fn the_bits_are_those_of_the_tensors() {
        let rules: [Arc<dyn Optimizer>; 7] = [
            Arc::new(Sgd::new(0.1)),
            Arc::new(Sgd::new(0.1).momentum(0.9)),
            Arc::new(Sgd::new(0.1).momentum(0.7).nesterov(true)),
            Arc::new(Adam::new(0.1)),
            Arc::new(Adam::new(0.1).betas(0.8, 0.99).epsilon(1e-3)),
            Arc::new(AdamW::new(0.1).weight_decay(0.3)),
            Arc::new(WeightDecay::of(Adam::new(0.1), 0.2)),
        ];
        for (seed, rule) in rules.into_iter().enumerate() {
            let spec = OptimizerSpec::of(&*rule);
            let built = Optimizers::default().build(&spec).unwrap();
            assert!(built.kernel.is_some(), "{rule:?}");
            let plain = Built {
                optimizer: rule,
                kernel: None,
            };
            let (by_kernel, by_tensors) =
                (updated(&built, seed as u64), updated(&plain, seed as u64));
            assert!(by_kernel == by_tensors, "{:?}", plain.optimizer);
        }
    }
}
