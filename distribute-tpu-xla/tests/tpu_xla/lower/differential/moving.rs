//! Operations that move elements, by shape and by index, for floats, integers and truth values.

use burn::tensor::{DType, IndexingUpdateOp, Shape, Slice, TensorData};
use distribute_core::burn_internals::backend;
use distribute_core::burn_internals::backend::Scalar;
use distribute_core::burn_internals::backend::ops::PadMode;

use super::{ALL_INTS, Random, Report, differ};
use crate::lower::harness::FLOATS;
use crate::lower::harness::Prim::{Bool, Float, Int};

/// Random arguments of the operations that change a shape.
#[derive(Clone)]
struct Moves {
    flat: Shape,
    swap: [usize; 2],
    axes: Vec<usize>,
    flip: Vec<usize>,
    dim: usize,
    times: usize,
    unfold: [usize; 2],
    slices: Vec<Slice>,
    expanded: Shape,
    pads: Vec<(usize, usize)>,
    constant: Vec<(usize, usize)>,
}

impl Random {
    fn order(&mut self, rank: usize) -> Vec<usize> {
        let mut axes: Vec<usize> = (0..rank).collect();
        for d in (1..rank).rev() {
            axes.swap(d, self.below(d + 1));
        }
        axes
    }

    /// A range of a dimension: from either end, open or not, with steps of both signs, rarely
    /// empty.
    fn slice(&mut self, size: usize) -> Slice {
        let start = self.below(size);
        let end = self.between(start, size);
        let end = if self.below(6) == 0 {
            end
        } else {
            end.max(start + 1)
        };
        let step = [1, 1, 2, 3, -1, -2][self.below(6)];
        match self.below(4) {
            0 => Slice::new(start as isize, None, step),
            1 => Slice::new(start as isize - size as isize, None, step),
            2 if end < size => Slice::new(start as isize, Some(end as isize - size as isize), step),
            _ => Slice::new(start as isize, Some(end as isize), step),
        }
    }

    fn moves(&mut self, shape: &[usize]) -> Moves {
        let rank = shape.len();
        let dim = self.below(rank);
        let mut flat = shape.to_vec();
        let last = flat.pop().unwrap_or(1);
        match flat.last_mut() {
            Some(size) => *size *= last,
            None => flat.extend([1, last]),
        }
        let size = self.between(1, shape[dim]);
        let mut expanded = vec![self.between(1, 3)];
        expanded.extend(shape);
        let pads = shape
            .iter()
            .map(|size| (self.below(*size), self.below(*size)));
        let pads = pads.collect();
        Moves {
            flat: Shape::from(flat),
            swap: [self.below(rank), self.below(rank)],
            axes: self.order(rank),
            flip: self.order(rank)[..self.between(1, rank)].to_vec(),
            dim,
            times: self.between(1, 3),
            unfold: [size, self.between(1, 3)],
            slices: shape[..self.between(1, rank)]
                .iter()
                .map(|s| self.slice(*s))
                .collect(),
            expanded: Shape::from(expanded),
            pads,
            constant: shape
                .iter()
                .map(|_| (self.below(4), self.below(4)))
                .collect(),
        }
    }
}

/// The operations under their names for one kind of tensor.
macro_rules! moves {
    ($report:expr, $label:expr, $a:expr, $m:expr, $kind:ident.$get:ident, $reshape:ident,
        $swap:ident, $permute:ident, $flip:ident, $repeat:ident, $cat:ident, $unfold:ident,
        $slice:ident, $expand:ident) => {
        differ!($report, $label, [$a], (m: Moves = $m), |B, x| [
            $kind(B::$reshape(x[0].$get(), m.flat.clone())),
            $kind(B::$swap(x[0].$get(), m.swap[0], m.swap[1])),
            $kind(B::$permute(x[0].$get(), &m.axes)),
            $kind(B::$flip(x[0].$get(), &m.flip)),
            $kind(B::$repeat(x[0].$get(), m.dim, m.times)),
            $kind(B::$cat(vec![x[0].$get(), x[0].$get()], m.dim)),
            $kind(B::$unfold(x[0].$get(), m.dim, m.unfold[0], m.unfold[1])),
            $kind(B::$slice(x[0].$get(), &m.slices)),
            $kind(B::$expand(x[0].$get(), m.expanded.clone())),
        ])
    };
}

