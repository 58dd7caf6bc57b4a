//! What a step needs besides where it is compiled: values that come in as tensors.

use burn::tensor::{Bool, DType, Device, Float, Int, Tensor, TensorData};
use distribute_core::{Error, PerReplica, ReduceOp, Result, Strategy, StrategyExt};

use crate::tensors::reshaped;

/// `all_reduce` of one value per replica. Host data cannot enter a compiled step; there it is made
/// of tensors, which give the same data back.
pub(super) fn all_reduce(
    strategy: &dyn Strategy,
    op: ReduceOp,
    values: PerReplica<TensorData>,
) -> Result<PerReplica<TensorData>> {
    if strategy.tracer().is_none() {
        return strategy.run((values,), |ctx, (value,)| ctx.all_reduce(op, value));
    }
    let first = values.values().first();
    let first = first.ok_or_else(|| Error::invalid("no value"))?;
    let (shape, dtype) = (first.shape().to_vec(), first.dtype());
    // As an argument: what a compiled step only captures keeps its value of the first call.
    let is_sum = op == ReduceOp::Sum;
    macro_rules! of_kind {
        ($($rank:literal $kind:ty),*) => {
            match (shape.len().max(1), Kind::of(dtype)) {
                $(($rank, <$kind as HasKind>::KIND) => {
                    let tensor = |value: TensorData| {
                        let axes = if value.rank() == 0 { vec![1] } else { value.shape().to_vec() };
                        let options = (&Device::flex(), value.dtype());
                        Tensor::<$rank, $kind>::from_data(reshaped(&value, &axes), options)
                    };
                    let tensors = values.into_values().into_iter().map(tensor).collect();
                    let found = strategy.run((PerReplica::new(tensors), is_sum), |ctx, (x, sum)| {
                        ctx.all_reduce(if sum { ReduceOp::Sum } else { ReduceOp::Mean }, x)
                    })?;
                    found.into_values().into_iter().map(Tensor::into_data).collect::<Vec<_>>()
                })*
                (rank, _) => return Err(Error::invalid(format!("a tensor of rank {rank}"))),
            }
        };
    }
    let found = of_kind!(1 Float, 2 Float, 3 Float, 4 Float, 1 Int, 2 Int, 3 Int, 4 Int, 1 Bool);
    let same_axes = |data: TensorData| match shape.len() {
        0 => reshaped(&data, &[]),
        _ => data,
    };
    Ok(PerReplica::new(found.into_iter().map(same_axes).collect()))
}

/// burn's kinds of elements.
#[derive(PartialEq, Eq)]
enum Kind {
    Float,
    Int,
    Bool,
}

impl Kind {
    fn of(dtype: DType) -> Self {
        match dtype {
            dtype if dtype.is_float() => Self::Float,
            dtype if dtype.is_bool() => Self::Bool,
            _ => Self::Int,
        }
    }
}

trait HasKind {
    const KIND: Kind;
}

impl HasKind for Float {
    const KIND: Kind = Kind::Float;
}

impl HasKind for Int {
    const KIND: Kind = Kind::Int;
}

impl HasKind for Bool {
    const KIND: Kind = Kind::Bool;
}
