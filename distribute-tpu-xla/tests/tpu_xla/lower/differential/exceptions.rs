//! Where XLA and flex may differ, and why.

use burn::tensor::DType;

/// A difference that is allowed.
struct Exception {
    /// In the text of the operation.
    operation: &'static str,
    /// Whether flex's and XLA's result may stand for each other.
    allows: fn(f64, f64) -> bool,
}

/// Both are zeros, of different sign.
fn zeros(expected: f64, actual: f64) -> bool {
    expected == 0.0 && actual == 0.0
}

/// flex doubles its argument, which overflows at the end of the type's range.
fn overflow(expected: f64, actual: f64) -> bool {
    expected.is_infinite() && actual.abs() > 80.0 && expected.signum() == actual.signum()
}

/// Both are near what f64 gives: by some 0.016 of sums around 10, flex's.
fn half_sums(expected: f64, actual: f64) -> bool {
    (expected - actual).abs() <= 0.06 + 0.01 * expected.abs()
}

const EXCEPTIONS: &[Exception] = &[
    // flex rounds -0.5 by way of -1 to +0; IEEE 754 says -0.
    Exception {
        operation: "float_round",
        allows: zeros,
    },
    // XLA takes `x + 0` for `x`, which is +0 for -0 by IEEE 754.
    Exception {
        operation: "float_add_scalar",
        allows: zeros,
    },
    // Which one of two equal zeros is the larger one IEEE 754 leaves open.
    Exception {
        operation: "clamp",
        allows: zeros,
    },
    Exception {
        operation: "float_scatter",
        allows: zeros,
    },
    Exception {
        operation: "float_select_assign",
        allows: zeros,
    },
    Exception {
        operation: "float_asinh",
        allows: overflow,
    },
    // Rust's sum of nothing is -0.
    Exception {
        operation: "float_sum(",
        allows: zeros,
    },
];

/// flex adds up gradients of grouped weights in f16, XLA in f32.
const OF_F16: &[Exception] = &[Exception {
    operation: "weight_backward",
    allows: half_sums,
}];

/// Whether the operation with this text may give `actual` where flex gives `expected`.
pub fn excused(name: &str, dtype: DType, expected: f64, actual: f64) -> bool {
    let allows = |e: &Exception| name.contains(e.operation) && (e.allows)(expected, actual);
    let of_type = if dtype == DType::F16 { OF_F16 } else { &[] };
    EXCEPTIONS.iter().chain(of_type).any(allows)
}

/// Panics of flex after which there is nothing to compare, by part of their text: with the reason
/// why a program gives a result all the same.
const REFUSALS: &[(&str, &str)] = &[
    // Only with Rust's overflow checks; without them flex wraps around, as XLA always does. Tests
    // with small numbers compare the same operations.
    ("", "with overflow"),
    // Integers by zero: a program cannot fail, XLA gives -1 and the dividend.
    ("int_", "divide by zero"),
    ("int_", "divisor of zero"),
    // Not in flex for these types.
    ("int_mean", "unsupported dtype"),
    ("int_matmul", "unsupported dtype"),
    // Whether any or all of nothing: flex reads past the end.
    ("_dim(", "the len is 0 but the index is 0"),
    // An infinite exponent is taken for a whole number.
    ("float_powf_scalar", "`Option::unwrap()` on a `None` value"),
];

/// Whether flex may panic with `text` in the operation `name`.
pub fn refused(name: &str, text: &str) -> bool {
    REFUSALS
        .iter()
        .any(|(operation, part)| name.contains(operation) && text.contains(part))
}