#[test]
fn shapes() {
    let (mut random, mut report) = (Random::new(31), Report::default());
    for dtype in FLOATS {
        for _ in 0..2 {
            let shape = random.shape(1);
            let m = random.moves(&shape);
            let a = random.special(&shape, dtype, true);
            let label = format!("{dtype:?} {:?} {:?}", m.slices, m.unfold);
            moves!(
                report,
                label,
                a,
                m,
                Float.f,
                float_reshape,
                float_swap_dims,
                float_permute,
                float_flip,
                float_repeat_dim,
                float_cat,
                float_unfold,
                float_slice,
                float_expand
            );
        }
    }
    report.finish();
}

#[test]
fn shapes_of_integers_and_truth_values() {
    let (mut random, mut report) = (Random::new(131), Report::default());
    for dtype in ALL_INTS {
        let shape = random.shape(1);
        let m = random.moves(&shape);
        let a = random.integers(&shape, dtype);
        let label = format!("{dtype:?} {:?} {:?}", m.slices, m.unfold);
        moves!(
            report,
            label,
            a,
            m,
            Int.i,
            int_reshape,
            int_swap_dims,
            int_permute,
            int_flip,
            int_repeat_dim,
            int_cat,
            int_unfold,
            int_slice,
            int_expand
        );
    }
    for _ in 0..2 {
        let shape = random.shape(1);
        let m = random.moves(&shape);
        let a = random.data.bools(&shape);
        let label = format!("bool {:?} {:?}", m.slices, m.unfold);
        moves!(
            report,
            label,
            a,
            m,
            Bool.b,
            bool_reshape,
            bool_swap_dims,
            bool_permute,
            bool_flip,
            bool_repeat_dim,
            bool_cat,
            bool_unfold,
            bool_slice,
            bool_expand
        );
    }
    report.finish();
}

#[test]
fn padding() {
    let (mut random, mut report) = (Random::new(32), Report::default());
    for dtype in FLOATS {
        let shape = random.shape(2);
        let m = random.moves(&shape);
        let a = random.special(&shape, dtype, true);
        differ!(report, format!("{dtype:?} {:?}", m.pads), [a], (m: Moves = m), |B, x| [
            Float(B::float_pad(x[0].f(), &m.constant, PadMode::Constant(1.5))),
            Float(B::float_pad(x[0].f(), &m.pads, PadMode::Reflect)),
            Float(B::float_pad(x[0].f(), &m.constant, PadMode::Edge)),
        ]);
    }
    for dtype in ALL_INTS {
        let shape = random.shape(2);
        let m = random.moves(&shape);
        let a = random.integers(&shape, dtype);
        differ!(report, format!("{dtype:?} {:?}", m.pads), [a], (m: Moves = m), |B, x| [
            Int(B::int_pad(x[0].i(), &m.constant, PadMode::Constant(3.0))),
            Int(B::int_pad(x[0].i(), &m.pads, PadMode::Reflect)),
            Int(B::int_pad(x[0].i(), &m.constant, PadMode::Edge)),
        ]);
    }
    report.finish();
}

/// The dimensions that slices leave.
fn sliced(shape: &[usize], slices: &[Slice]) -> Vec<usize> {
    let count = |(d, size): (usize, &usize)| {
        slices.get(d).map_or(*size, |slice| {
            slice
                .to_range(*size)
                .len()
                .div_ceil(slice.step().unsigned_abs())
        })
    };
    shape.iter().enumerate().map(count).collect()
}

