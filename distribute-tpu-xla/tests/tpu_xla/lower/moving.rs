//! Operations that move elements, by shape or by index.

use burn::tensor::{DType, IndexingUpdateOp, Shape, Slice};
use distribute_core::burn_internals::backend;
use distribute_core::burn_internals::backend::ops::PadMode;
use distribute_core::burn_internals::backend::{BoolDType, FloatDType, IntDType, Scalar};

use crate::check;
use crate::lower::harness::Prim::{Bool, Float, Int};
use crate::lower::harness::{Data, FLOATS, ints, typed};

#[test]
fn shapes() {
    let mut data = Data::new(31);
    for dtype in FLOATS {
        let a = data.normal(&[2, 3, 4], dtype);
        check!(format!("shapes {dtype:?}"), [a], |B, x| [
            Float(B::float_reshape(x[0].f(), Shape::from(vec![4, 6]))),
            Float(B::float_reshape(x[0].f(), Shape::from(vec![24]))),
            Float(B::float_swap_dims(x[0].f(), 0, 2)),
            Float(B::float_permute(x[0].f(), &[1, 2, 0])),
            Float(B::float_flip(x[0].f(), &[0, 2])),
            Float(B::float_repeat_dim(x[0].f(), 1, 3)),
            Float(B::float_cat(vec![x[0].f(), x[0].f(), x[0].f()], 1)),
            Float(B::float_unfold(x[0].f(), 2, 2, 1)),
            Float(B::float_unfold(x[0].f(), 1, 2, 1)),
        ]);
    }
    let a = data.ints(&[1, 3, 1], DType::I64, -9, 9);
    let b = data.bools(&[3, 1, 2]);
    check!("shapes of ints and bools", [a, b], |B, x| [
        Int(B::int_expand(x[0].i(), Shape::from(vec![4, 3, 5]))),
        Int(B::int_reshape(x[0].i(), Shape::from(vec![3]))),
        Bool(B::bool_permute(x[1].b(), &[2, 0, 1])),
        Bool(B::bool_expand(x[1].b(), Shape::from(vec![3, 6, 2]))),
        Bool(B::bool_cat(vec![x[1].b(), x[1].b()], 2)),
        Bool(B::bool_flip(x[1].b(), &[1, 2])),
    ]);
}

#[test]
fn slices() {
    let mut data = Data::new(32);
    let cases: [&[Slice]; 6] = [
        &[Slice::new(1, Some(3), 1)],
        &[Slice::new(0, None, 2), Slice::new(1, Some(6), 3)],
        &[
            Slice::new(-3, None, 1),
            Slice::new(0, Some(-1), 1),
            Slice::new(2, Some(3), 1),
        ],
        &[Slice::new(0, None, -1), Slice::new(1, Some(6), -2)],
        &[Slice::new(0, Some(4), -3)],
        &[Slice::new(2, Some(2), 1)],
    ];
    for slices in cases {
        let a = data.normal(&[4, 7, 3], DType::F32);
        check!(format!("slice {slices:?}"), [a], (s: Vec<Slice> = slices.to_vec()), |B, x| [
            Float(B::float_slice(x[0].f(), &s))
        ]);
    }
}

#[test]
fn assignments_to_slices() {
    let mut data = Data::new(33);
    let cases: [(&[Slice], [usize; 2]); 5] = [
        (&[Slice::new(1, Some(3), 1)], [2, 7]),
        (&[Slice::new(0, None, 1), Slice::new(2, Some(5), 1)], [5, 3]),
        (&[Slice::new(0, None, 2), Slice::new(1, Some(6), 3)], [3, 2]),
        (&[Slice::new(0, None, -1), Slice::new(-3, None, 1)], [5, 3]),
        (
            &[Slice::new(0, Some(4), -3), Slice::new(0, None, -2)],
            [2, 4],
        ),
    ];
    for (slices, shape) in cases {
        let a = data.normal(&[5, 7], DType::F32);
        let value = data.normal(&shape, DType::F32);
        let name = format!("assign {slices:?}");
        check!(name, [a, value], (s: Vec<Slice> = slices.to_vec()), |B, x| [
            Float(B::float_slice_assign(x[0].f(), &s, x[1].f()))
        ]);
        let a = data.bools(&[5, 7]);
        let value = data.bools(&shape);
        check!(name, [a, value], (s: Vec<Slice> = slices.to_vec()), |B, x| [
            Bool(B::bool_slice_assign(x[0].b(), &s, x[1].b()))
        ]);
    }
}

