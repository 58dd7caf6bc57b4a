//! Losses on kernels.

use burn::module::Param;
use burn::tensor::Tensor;

use crate::ModelError;
use crate::fields::Fields;

/// A loss on a kernel: `l1 * sum(|w|) + l2 * sum(w^2)` (Keras: `keras.regularizers.L1L2`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Regularizer {
    /// The factor of the absolute values.
    pub l1: f64,
    /// The factor of the squares.
    pub l2: f64,
}

pub(crate) fn regularizer(
    fields: &mut Fields<'_>,
    key: &'static str,
) -> Result<Option<Regularizer>, ModelError> {
    if fields.get(key).is_none() {
        return Ok(None);
    }
    let named = fields.object(key)?;
    let refuse = || fields.refuse(key, "use L1, L2 or L1L2");
    let mut named = named.ok_or_else(refuse)?;
    let mut factor = |key, default| named.fields.factor(key, default);
    let (l1, l2) = match named.class.to_ascii_lowercase().as_str() {
        "l1" => (factor("l1", 0.01)?, 0.0),
        "l2" => (0.0, factor("l2", 0.01)?),
        "l1l2" | "l1_l2" => (factor("l1", 0.0)?, factor("l2", 0.0)?),
        _ => return Err(refuse()),
    };
    named.fields.finish()?;
    let regularizer = Regularizer { l1, l2 };
    Ok((regularizer != Regularizer::default()).then_some(regularizer))
}

/// The loss on a kernel.
pub(crate) fn penalty<const D: usize>(
    regularizer: Option<Regularizer>,
    kernel: &Param<Tensor<D>>,
) -> Option<Tensor<1>> {
    let Regularizer { l1, l2 } = regularizer?;
    let l1 = (l1 != 0.0).then(|| kernel.val().abs().sum().mul_scalar(l1));
    let l2 = (l2 != 0.0).then(|| {
        let kernel = kernel.val();
        (kernel.clone() * kernel).sum().mul_scalar(l2)
    });
    match (l1, l2) {
        (Some(l1), Some(l2)) => Some(l1 + l2),
        (one, other) => one.or(other),
    }
}
