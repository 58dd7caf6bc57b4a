//! Reductions, extremes, running results and sorting.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::{BoolDType, IntDType};

use super::{ALL_INTS, Random, Report, differ};
use crate::lower::harness::FLOATS;
use crate::lower::harness::Prim::{Bool, Float, Int};

const NATIVE: BoolDType = BoolDType::Native;

#[test]
fn floats() {
    let (mut random, mut report) = (Random::new(21), Report::default());
    for dtype in FLOATS {
        for seed in 0..2 {
            let shape = random.shape(1);
            let dim = random.below(shape.len());
            let a = match seed {
                0 => random.special(&shape, dtype, false),
                _ => random.data.floats(&shape, dtype, -1.5, 1.5),
            };
            let dims: Vec<usize> = (0..shape.len()).filter(|d| *d != dim).collect();
            differ!(
                report,
                format!("{dtype:?}"),
                [a],
                (dim: usize = dim, dims: Vec<usize> = dims),
                |B, x| [
                    Float(B::float_sum(x[0].f())),
                    Float(B::float_mean(x[0].f())),
                    Float(B::float_prod(x[0].f())),
                    Float(B::float_max(x[0].f())),
                    Float(B::float_min(x[0].f())),
                    Float(B::float_max_abs(x[0].f())),
                    Float(B::float_sum_dim(x[0].f(), *dim)),
                    Float(B::float_mean_dim(x[0].f(), *dim)),
                    Float(B::float_prod_dim(x[0].f(), *dim)),
                    Float(B::float_max_dim(x[0].f(), *dim)),
                    Float(B::float_min_dim(x[0].f(), *dim)),
                    Float(B::float_max_abs_dim(x[0].f(), *dim)),
                    Float(B::float_cumsum(x[0].f(), *dim)),
                    Float(B::float_cumprod(x[0].f(), *dim)),
                    Float(B::float_cummax(x[0].f(), *dim)),
                    Float(B::float_cummin(x[0].f(), *dim)),
                    Bool(B::float_any(x[0].f(), NATIVE)),
                    Bool(B::float_all(x[0].f(), NATIVE)),
                    Bool(B::float_any_dim(x[0].f(), *dim, NATIVE)),
                    Bool(B::float_all_dim(x[0].f(), *dim, NATIVE)),
                    Float(B::float_sum_dims(x[0].f(), dims)),
                ]
            );
        }
    }
    report.finish();
}

#[test]
fn floats_in_order() {
    let (mut random, mut report) = (Random::new(22), Report::default());
    for dtype in FLOATS {
        for descending in [false, true] {
            let shape = random.shape(1);
            let dim = random.below(shape.len());
            let k = random.between(1, shape[dim]);
            let a = random.special(&shape, dtype, true);
            let label = format!("{dtype:?} {descending}");
            let index = if descending {
                IntDType::I64
            } else {
                IntDType::I32
            };
            differ!(
                report,
                label,
                [a],
                (d: usize = dim, k: usize = k, down: bool = descending, i: IntDType = index),
                |B, x| [
                    Int(B::float_argmax(x[0].f(), *d, *i)),
                    Int(B::float_argmin(x[0].f(), *d, *i)),
                    Float(B::float_max_dim_with_indices(x[0].f(), *d, *i).0),
                    Int(B::float_max_dim_with_indices(x[0].f(), *d, *i).1),
                    Float(B::float_min_dim_with_indices(x[0].f(), *d, *i).0),
                    Int(B::float_min_dim_with_indices(x[0].f(), *d, *i).1),
                    Float(B::float_sort(x[0].f(), *d, *down)),
                    Float(B::float_sort_with_indices(x[0].f(), *d, *down, *i).0),
                    Int(B::float_sort_with_indices(x[0].f(), *d, *down, *i).1),
                    Int(B::float_argsort(x[0].f(), *d, *down, *i)),
                    Float(B::float_topk(x[0].f(), *d, *k)),
                    Int(B::float_argtopk(x[0].f(), *d, *k, *i)),
                    Float(B::float_topk_with_indices(x[0].f(), *d, *k, *i).0),
                    Int(B::float_topk_with_indices(x[0].f(), *d, *k, *i).1),
                ]
            );
        }
    }
    report.finish();
}

