//! Every covered operation on random shapes, every element type that burn has for it, and values
//! that include NaN, infinities, both zeros and the limits of the type, against flex.
//!
//! `DISTRIBUTE_TEST_SEED` repeats all of it with other shapes and values.

mod elementwise;
mod exceptions;
mod ints;
mod moving;
mod ranks;
mod reducing;
mod windows;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, TensorData};
use burn_flex::Flex;
use distribute_core::burn_internals::backend::Backend;

use crate::lower::harness::{
    Data, Prim, Step, Tolerance, capture, client, execute, floats as values, ints as whole,
    lowered, typed,
};
use exceptions::{excused, refused};

/// The integer types of burn.
const ALL_INTS: [DType; 8] = [
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
];

/// One output of a case, computed when it is asked for.
type Output<'a, B> = Box<dyn Fn() -> Prim<B> + 'a>;

/// Several operations on the same inputs, each of which may fail alone.
trait Case {
    const NAMES: &'static [&'static str];

    fn outputs<'a, B: Backend>(&'a self, x: &'a [Prim<B>]) -> Vec<Output<'a, B>>;
}

/// Those outputs of a case that flex can compute.
struct Chosen<'a, C> {
    case: &'a C,
    which: Vec<usize>,
}

impl<C: Case> Step for Chosen<'_, C> {
    fn run<B: Backend>(&self, x: &[Prim<B>]) -> Vec<Prim<B>> {
        let outputs = self.case.outputs(x);
        self.which.iter().map(|i| outputs[*i]()).collect()
    }
}

/// What was found: each operation at most once per label.
#[derive(Default)]
struct Report {
    found: Vec<String>,
    seen: std::collections::HashSet<String>,
    compared: usize,
}

impl Report {
    fn add(&mut self, label: &str, name: &str, what: &str) {
        if self.seen.insert(format!("{label} {name}")) {
            self.found.push(format!("{label}: {name}: {what}"));
        }
    }

    /// Compares XLA with flex on every output of `case`.
    fn run(&mut self, label: &str, inputs: Vec<TensorData>, case: &impl Case) {
        let Some(client) = client() else { return };
        let prims: Vec<Prim<Flex>> = inputs
            .iter()
            .map(|data| Prim::from_data(data.clone(), &Default::default()))
            .collect();
        let (mut which, mut expected) = (vec![], vec![]);
        for (i, output) in case.outputs(&prims).iter().enumerate() {
            match catch_unwind(AssertUnwindSafe(|| output().into_data())) {
                Ok(data) => {
                    which.push(i);
                    expected.push(data);
                }
                Err(panic) if refused(names(case)[i], &text(&panic)) => {}
                Err(panic) => self.add(label, names(case)[i], &format!("flex: {}", text(&panic))),
            }
        }
        let chosen = Chosen { case, which };
        let lowered = lowered(&capture(&inputs, &chosen));
        let shapes: Vec<_> = inputs.iter().map(|x| x.shape().to_vec()).collect();
        let actual = execute(client, &lowered, &[inputs]).remove(0);
        for ((i, expected), actual) in chosen.which.iter().zip(&expected).zip(&actual) {
            self.compared += 1;
            if let Some(what) = difference(names(case)[*i], expected, actual) {
                self.add(label, names(case)[*i], &format!("{what} ({shapes:?})"));
            }
        }
    }

    /// Fails if anything is different.
    fn finish(self) {
        assert!(self.compared > 0 || client().is_none(), "nothing compared");
        let count = self.found.len();
        assert!(
            count == 0,
            "{count} differences:\n{}",
            self.found.join("\n")
        );
    }
}

fn names<C: Case>(_: &C) -> &'static [&'static str] {
    C::NAMES
}

fn text(panic: &Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_default()
}

/// The first element that is neither close nor excused. Zeros of different sign are different.
fn difference(name: &str, expected: &TensorData, actual: &TensorData) -> Option<String> {
    if expected.shape() != actual.shape() {
        return Some(format!(
            "shape {:?}, {:?}",
            expected.shape(),
            actual.shape()
        ));
    }
    if !expected.dtype().is_float() {
        let (e, a): (Vec<i128>, Vec<i128>) = (whole_of(expected), whole_of(actual));
        let at = (0..e.len()).find(|i| e[*i] != a[*i]);
        return at.map(|i| format!("element {i}: flex {}, XLA {}", e[i], a[i]));
    }
    if expected.dtype() != actual.dtype() {
        return Some(format!("{:?}, {:?}", expected.dtype(), actual.dtype()));
    }
    let (dtype, t) = (expected.dtype(), Tolerance::of(expected.dtype()));
    let (e, a) = (values(expected), values(actual));
    let same = |e: f64, a: f64| {
        let zeros = e == 0.0 && a == 0.0 && e.is_sign_negative() != a.is_sign_negative();
        let equal = e == a || (e.is_nan() && a.is_nan());
        let close = (e - a).abs() <= t.absolute + t.relative * e.abs() && a.is_finite();
        !zeros && (equal || (e.is_finite() && close))
    };
    let at = (0..e.len()).find(|i| !same(e[*i], a[*i]) && !excused(name, dtype, e[*i], a[*i]));
    at.map(|i| format!("element {i}: flex {:?}, XLA {:?}", e[i], a[i]))
}

