//! The rule in f64, for the cases in which this library deliberately does something else than the
//! Keras that made them: the moments of a part or of all parts, what an empty part leaves alone,
//! and the variance divided by the number of values.

use burn::tensor::{DType, TensorData};
use serde_json::Value;

use super::layer::View;
use super::{Values, mean};
use crate::json::Fields;
use crate::outcome::Failure;
use crate::tensors::tensor;

/// A batch normalization on all replicas.
pub(super) struct Reference {
    gamma: Option<Vec<f64>>,
    beta: Option<Vec<f64>>,
    /// Moving mean and variance of each replica.
    moving: Vec<[Vec<f64>; 2]>,
    momentum: f64,
    epsilon: f64,
    learning_rate: f64,
    synchronized: bool,
}

/// One replica's part, `[batch, features, rest]`.
struct Part {
    dims: [usize; 3],
    data: Vec<f64>,
}

impl Part {
    fn of(data: &TensorData) -> Result<Self, Failure> {
        let dims = data.shape().to_vec();
        Ok(Self {
            dims: dims.try_into().map_err(|_| Failure::schema("a rank"))?,
            data: data.iter::<f64>().collect(),
        })
    }

    fn feature(&self, index: usize) -> usize {
        index / self.dims[2] % self.dims[1]
    }

    /// The same with a function of each element and its feature.
    fn map(&self, of: impl Fn(usize, f64, usize) -> f64) -> Self {
        let all = self.data.iter().enumerate();
        Self {
            dims: self.dims,
            data: all
                .map(|(index, x)| of(index, *x, self.feature(index)))
                .collect(),
        }
    }

    fn into_data(self) -> TensorData {
        TensorData::new(self.data, self.dims).convert_dtype(DType::F32)
    }
}

/// The sums over some parts, per feature, and how many values each has.
fn sums(parts: &[&Part], features: usize) -> (Vec<f64>, f64) {
    let (mut sums, mut count) = (vec![0.0; features], 0.0);
    for part in parts {
        for (index, x) in part.data.iter().enumerate() {
            sums[part.feature(index)] += x;
        }
        count += (part.data.len() / features) as f64;
    }
    (sums, count)
}

fn over(sums: Vec<f64>, count: f64) -> Vec<f64> {
    sums.into_iter().map(|sum| sum / count).collect()
}

pub(super) fn vector(values: &[f64]) -> TensorData {
    TensorData::new(values.to_vec(), [values.len()]).convert_dtype(DType::F32)
}

impl Reference {
    pub(super) fn of(inputs: &Value, replicas: usize) -> Result<Self, Failure> {
        let read = |name: &str| match &inputs[name] {
            Value::Null => Ok::<_, Failure>(None),
            value => Ok(Some(tensor(value)?.iter::<f64>().collect::<Vec<_>>())),
        };
        let missing = || Failure::schema("moving statistics");
        let mean = read("moving_mean")?.ok_or_else(missing)?;
        let variance = read("moving_variance")?.ok_or_else(missing)?;
        Ok(Self {
            gamma: read("gamma")?,
            beta: read("beta")?,
            moving: vec![[mean, variance]; replicas],
            momentum: inputs.float("momentum")?,
            epsilon: inputs.float("epsilon")?,
            learning_rate: inputs.float("learning_rate")?,
            synchronized: inputs.flag("synchronized")?,
        })
    }

