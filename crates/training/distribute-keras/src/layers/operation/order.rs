//! Operations that sort values, take them at positions that are values, or keep diagonals.

use burn::tensor::{Int, Tensor, TensorData};

use super::Kind;
use crate::layers::nd::{Nd, each_rank};

/// The values of an axis in order, or their positions. Equal values are in the order of their
/// positions, as in TensorFlow. A value keeps its gradient.
pub(super) fn sorted(kind: &Kind, x: Nd, axis: usize) -> Nd {
    let &Kind::Sort {
        descending,
        first,
        positions,
        ..
    } = kind
    else {
        return x;
    };
    each_rank!(x, x => {
        let count = first.unwrap_or(x.dims()[axis]);
        let order = if descending {
            x.clone().detach().argsort_descending(axis)
        } else {
            x.clone().detach().argsort(axis)
        };
        let order: Tensor<_, Int> = order.narrow(axis, 0, count);
        if positions {
            order.float().cast(x.dtype())
        } else {
            x.gather(axis, order)
        }
    })
}

/// The values at these positions along an axis; negative positions count from the end.
pub(super) fn taken_along(x: Nd, positions: Nd, axis: usize) -> Option<Nd> {
    macro_rules! taken {
        ($($rank:ident),+) => {
            match (x, positions) {
                $((Nd::$rank(x), Nd::$rank(at)) => {
                    let extent = x.dims()[axis] as f64;
                    let at = at.detach();
                    let behind = at.clone().add_scalar(extent);
                    let at = at.clone().mask_where(at.lower_elem(0.0), behind);
                    let at = at.clamp(0.0, extent - 1.0);
                    Some(Nd::$rank(x.gather(axis, at.int())))
                })+
                _ => None,
            }
        };
    }
    taken!(R2, R3, R4, R5, R6, R7)
}

/// Zeros in the matrices of the last two axes but for these diagonals.
pub(super) fn band(x: Nd, lowest: Option<i64>, highest: Option<i64>) -> Nd {
    let dims = x.dims();
    let &[.., rows, columns] = &dims[..] else {
        return x;
    };
    let device = x.device().without_autodiff();
    let kept = |place: usize| {
        let diagonal = (place % columns) as i64 - (place / columns) as i64;
        let low = lowest.is_none_or(|lowest| diagonal >= lowest);
        let high = highest.is_none_or(|highest| diagonal <= highest);
        f32::from(u8::from(low && high))
    };
    let values: Vec<f32> = (0..rows * columns).map(kept).collect();
    let data = TensorData::new(values, [rows, columns]);
    let mask = Nd::R2(Tensor::<2>::from_data(data, &device)).unsqueeze_to(dims.len());
    macro_rules! masked {
        ($($rank:ident),+) => {
            match (x, mask) {
                $((Nd::$rank(x), Nd::$rank(mask)) => {
                    let hidden = mask.equal_elem(0.0).expand(x.dims());
                    Nd::$rank(x.mask_fill(hidden, 0.0))
                })+
                (x, _) => x,
            }
        };
    }
    masked!(R3, R4, R5, R6, R7)
}
