//! Functions of numbers that burn does not have, made of functions that it has.

use burn::tensor::{Bool, Tensor};

use super::{Binary, Unary};

/// 1 and 0, in the type of `like`.
pub(super) fn number<const D: usize>(condition: Tensor<D, Bool>, like: &Tensor<D>) -> Tensor<D> {
    condition.float().cast(like.dtype())
}

/// Without what is behind the point.
pub(super) fn trunc<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let sign = x.clone().detach().sign();
    x.abs().floor() * sign
}

/// Functions of other functions.
pub(super) fn of_number<const D: usize>(unary: Unary, x: Tensor<D>) -> Tensor<D> {
    let finite = |x: &Tensor<D>| x.clone().abs().lower_elem(f64::INFINITY);
    match unary {
        Unary::Erfc => x.erf().neg().add_scalar(1.0),
        Unary::Exp2 => x.mul_scalar(std::f64::consts::LN_2).exp(),
        Unary::Cbrt => {
            let sign = x.clone().detach().sign();
            x.abs().powf_scalar(1.0 / 3.0) * sign
        }
        Unary::Radians => x.mul_scalar(1f64.to_radians()),
        Unary::Degrees => x.mul_scalar(1f64.to_degrees()),
        Unary::IsNan => number(x.clone().is_nan(), &x),
        Unary::IsInf => {
            let is_number = x.clone().is_nan().bool_not();
            number(finite(&x).bool_not().bool_and(is_number), &x)
        }
        Unary::IsFinite => number(finite(&x), &x),
        _ => x,
    }
}

/// Functions of other functions, of two values of one shape.
pub(super) fn of_pair<const D: usize>(binary: Binary, x: Tensor<D>, y: Tensor<D>) -> Tensor<D> {
    // log(exp(x) + exp(y)) without overflow.
    let added = |x: Tensor<D>, y: Tensor<D>| {
        let difference = x.clone() - y.clone();
        x.max_pair(y) + difference.abs().neg().exp().log1p()
    };
    match binary {
        Binary::Xor => {
            let like = x.clone();
            let one = x.not_equal_elem(0.0).not_equal(y.not_equal_elem(0.0));
            number(one, &like)
        }
        Binary::Fmod => {
            let quotient = x.clone() / y.clone();
            x - trunc(quotient) * y
        }
        Binary::Hypot => (x.clone() * x + y.clone() * y).sqrt(),
        Binary::LogAddExp => added(x, y),
        Binary::LogAddExp2 => {
            let ln2 = std::f64::consts::LN_2;
            added(x.mul_scalar(ln2), y.mul_scalar(ln2)).div_scalar(ln2)
        }
        Binary::Heaviside => {
            let above = number(x.clone().greater_elem(0.0), &x);
            above.mask_where(x.equal_elem(0.0), y)
        }
        Binary::MultiplyNoNan => {
            let is_zero = y.clone().equal_elem(0.0);
            (x * y).mask_fill(is_zero, 0.0)
        }
        _ => x,
    }
}