#[test]
fn padding() {
    let mut data = Data::new(34);
    for mode in [PadMode::Constant(1.5), PadMode::Reflect, PadMode::Edge] {
        for pads in [vec![(0, 0), (1, 2)], vec![(2, 1), (3, 0)]] {
            let a = data.normal(&[4, 5], DType::F32);
            let vars = pads.clone();
            check!(
                format!("pad {mode:?} {pads:?}"),
                [a],
                (p: Vec<(usize, usize)> = vars, mode: PadMode = mode),
                |B, x| [Float(B::float_pad(x[0].f(), &p, mode))]
            );
        }
    }
}

#[test]
fn selecting() {
    let mut data = Data::new(35);
    for index in [DType::I64, DType::I32] {
        for dim in 0..3 {
            let a = data.normal(&[4, 5, 6], DType::F32);
            let at = data.ints(&[7], index, 0, 4);
            let mut shape = vec![4, 5, 6];
            shape[dim] = 7;
            let value = data.normal(&shape, DType::F32);
            check!(
                format!("select {dim} {index:?}"),
                [a, at, value],
                (dim: usize = dim),
                |B, x| [
                    Float(B::float_select(x[0].f(), dim, x[1].i())),
                    Float(B::float_select_assign(
                        x[0].f(),
                        dim,
                        x[1].i(),
                        x[2].f(),
                        IndexingUpdateOp::Add,
                    )),
                ]
            );
        }
    }
    let a = data.ints(&[6, 2], DType::I64, 0, 100);
    let flags = data.bools(&[6, 2]);
    let at = ints(vec![5, 0, 0, 3], &[4], DType::I32);
    check!("select of ints and bools", [a, flags, at], |B, x| [
        Int(B::int_select(x[0].i(), 0, x[2].i())),
        Bool(B::bool_select(x[1].b(), 0, x[2].i())),
    ]);
}

#[test]
fn gathering_and_scattering() {
    let mut data = Data::new(36);
    for dtype in FLOATS {
        for dim in 0..3 {
            let a = data.normal(&[3, 4, 5], dtype);
            let mut shape = [3, 4, 5];
            shape[dim] = 2;
            let at = data.ints(&shape, DType::I64, 0, 3);
            let value = data.normal(&shape, dtype);
            check!(
                format!("gather {dim} {dtype:?}"),
                [a, at, value],
                (dim: usize = dim),
                |B, x| [
                    Float(B::float_gather(dim, x[0].f(), x[1].i())),
                    Float(B::float_scatter(
                        dim,
                        x[0].f(),
                        x[1].i(),
                        x[2].f(),
                        IndexingUpdateOp::Add,
                    )),
                ]
            );
        }
    }
}