#[test]
fn assignments_to_slices() {
    let (mut random, mut report) = (Random::new(33), Report::default());
    for round in 0..18 {
        let shape = random.shape(1);
        let slices = random.moves(&shape).slices;
        let part = sliced(&shape, &slices);
        let label = format!("{slices:?}");
        let s = slices.clone();
        match round % 3 {
            0 => {
                let dtype = FLOATS[random.below(4)];
                let a = random.special(&shape, dtype, true);
                let b = random.special(&part, dtype, true);
                differ!(report, label, [a, b], (s: Vec<Slice> = s), |B, x| [
                    Float(B::float_slice_assign(x[0].f(), s, x[1].f())),
                ]);
            }
            1 => {
                let dtype = ALL_INTS[random.below(8)];
                let a = random.integers(&shape, dtype);
                let b = random.integers(&part, dtype);
                differ!(report, label, [a, b], (s: Vec<Slice> = s), |B, x| [
                    Int(B::int_slice_assign(x[0].i(), s, x[1].i())),
                ]);
            }
            _ => {
                let (a, b) = (random.data.bools(&shape), random.data.bools(&part));
                differ!(report, label, [a, b], (s: Vec<Slice> = s), |B, x| [
                    Bool(B::bool_slice_assign(x[0].b(), s, x[1].b())),
                ]);
            }
        }
    }
    report.finish();
}

/// The ways to write by index, of which [`IndexingUpdateOp::Assign`] has no order for two writes
/// to one place.
const COMBINING: [IndexingUpdateOp; 4] = [
    IndexingUpdateOp::Add,
    IndexingUpdateOp::Mul,
    IndexingUpdateOp::Min,
    IndexingUpdateOp::Max,
];

/// Random indices into `0..limit`, of any integer type.
fn indices(random: &mut Random, shape: &[usize], limit: usize) -> TensorData {
    let dtype = ALL_INTS[random.below(8)];
    random.data.ints(shape, dtype, 0, limit as i64)
}

#[test]
fn floats_by_index() {
    let (mut random, mut report) = (Random::new(34), Report::default());
    for dtype in FLOATS {
        for _ in 0..2 {
            let shape = random.shape(1);
            let dim = random.below(shape.len());
            let mut some = shape.clone();
            some[dim] = random.between(1, 5);
            let a = random.special(&shape, dtype, false);
            let at = indices(&mut random, &some, shape[dim]);
            let value = random.special(&some, dtype, false);
            let row = indices(&mut random, &some[dim..=dim], shape[dim]);
            let label = format!("{dtype:?} {dim} {:?}", at.dtype());
            differ!(
                report,
                label,
                [a, at, value, row],
                (d: usize = dim),
                |B, x| [
                    Float(B::float_gather(*d, x[0].f(), x[1].i())),
                    Float(B::float_scatter(*d, x[0].f(), x[1].i(), x[2].f(), COMBINING[0])),
                    Float(B::float_scatter(*d, x[0].f(), x[1].i(), x[2].f(), COMBINING[1])),
                    Float(B::float_scatter(*d, x[0].f(), x[1].i(), x[2].f(), COMBINING[2])),
                    Float(B::float_scatter(*d, x[0].f(), x[1].i(), x[2].f(), COMBINING[3])),
                    Float(B::float_select(x[0].f(), *d, x[3].i())),
                    Float(B::float_select_assign(x[0].f(), *d, x[3].i(), x[2].f(), COMBINING[0])),
                    Float(B::float_select_assign(x[0].f(), *d, x[3].i(), x[2].f(), COMBINING[1])),
                    Float(B::float_select_assign(x[0].f(), *d, x[3].i(), x[2].f(), COMBINING[2])),
                    Float(B::float_select_assign(x[0].f(), *d, x[3].i(), x[2].f(), COMBINING[3])),
                ]
            );
        }
    }
    report.finish();
}