#[test]
fn integers() {
    let (mut random, mut report) = (Random::new(23), Report::default());
    for dtype in ALL_INTS {
        for seed in 0..2 {
            let shape = random.shape(1);
            let dim = random.below(shape.len());
            let low = if matches!(dtype, DType::U64 | DType::U32 | DType::U16 | DType::U8) {
                0
            } else {
                -7
            };
            let wraps = !matches!(dtype, DType::I64 | DType::U64);
            let a = match seed {
                0 if wraps => random.integers(&shape, dtype),
                _ => random.data.ints(&shape, dtype, low, 8),
            };
            differ!(report, format!("{dtype:?}"), [a], (dim: usize = dim), |B, x| [
                Int(B::int_sum(x[0].i())),
                Int(B::int_prod(x[0].i())),
                Int(B::int_mean(x[0].i())),
                Int(B::int_sum_dim(x[0].i(), *dim)),
                Int(B::int_mean_dim(x[0].i(), *dim)),
                Int(B::int_prod_dim(x[0].i(), *dim)),
                Int(B::int_cumsum(x[0].i(), *dim)),
                Int(B::int_cumprod(x[0].i(), *dim)),
            ]);
        }
    }
    report.finish();
}

#[test]
fn integers_in_order() {
    let (mut random, mut report) = (Random::new(24), Report::default());
    for dtype in ALL_INTS {
        for descending in [false, true] {
            let shape = random.shape(1);
            let dim = random.below(shape.len());
            let k = random.between(1, shape[dim]);
            let a = random.integers(&shape, dtype);
            let label = format!("{dtype:?} {descending}");
            differ!(
                report,
                label,
                [a],
                (d: usize = dim, k: usize = k, down: bool = descending),
                |B, x| [
                    Int(B::int_max(x[0].i())),
                    Int(B::int_min(x[0].i())),
                    Int(B::int_max_abs(x[0].i())),
                    Int(B::int_max_dim(x[0].i(), *d)),
                    Int(B::int_min_dim(x[0].i(), *d)),
                    Int(B::int_max_abs_dim(x[0].i(), *d)),
                    Int(B::int_cummax(x[0].i(), *d)),
                    Int(B::int_cummin(x[0].i(), *d)),
                    Int(B::int_argmax(x[0].i(), *d)),
                    Int(B::int_argmin(x[0].i(), *d)),
                    Int(B::int_max_dim_with_indices(x[0].i(), *d).0),
                    Int(B::int_max_dim_with_indices(x[0].i(), *d).1),
                    Int(B::int_min_dim_with_indices(x[0].i(), *d).0),
                    Int(B::int_min_dim_with_indices(x[0].i(), *d).1),
                    Int(B::int_sort(x[0].i(), *d, *down)),
                    Int(B::int_sort_with_indices(x[0].i(), *d, *down).0),
                    Int(B::int_sort_with_indices(x[0].i(), *d, *down).1),
                    Int(B::int_argsort(x[0].i(), *d, *down)),
                    Int(B::int_topk(x[0].i(), *d, *k)),
                    Int(B::int_argtopk(x[0].i(), *d, *k)),
                    Int(B::int_topk_with_indices(x[0].i(), *d, *k).0),
                    Int(B::int_topk_with_indices(x[0].i(), *d, *k).1),
                ]
            );
        }
    }
    report.finish();
}

/// Sums over nothing.
#[test]
fn empty() {
    let (mut random, mut report) = (Random::new(25), Report::default());
    for dtype in FLOATS {
        let a = random.special(&[3, 0, 2], dtype, false);
        differ!(report, format!("{dtype:?}"), [a], (), |B, x| [
            Float(B::float_sum(x[0].f())),
            Float(B::float_prod(x[0].f())),
            Float(B::float_sum_dim(x[0].f(), 1)),
            Float(B::float_sum_dim(x[0].f(), 0)),
            Float(B::float_prod_dim(x[0].f(), 1)),
            Float(B::float_cumsum(x[0].f(), 1)),
            Float(B::float_cumsum(x[0].f(), 0)),
            Float(B::float_sort(x[0].f(), 1, true)),
            Float(B::float_sort(x[0].f(), 0, true)),
        ]);
    }
    report.finish();
}