    /// A step; what it gives, as the file writes it.
    pub(super) fn step(&mut self, step: &Value, view: View) -> Result<Values, Failure> {
        let read = |name: &str| -> Result<Vec<Part>, Failure> {
            let parts = step.list(name)?.iter();
            parts.map(|part| Part::of(&view.read(part)?)).collect()
        };
        let (inputs, upstream) = (read("x")?, read("upstream")?);
        let trains = step.flag("training")?;
        let features = self.moving[0][0].len();
        let mut values = Values::default();
        let (mut gammas, mut betas) = (Vec::new(), Vec::new());
        for (replica, x) in inputs.iter().enumerate() {
            let together: Vec<usize> = if self.synchronized {
                (0..inputs.len()).collect()
            } else {
                vec![replica]
            };
            let parts: Vec<&Part> = together.iter().map(|it| &inputs[*it]).collect();
            let moments = if trains {
                self.moments(&parts, features)
            } else {
                self.moving[replica].clone()
            };
            let product = |it: usize| {
                let normal = self.normal(&inputs[it], &moments);
                upstream[it].map(|index, dy, _| dy * normal.data[index])
            };
            let own = self.normal(x, &moments);
            values.add(format!("y {replica}"), self.scaled(&own).into_data());
            let products: Vec<Part> = together.iter().map(|it| product(*it)).collect();
            let (of_dy, count) = sums(
                &together.iter().map(|it| &upstream[*it]).collect::<Vec<_>>(),
                features,
            );
            let (of_products, _) = sums(&products.iter().collect::<Vec<_>>(), features);
            let gradient = upstream[replica].map(|index, dy, f| {
                let through = if trains {
                    (of_dy[f] + own.data[index] * of_products[f]) / count
                } else {
                    0.0
                };
                self.gamma(f) * self.scale(&moments, f) * (dy - through)
            });
            values.add(format!("gradient of x {replica}"), gradient.into_data());
            gammas.push(sums(&[&product(replica)], features).0);
            betas.push(sums(&[&upstream[replica]], features).0);
            if trains && count > 0.0 {
                self.follow(replica, &moments);
            }
        }
        self.update(&mut values, [gammas, betas]);
        self.add_statistics(&mut values);
        Ok(values)
    }

    /// What each replica makes of an input when all have the mean of the moving statistics.
    pub(super) fn inference(&self, x: &TensorData) -> Result<TensorData, Failure> {
        let moments = [0, 1].map(|kind| {
            let own: Vec<_> = self.moving.iter().map(|own| vector(&own[kind])).collect();
            mean(&own).iter::<f64>().collect()
        });
        let normal = self.normal(&Part::of(x)?, &moments);
        Ok(self.scaled(&normal).into_data())
    }

    fn gamma(&self, feature: usize) -> f64 {
        self.gamma.as_ref().map_or(1.0, |gamma| gamma[feature])
    }

    fn scale(&self, moments: &[Vec<f64>; 2], feature: usize) -> f64 {
        1.0 / (moments[1][feature] + self.epsilon).sqrt()
    }

    fn normal(&self, part: &Part, moments: &[Vec<f64>; 2]) -> Part {
        part.map(|_, x, f| (x - moments[0][f]) * self.scale(moments, f))
    }

    fn scaled(&self, normal: &Part) -> Part {
        let beta = |f: usize| self.beta.as_ref().map_or(0.0, |beta| beta[f]);
        normal.map(|_, x, f| x * self.gamma(f) + beta(f))
    }

    /// Mean and variance over some parts.
    fn moments(&self, parts: &[&Part], features: usize) -> [Vec<f64>; 2] {
        let (total, count) = sums(parts, features);
        let mean = over(total, count);
        let squares = parts
            .iter()
            .map(|part| part.map(|_, x, f| (x - mean[f]) * (x - mean[f])));
        let squares: Vec<Part> = squares.collect();
        let (total, count) = sums(&squares.iter().collect::<Vec<_>>(), features);
        [mean, over(total, count)]
    }

    fn follow(&mut self, replica: usize, moments: &[Vec<f64>; 2]) {
        for (moving, batch) in self.moving[replica].iter_mut().zip(moments) {
            for (moving, batch) in moving.iter_mut().zip(batch) {
                *moving = *moving * self.momentum + batch * (1.0 - self.momentum);
            }
        }
    }

    /// Notes the gradients of the parameters and makes a step of SGD with their sums.
    fn update(&mut self, values: &mut Values, gradients: [Vec<Vec<f64>>; 2]) {
        let replicas = self.moving.len();
        let parameters = [("gamma", &mut self.gamma), ("beta", &mut self.beta)];
        for ((name, parameter), gradients) in parameters.into_iter().zip(gradients) {
            let Some(parameter) = parameter else { continue };
            for (replica, gradient) in gradients.iter().enumerate() {
                values.add(format!("gradient of {name} {replica}"), vector(gradient));
                for (value, gradient) in parameter.iter_mut().zip(gradient) {
                    *value -= self.learning_rate * gradient;
                }
            }
            for replica in 0..replicas {
                values.add(format!("{name} {replica}"), vector(parameter));
            }
        }
    }

    fn add_statistics(&self, values: &mut Values) {
        for (kind, name) in ["moving_mean", "moving_variance"].into_iter().enumerate() {
            let own = self.moving.iter().map(|moving| vector(&moving[kind]));
            values.add_statistic(name, own.collect());
        }
    }
}