fn whole_of(data: &TensorData) -> Vec<i128> {
    match data.dtype() {
        DType::U64 => data.iter::<u64>().map(i128::from).collect(),
        _ => data.iter::<i64>().map(i128::from).collect(),
    }
}

/// Compares a case: the operations, their inputs, and values that they take besides.
macro_rules! differ {
    ($report:expr, $label:expr, [$($input:expr),* $(,)?],
        ($($var:ident: $ty:ty = $value:expr),* $(,)?),
        |$b:ident, $x:ident| [$($out:expr),* $(,)?]) => {{
        struct These { $($var: $ty),* }
        impl $crate::lower::differential::Case for These {
            const NAMES: &'static [&'static str] = &[$(stringify!($out)),*];

            fn outputs<'a, $b: distribute_core::burn_internals::backend::Backend>(
                &'a self,
                $x: &'a [$crate::lower::harness::Prim<$b>],
            ) -> Vec<$crate::lower::differential::Output<'a, $b>> {
                $(let $var = &self.$var; let _ = $var;)*
                vec![$(Box::new(move || $out)),*]
            }
        }
        let label = String::from($label);
        let these = These { $($var: $value),* };
        $report.run(&label, vec![$($input),*], &these)
    }};
}
use differ;

/// Random shapes and values.
struct Random {
    data: Data,
}

impl Random {
    fn new(seed: u64) -> Self {
        let variable = std::env::var("DISTRIBUTE_TEST_SEED").ok();
        let more: u64 = variable.and_then(|v| v.parse().ok()).unwrap_or(0);
        Self {
            data: Data::new(seed.wrapping_add(more.wrapping_mul(1_000_003))),
        }
    }

    /// In `0..limit`.
    fn below(&mut self, limit: usize) -> usize {
        (self.data.next() >> 33) as usize % limit.max(1)
    }

    /// In `low..=high`.
    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Of rank `low..=4`, sizes 1 to 7.
    fn shape(&mut self, low: usize) -> Vec<usize> {
        let rank = self.between(low, 4);
        let most = if rank == 4 { 4 } else { 7 };
        (0..rank).map(|_| self.between(1, most)).collect()
    }

    /// [`Self::shape`], where now and then one dimension is empty.
    fn shape_or_empty(&mut self, low: usize, empty: bool) -> Vec<usize> {
        let mut shape = self.shape(low);
        if empty {
            let at = self.below(shape.len());
            shape[at] = 0;
        }
        shape
    }

    /// Two shapes that broadcast to `shape`.
    fn broadcast(&mut self, shape: &[usize]) -> [Vec<usize>; 2] {
        let (mut left, mut right) = (shape.to_vec(), shape.to_vec());
        for d in 0..shape.len() {
            match self.below(5) {
                0 => left[d] = 1,
                1 => right[d] = 1,
                _ => {}
            }
        }
        [left, right]
    }

    /// Floats of which each third is special: NaN, infinities, zeros, halves, whole numbers and,
    /// with `limits`, the largest and smallest numbers of the type.
    fn special(&mut self, shape: &[usize], dtype: DType, limits: bool) -> TensorData {
        let max = match dtype {
            DType::F64 => f64::MAX,
            DType::F16 => 65504.0,
            DType::BF16 => 3.3895313892515355e38,
            _ => f64::from(f32::MAX),
        };
        let inf = f64::INFINITY;
        let mut special = vec![
            f64::NAN,
            inf,
            -inf,
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -0.5,
            1.5,
            2.5,
        ];
        special.extend([-1.5, -2.5, 2.0, -2.0, 3.0]);
        if limits {
            special.extend([max, -max, 100.0, -100.0, 1e-4, -1e-4]);
        }
        let count = shape.iter().product();
        let values = (0..count).map(|_| match self.below(3) {
            0 => special[self.below(special.len())],
            _ => self.below(80_001) as f64 / 10_000.0 - 4.0,
        });
        let values = values.collect();
        typed(values, shape, dtype)
    }

    /// Integers of which each third is a limit of the type or near zero.
    fn integers(&mut self, shape: &[usize], dtype: DType) -> TensorData {
        let [low, high] = limits(dtype);
        let special = [low, high, low.wrapping_add(1), high.wrapping_sub(1), 0, 1];
        let count = shape.iter().product();
        let minus = if low == 0 { 0 } else { 10 };
        let values = (0..count).map(|_| match self.below(4) {
            0 => special[self.below(special.len())],
            1 => self.data.next() as i64,
            _ => self.below(21) as i64 - minus,
        });
        let values = values.collect();
        whole(values, shape, dtype)
    }
}

/// The smallest and the largest number of an integer type, the latter as the bits of `i64`.
fn limits(dtype: DType) -> [i64; 2] {
    match dtype {
        DType::I64 => [i64::MIN, i64::MAX],
        DType::I32 => [i32::MIN.into(), i32::MAX.into()],
        DType::I16 => [i16::MIN.into(), i16::MAX.into()],
        DType::I8 => [i8::MIN.into(), i8::MAX.into()],
        DType::U32 => [0, u32::MAX.into()],
        DType::U16 => [0, u16::MAX.into()],
        DType::U8 => [0, u8::MAX.into()],
        _ => [0, -1],
    }
}