#[test]
fn every_kind_of_update() {
    let mut data = Data::new(37);
    let a = data.normal(&[3, 6], DType::F32);
    // No place twice, so that an assignment has one meaning.
    let at = ints(vec![5, 0, 2, 1, 4, 3, 0, 2, 1], &[3, 3], DType::I32);
    let value = data.normal(&[3, 3], DType::F32);
    let updates = [
        IndexingUpdateOp::Assign,
        IndexingUpdateOp::Add,
        IndexingUpdateOp::Mul,
        IndexingUpdateOp::Min,
        IndexingUpdateOp::Max,
    ];
    for update in updates {
        check!(
            format!("scatter {update:?}"),
            [a.clone(), at.clone(), value.clone()],
            (update: IndexingUpdateOp = update),
            |B, x| [Float(B::float_scatter(1, x[0].f(), x[1].i(), x[2].f(), update))]
        );
    }
    let flags = data.bools(&[3, 6]);
    let more = data.bools(&[3, 3]);
    check!("scatter of bools", [flags, at, more], |B, x| [
        Bool(B::bool_gather(1, x[0].b(), x[1].i())),
        Bool(B::bool_scatter_or(1, x[0].b(), x[1].i(), x[2].b())),
    ]);
}

#[test]
fn indices_of_several_dimensions() {
    let mut data = Data::new(38);
    let a = data.normal(&[3, 4, 5], DType::F32);
    let pairs = data.ints(&[6, 2], DType::I64, 0, 3);
    let single = data.ints(&[2, 2, 1], DType::I64, 0, 3);
    let value = data.normal(&[6, 5], DType::F32);
    check!("nd", [a, pairs, single, value], |B, x| [
        Float(B::float_gather_nd(x[0].f(), x[1].i())),
        Float(B::float_gather_nd(x[0].f(), x[2].i())),
        Float(B::float_scatter_nd(
            x[0].f(),
            x[1].i(),
            x[3].f(),
            IndexingUpdateOp::Add
        )),
    ]);
}

#[test]
fn new_tensors() {
    let mut data = Data::new(39);
    let a = data.normal(&[2, 2], DType::F32);
    check!("new tensors", [a], |B, x| [
        Float(B::float_zeros(
            Shape::from(vec![2, 3]),
            &device::<B>(&x[0].f()),
            FloatDType::F32
        )),
        Float(B::float_ones(
            Shape::from(vec![2, 3]),
            &device::<B>(&x[0].f()),
            FloatDType::BF16
        )),
        Float(B::float_full(
            Shape::from(vec![3]),
            Scalar::Float(f64::NEG_INFINITY),
            &device::<B>(&x[0].f()),
            FloatDType::F64
        )),
        Int(B::int_full(
            Shape::from(vec![3]),
            Scalar::Int(-7),
            &device::<B>(&x[0].f()),
            IntDType::I32
        )),
        Int(B::int_ones(
            Shape::from(vec![3]),
            &device::<B>(&x[0].f()),
            IntDType::I64
        )),
        Int(B::int_arange(2..9, &device::<B>(&x[0].f()), IntDType::I64)),
        Bool(B::bool_ones(
            Shape::from(vec![2]),
            &device::<B>(&x[0].f()),
            BoolDType::Native
        )),
        Bool(B::bool_zeros(
            Shape::from(vec![2]),
            &device::<B>(&x[0].f()),
            BoolDType::Native
        )),
    ]);
}

fn device<B: backend::Backend>(x: &B::FloatTensorPrimitive) -> B::Device {
    backend::TensorMetadata::device(x)
}

/// A NaN that is written is neither the larger nor the smaller one; one that is there stays.
#[test]
fn nan_and_updates_to_the_larger_or_smaller() {
    let nan = f64::NAN;
    let a = typed(vec![1.0, nan, 2.0, 0.5], &[4], DType::F32);
    let at = ints(vec![0, 1, 2, 2], &[4], DType::I64);
    let value = typed(vec![nan, 5.0, 3.0, nan], &[4], DType::F32);
    for update in [IndexingUpdateOp::Min, IndexingUpdateOp::Max] {
        check!(
            format!("NaN {update:?}"),
            [a.clone(), at.clone(), value.clone()],
            (u: IndexingUpdateOp = update),
            |B, x| [
                Float(B::float_scatter(0, x[0].f(), x[1].i(), x[2].f(), u)),
                Float(B::float_select_assign(x[0].f(), 0, x[1].i(), x[2].f(), u)),
            ]
        );
    }
}
