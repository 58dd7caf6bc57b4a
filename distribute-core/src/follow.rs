//! A model that follows another one by a moving average.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::nest::FloatLeaf;
use crate::parameters::{self, Parameter};
use crate::replicate::StatePart;
use crate::state_leaf::StateWalk;
use crate::trace::{self, TensorSpec};
use crate::{Error, Leaf, Result};

/// Moves a model towards another of the same structure: each float tensor of it becomes `momentum *
/// own + (1 - momentum) * other` (TensorFlow: `tf.train.ExponentialMovingAverage`), also the
/// running statistics; integers and bools stay. What autodiff knows of the tensors stays, so the
/// follower may be frozen (burn's `no_grad`).
///
/// It is for a model that is used while another is trained, such as a mean teacher or the target
/// network of Q-learning. Call it in the step after the update: the same on every replica, so that
/// the followers stay alike. For averages that are only looked at in the end
/// [`MovingAverage`](crate::MovingAverage) keeps them with the optimizer's slots.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use distribute_core::follow;
/// use distribute_core::prelude::*;
///
/// #[derive(Replicate)]
/// struct Pair {
///     student: TrainState<Linear>,
///     teacher: Linear,
/// }
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let mut pair = strategy.scope(|device| Pair {
///     student: TrainState::new(LinearConfig::new(2, 2).init(device), Sgd::new(0.1)),
///     teacher: LinearConfig::new(2, 2).init(device).no_grad(),
/// })?;
/// strategy.run(&mut pair, |_, pair| follow(&mut pair.teacher, &pair.student.model, 0.0))?;
/// let pair = pair.primary()?;
/// let (student, teacher) = (pair.student.model.weight.val(), pair.teacher.weight.val());
/// assert_eq!(student.into_data(), teacher.into_data());
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if the momentum is not a number from 0 to 1, or the models differ in
/// their float tensors; the error names the first, and the follower is unchanged.
pub fn follow<M: Module>(follower: &mut M, leader: &M, momentum: f64) -> Result<()> {
    if !(0.0..=1.0).contains(&momentum) {
        return Err(Error::invalid(format!(
            "follow: the momentum must be a number from 0 to 1, got {momentum}"
        )));
    }
    let (own, leading) = (floats(follower)?, floats(leader)?);
    let mut pairs = own.iter().zip(&leading);
    let other = pairs.find(|(own, other)| (&own.path, &own.spec) != (&other.path, &other.spec));
    let longer = own.get(leading.len()).or(leading.get(own.len()));
    if let Some(float) = other.map(|(own, _)| own).or(longer) {
        return Err(Error::invalid(format!(
            "follow: the models differ in `{}`; a model follows one of the same structure",
            float.path
        )));
    }
    drop(own);
    let (walk, mut leading) = (walk_of(follower)?, leading.into_iter());
    follower.walk_leaves(walk, &mut |leaf| {
        let Some(own) = float_of(leaf.value) else {
            return Ok(());
        };
        if let Some(other) = leading.next() {
            let values = values_of(own);
            let other = other.values.to_device(&values.device());
            put(
                own,
                values.mul_scalar(momentum) + other.mul_scalar(1.0 - momentum),
            );
        }
        Ok(())
    })
}

/// A float tensor of a model.
struct Float {
    path: String,
    spec: TensorSpec,
    /// Flat.
    values: Tensor<1>,
}

/// The float tensors in visit order.
fn floats<M: Module>(model: &M) -> Result<Vec<Float>> {
    let mut floats = Vec::new();
    // A walk that changes nothing.
    model.clone().walk_leaves(walk_of(model)?, &mut |leaf| {
        let (path, spec) = (leaf.path.to_string(), leaf.spec());
        floats.extend(float_of(leaf.value).map(|float| Float {
            path,
            spec,
            values: values_of(float),
        }));
        Ok(())
    })?;
    Ok(floats)
}

/// How all tensors of a model are walked, in a step that is captured or not.
fn walk_of<M: Module>(model: &M) -> Result<StateWalk<'static>> {
    let mut walk = StateWalk::Model;
    parameters::visit(model, |parameter: Parameter<'_>| {
        if parameter.tensor.captured().is_some() {
            walk = StateWalk::All;
        }
        Ok(())
    })?;
    Ok(walk)
}

fn float_of(leaf: &mut dyn Leaf) -> Option<&mut dyn FloatLeaf> {
    leaf.tensor()?.as_float()
}

fn values_of(float: &dyn FloatLeaf) -> Tensor<1> {
    float
        .captured()
        .map_or_else(|| float.flat(), |captured| captured.flat())
}

fn put(float: &mut dyn FloatLeaf, values: Tensor<1>) {
    let shape = float.spec().shape;
    match trace::captured(&values) {
        Some(captured) => float.bind(captured.reshaped(&shape), float.tracking()),
        None => float.set_flat(values),
    }
}
