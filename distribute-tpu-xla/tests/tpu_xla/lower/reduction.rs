//! Reductions, extremes, sorting.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::IntDType;

use crate::check;
use crate::lower::harness::Prim::{Float, Int};
use crate::lower::harness::{Data, FLOATS, INTS, typed};

#[test]
fn floats_over_everything_and_one_dimension() {
    let mut data = Data::new(41);
    for dtype in FLOATS {
        for shape in [[2, 3, 4], [1, 17, 1]] {
            for dim in 0..3 {
                let a = data.floats(&shape, dtype, 0.25, 1.75);
                check!(format!("reduce {dtype:?}"), [a], (dim: usize = dim), |B, x| [
                    Float(B::float_sum(x[0].f())),
                    Float(B::float_mean(x[0].f())),
                    Float(B::float_prod(x[0].f())),
                    Float(B::float_max(x[0].f())),
                    Float(B::float_min(x[0].f())),
                    Float(B::float_max_abs(x[0].f())),
                    Float(B::float_sum_dim(x[0].f(), dim)),
                    Float(B::float_mean_dim(x[0].f(), dim)),
                    Float(B::float_prod_dim(x[0].f(), dim)),
                    Float(B::float_max_dim(x[0].f(), dim)),
                    Float(B::float_min_dim(x[0].f(), dim)),
                    Float(B::float_max_abs_dim(x[0].f(), dim)),
                    Float(B::float_sum_dims(x[0].f(), &[0, dim.max(1)])),
                ]);
            }
        }
    }
}

#[test]
fn half_floats_are_summed_without_losing_small_parts() {
    let mut data = Data::new(42);
    for dtype in [DType::F16, DType::BF16] {
        let a = data.floats(&[4, 2000], dtype, 0.5, 1.5);
        check!(format!("long sums {dtype:?}"), [a], |B, x| [
            Float(B::float_sum_dim(x[0].f(), 1)),
            Float(B::float_mean_dim(x[0].f(), 1)),
            Float(B::float_mean(x[0].f())),
        ]);
    }
}

#[test]
fn ints_over_everything_and_one_dimension() {
    let mut data = Data::new(43);
    for dtype in INTS {
        let low = if matches!(dtype, DType::U32 | DType::U8) {
            0
        } else {
            -6
        };
        for dim in 0..2 {
            let a = data.ints(&[3, 5], dtype, low, 6);
            check!(format!("int reduce {dtype:?}"), [a], (dim: usize = dim), |B, x| [
                Int(B::int_sum(x[0].i())),
                Int(B::int_prod(x[0].i())),
                Int(B::int_max(x[0].i())),
                Int(B::int_min(x[0].i())),
                Int(B::int_sum_dim(x[0].i(), dim)),
                Int(B::int_mean_dim(x[0].i(), dim)),
                Int(B::int_prod_dim(x[0].i(), dim)),
                Int(B::int_max_dim(x[0].i(), dim)),
                Int(B::int_min_dim(x[0].i(), dim)),
                Int(B::int_argmax(x[0].i(), dim)),
                Int(B::int_argmin(x[0].i(), dim)),
                Int(B::int_cumsum(x[0].i(), dim)),
                Int(B::int_cummax(x[0].i(), dim)),
            ]);
        }
    }
}

#[test]
fn the_first_of_equal_extremes_wins() {
    let mut data = Data::new(44);
    for dtype in FLOATS {
        for dim in 0..2 {
            let few = data.ints(&[6, 9], DType::I64, 0, 3);
            let a = typed(few.iter::<f64>().collect(), &[6, 9], dtype);
            check!(format!("extremes {dtype:?}"), [a], (dim: usize = dim), |B, x| [
                Int(B::float_argmax(x[0].f(), dim, IntDType::I64)),
                Int(B::float_argmin(x[0].f(), dim, IntDType::I32)),
                Float(B::float_max_dim_with_indices(x[0].f(), dim, IntDType::I64).0),
                Int(B::float_max_dim_with_indices(x[0].f(), dim, IntDType::I64).1),
                Float(B::float_min_dim_with_indices(x[0].f(), dim, IntDType::I32).0),
                Int(B::float_min_dim_with_indices(x[0].f(), dim, IntDType::I32).1),
            ]);
        }
    }
}

#[test]
fn nan_wins_and_infinity_is_a_number() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let rows = vec![
        1.0, nan, 5.0, nan, //
        nan, 2.0, 1.0, 0.0, //
        -inf, -inf, -inf, -inf, //
        inf, inf, inf, inf, //
        -inf, 3.0, inf, -1.0,
    ];
    for dtype in [DType::F32, DType::F64] {
        let a = typed(rows.clone(), &[5, 4], dtype);
        check!("special extremes", [a], |B, x| [
            Int(B::float_argmax(x[0].f(), 1, IntDType::I64)),
            Int(B::float_argmin(x[0].f(), 1, IntDType::I64)),
            Float(B::float_max_dim(x[0].f(), 1)),
            Float(B::float_min_dim(x[0].f(), 1)),
            Float(B::float_cummax(x[0].f(), 1)),
            Float(B::float_cummin(x[0].f(), 1)),
        ]);
    }
}

#[test]
fn running_results() {
    let mut data = Data::new(45);
    for dtype in FLOATS {
        for dim in 0..3 {
            let a = data.floats(&[3, 4, 5], dtype, 0.5, 1.5);
            check!(format!("running {dtype:?}"), [a], (dim: usize = dim), |B, x| [
                Float(B::float_cumsum(x[0].f(), dim)),
                Float(B::float_cumprod(x[0].f(), dim)),
                Float(B::float_cummax(x[0].f(), dim)),
                Float(B::float_cummin(x[0].f(), dim)),
            ]);
        }
    }
}

#[test]
fn sorting() {
    let mut data = Data::new(46);
    for dtype in FLOATS {
        for (dim, descending) in [(0, false), (1, true), (1, false)] {
            let a = data.floats(&[7, 5], dtype, -100.0, 100.0);
            check!(
                format!("sort {dtype:?}"),
                [a],
                (dim: usize = dim, descending: bool = descending),
                |B, x| [
                    Float(B::float_sort(x[0].f(), dim, descending)),
                    Float(B::float_sort_with_indices(x[0].f(), dim, descending, IntDType::I64).0),
                    Int(B::float_sort_with_indices(x[0].f(), dim, descending, IntDType::I64).1),
                    Int(B::float_argsort(x[0].f(), dim, descending, IntDType::I64)),
                    Float(B::float_topk(x[0].f(), dim, 3)),
                    Int(B::float_argtopk(x[0].f(), dim, 2, IntDType::I64)),
                    Float(B::float_topk_with_indices(x[0].f(), dim, 2, IntDType::I64).0),
                    Int(B::float_topk_with_indices(x[0].f(), dim, 2, IntDType::I64).1),
                ]
            );
        }
    }
    let special = vec![
        1.0,
        f64::NAN,
        f64::NEG_INFINITY,
        -0.0,
        0.0,
        f64::INFINITY,
        -1.0,
    ];
    let a = typed(special, &[7], DType::F32);
    let b = data.ints(&[4, 6], DType::I32, -1000, 1000);
    check!("sort special and ints", [a, b], |B, x| [
        Float(B::float_sort(x[0].f(), 0, false)),
        Float(B::float_sort(x[0].f(), 0, true)),
        Int(B::int_sort(x[1].i(), 1, true)),
        Int(B::int_sort(x[1].i(), 0, false)),
    ]);
}