#[test]
fn integers_by_index() {
    let (mut random, mut report) = (Random::new(35), Report::default());
    for dtype in ALL_INTS {
        for _ in 0..2 {
            let shape = random.shape(1);
            let dim = random.below(shape.len());
            let mut some = shape.clone();
            some[dim] = random.between(1, 5);
            let a = random.data.ints(&shape, dtype, 0, 9);
            let at = indices(&mut random, &some, shape[dim]);
            let value = random.data.ints(&some, dtype, 0, 9);
            let row = indices(&mut random, &some[dim..=dim], shape[dim]);
            let label = format!("{dtype:?} {dim} {:?}", at.dtype());
            differ!(
                report,
                label,
                [a, at, value, row],
                (d: usize = dim),
                |B, x| [
                    Int(B::int_gather(*d, x[0].i(), x[1].i())),
                    Int(B::int_scatter(*d, x[0].i(), x[1].i(), x[2].i(), COMBINING[0])),
                    Int(B::int_scatter(*d, x[0].i(), x[1].i(), x[2].i(), COMBINING[1])),
                    Int(B::int_scatter(*d, x[0].i(), x[1].i(), x[2].i(), COMBINING[2])),
                    Int(B::int_scatter(*d, x[0].i(), x[1].i(), x[2].i(), COMBINING[3])),
                    Int(B::int_select(x[0].i(), *d, x[3].i())),
                    Int(B::int_select_assign(x[0].i(), *d, x[3].i(), x[2].i(), COMBINING[0])),
                    Int(B::int_select_assign(x[0].i(), *d, x[3].i(), x[2].i(), COMBINING[1])),
                    Int(B::int_select_assign(x[0].i(), *d, x[3].i(), x[2].i(), COMBINING[2])),
                    Int(B::int_select_assign(x[0].i(), *d, x[3].i(), x[2].i(), COMBINING[3])),
                ]
            );
        }
    }
    for _ in 0..4 {
        let shape = random.shape(1);
        let dim = random.below(shape.len());
        let mut some = shape.clone();
        some[dim] = random.between(1, 5);
        let (a, value) = (random.data.bools(&shape), random.data.bools(&some));
        let at = indices(&mut random, &some, shape[dim]);
        let row = indices(&mut random, &some[dim..=dim], shape[dim]);
        differ!(report, "bool", [a, at, value, row], (d: usize = dim), |B, x| [
            Bool(B::bool_gather(*d, x[0].b(), x[1].i())),
            Bool(B::bool_scatter_or(*d, x[0].b(), x[1].i(), x[2].b())),
            Bool(B::bool_select(x[0].b(), *d, x[3].i())),
            Bool(B::bool_select_or(x[0].b(), *d, x[3].i(), x[2].b())),
        ]);
    }
    report.finish();
}

/// Writes where no place is written twice, and places of several coordinates.
#[test]
fn assignments_by_index() {
    let (mut random, mut report) = (Random::new(36), Report::default());
    let assign = IndexingUpdateOp::Assign;
    for dtype in FLOATS {
        let (rows, width) = (random.between(2, 7), random.between(1, 4));
        let order: Vec<i64> = random.order(rows).iter().map(|i| *i as i64).collect();
        let count = random.between(1, rows);
        let row = TensorData::new(order[..count].to_vec(), [count]);
        let pairs = random
            .data
            .ints(&[3, 2], DType::I32, 0, rows.min(width) as i64);
        let a = random.special(&[rows, width, 3], dtype, false);
        let value = random.special(&[count, width, 3], dtype, false);
        let parts = random.special(&[3, 3], dtype, false);
        let label = format!("{dtype:?}");
        differ!(
            report,
            label,
            [a, row, value, pairs, parts],
            (u: IndexingUpdateOp = assign),
            |B, x| [
                Float(B::float_select_assign(x[0].f(), 0, x[1].i(), x[2].f(), *u)),
                Float(B::float_gather_nd(x[0].f(), x[3].i())),
                Float(B::float_scatter_nd(x[0].f(), x[3].i(), x[4].f(), COMBINING[0])),
                Float(B::float_scatter_nd(x[0].f(), x[3].i(), x[4].f(), COMBINING[3])),
                Float(B::float_mask_fill(
                    x[0].f(),
                    B::float_is_nan(x[0].f(), backend::BoolDType::Native),
                    Scalar::Int(2)
                )),
            ]
        );
    }
    for dtype in ALL_INTS {
        let pairs = random.data.ints(&[3, 2], DType::I64, 0, 3);
        let a = random.data.ints(&[4, 3, 2], dtype, 0, 9);
        let parts = random.data.ints(&[3, 2], dtype, 0, 9);
        differ!(
            report,
            format!("{dtype:?}"),
            [a, pairs, parts],
            (),
            |B, x| [
                Int(B::int_gather_nd(x[0].i(), x[1].i())),
                Int(B::int_scatter_nd(
                    x[0].i(),
                    x[1].i(),
                    x[2].i(),
                    COMBINING[0]
                )),
                Int(B::int_scatter_nd(
                    x[0].i(),
                    x[1].i(),
                    x[2].i(),
                    COMBINING[2]
                )),
            ]
        );
    }
    report.finish();
}
