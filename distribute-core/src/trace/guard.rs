//! Protection from running statistics that are not finite: the program of a compiled step detects
//! them, and undoes its changes of the states.

use crate::burn_internals::backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
use crate::burn_internals::capture::CaptureBackend;
use burn::tensor::{Shape, Tensor, TensorData};

use super::{CapturedTensor, Trace, captured};
use crate::{Error, Result};

/// A running statistic of a state that a step may change.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) path: String,
    /// Which training state counts the updates, if one does.
    pub(crate) training_state: Option<usize>,
}

/// How a program reports which running statistics are not finite.
#[derive(Debug)]
pub(crate) struct Guard<T> {
    pub(crate) watched: Vec<Watched>,
    /// For every replica of the program 0, or below it the place of the first one, from the end of
    /// the list.
    pub(crate) found: T,
}

/// The tensors of a state before the step and after it.
pub(crate) type Change<'a> = (&'a mut Vec<CapturedTensor>, &'a mut Vec<CapturedTensor>);

impl Guard<CapturedTensor> {
    /// Makes the program check these statistics. Where one is not finite on any replica, the
    /// tensors of before the step are what it leaves behind, on all replicas.
    ///
    /// If a step gives a state tensors of other shapes, the earlier tensors stay where they are.
    pub(crate) fn new<'a>(
        trace: &Trace,
        statistics: Vec<(Watched, CapturedTensor)>,
        changes: impl Iterator<Item = Change<'a>>,
    ) -> Result<Self> {
        let (watched, statistics): (Vec<_>, Vec<_>) = statistics.into_iter().unzip();
        let count = statistics.len();
        let is_bad = |statistic: CapturedTensor| {
            let is_bad = statistic.flat().is_finite().bool_not();
            is_bad.float().max()
        };
        let is_bad = Tensor::cat(statistics.into_iter().map(is_bad).collect(), 0);
        let places: Vec<f32> = (0..count)
            .map(|place| place as f32 - count as f32)
            .collect();
        let places = trace.constant(TensorData::new(places, [count]));
        let first = captured(&(is_bad * places.float()).min()).ok_or_else(foreign)?;
        let found = trace.all_gather(first, 0);
        let is_fine = equals(&found.clone().float::<1>().min(), 0.0).ok_or_else(foreign)?;
        for (old, new) in changes {
            let specs = old.iter().map(CapturedTensor::spec);
            if !specs.eq(new.iter().map(CapturedTensor::spec)) {
                continue;
            }
            for (old, new) in old.iter_mut().zip(new) {
                if old.id() != new.id() {
                    *new = choose(&is_fine, new, old);
                    *old = new.clone();
                }
            }
        }
        Ok(Self { watched, found })
    }
}

impl<T> Guard<T> {
    /// The first replica with a statistic that is not finite, and its first one, by what the
    /// program has found.
    pub(crate) fn first(&self, found: impl Iterator<Item = f32>) -> Option<(usize, &Watched)> {
        let mut replicas = found.enumerate();
        let (replica, place) = replicas.find(|(_, place)| *place < 0.0)?;
        let from_end = (-place) as usize;
        let watched = self
            .watched
            .get(self.watched.len().checked_sub(from_end)?)?;
        Some((replica, watched))
    }
}

/// The new tensor where the flag, a bool of shape `[1]`, is set, else the old one.
pub(crate) fn choose(
    flag: &CapturedTensor,
    new: &CapturedTensor,
    old: &CapturedTensor,
) -> CapturedTensor {
    let shape = new.spec().shape;
    let flag = flag.reshaped(&vec![1; shape.len()]).0;
    let flag = CaptureBackend::bool_expand(flag, Shape::from(shape));
    let (old, newer) = (old.0.clone(), new.0.clone());
    CapturedTensor(match new.spec().dtype {
        dtype if dtype.is_float() => CaptureBackend::float_mask_where(old, flag, newer),
        dtype if dtype.is_bool() => CaptureBackend::bool_mask_where(old, flag, newer),
        _ => CaptureBackend::int_mask_where(old, flag, newer),
    })
}

/// Whether the elements of a captured tensor are equal to a number.
pub(crate) fn equals(tensor: &Tensor<1>, number: f64) -> Option<CapturedTensor> {
    let are_equal = tensor.clone().equal_elem(number);
    let are_equal = are_equal.try_into_primitive::<CaptureBackend>();
    are_equal.ok().map(CapturedTensor)
}

fn foreign() -> Error {
    let instead = "compute them from the step's arguments";
    Error::not_compilable(
        "running statistics that are not of the captured state",
        instead,
    )
}
