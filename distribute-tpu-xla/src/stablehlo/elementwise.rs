//! Operations on each element: arithmetic, comparisons, choices, conversions.

use super::builder::{Builder, Value, ensure, error};
use super::error::Result;
use super::types::ElementType;

/// An operation on one operand that keeps its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the operations of StableHLO, by name")]
#[non_exhaustive]
pub enum Unary {
    Abs,
    Ceil,
    Cosine,
    Exponential,
    ExponentialMinusOne,
    Floor,
    Log,
    LogPlusOne,
    Logistic,
    Negate,
    Not,
    RoundNearestEven,
    Sign,
    Sine,
    Sqrt,
    Tanh,
}

impl Unary {
    fn name(self) -> &'static str {
        match self {
            Self::Abs => "abs",
            Self::Ceil => "ceil",
            Self::Cosine => "cosine",
            Self::Exponential => "exponential",
            Self::ExponentialMinusOne => "exponential_minus_one",
            Self::Floor => "floor",
            Self::Log => "log",
            Self::LogPlusOne => "log_plus_one",
            Self::Logistic => "logistic",
            Self::Negate => "negate",
            Self::Not => "not",
            Self::RoundNearestEven => "round_nearest_even",
            Self::Sign => "sign",
            Self::Sine => "sine",
            Self::Sqrt => "sqrt",
            Self::Tanh => "tanh",
        }
    }

    fn takes(self, ty: ElementType) -> bool {
        match self {
            Self::Abs | Self::Sign => ty.is_float() || ty.is_signed(),
            Self::Negate => ty.is_float() || ty.is_integer(),
            Self::Not => ty.is_integer() || ty == ElementType::I1,
            _ => ty.is_float(),
        }
    }
}

/// An operation on two operands of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the operations of StableHLO, by name")]
#[non_exhaustive]
pub enum Binary {
    Add,
    And,
    Atan2,
    Divide,
    Maximum,
    Minimum,
    Multiply,
    Or,
    Power,
    Remainder,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Subtract,
    Xor,
}

impl Binary {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::And => "and",
            Self::Atan2 => "atan2",
            Self::Divide => "divide",
            Self::Maximum => "maximum",
            Self::Minimum => "minimum",
            Self::Multiply => "multiply",
            Self::Or => "or",
            Self::Power => "power",
            Self::Remainder => "remainder",
            Self::ShiftLeft => "shift_left",
            Self::ShiftRightArithmetic => "shift_right_arithmetic",
            Self::ShiftRightLogical => "shift_right_logical",
            Self::Subtract => "subtract",
            Self::Xor => "xor",
        }
    }

    fn takes(self, ty: ElementType) -> bool {
        match self {
            Self::And | Self::Or | Self::Xor => ty.is_integer() || ty == ElementType::I1,
            Self::ShiftLeft | Self::ShiftRightArithmetic | Self::ShiftRightLogical => {
                ty.is_integer()
            }
            Self::Atan2 => ty.is_float(),
            Self::Maximum | Self::Minimum | Self::Add | Self::Multiply => true,
            _ => ty.is_float() || ty.is_integer(),
        }
    }
}

/// How two elements are compared. Every comparison with a NaN is false, except [`Self::Ne`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the operations of StableHLO, by name")]
pub enum Comparison {
    Eq,
    Ne,
    Ge,
    Gt,
    Le,
    Lt,
}

impl Comparison {
    fn name(self) -> &'static str {
        match self {
            Self::Eq => "EQ",
            Self::Ne => "NE",
            Self::Ge => "GE",
            Self::Gt => "GT",
            Self::Le => "LE",
            Self::Lt => "LT",
        }
    }
}

impl Builder {
    /// Applies `op` to each element.
    ///
    /// # Errors
    /// The element type is none that `op` is defined for.
    pub fn unary(&mut self, op: Unary, x: &Value) -> Result<Value> {
        let name = op.name();
        ensure(op.takes(x.element()), name, &[x], || {
            format!("is not defined for elements of type {}", x.element())
        })?;
        Ok(self.emit_one(name, &[x], "", &[], x.ty().clone()))
    }

    /// Applies `op` to each pair of elements.
    ///
    /// # Errors
    /// The operands differ in type (nothing is broadcast), or `op` is not defined for it.
    pub fn binary(&mut self, op: Binary, lhs: &Value, rhs: &Value) -> Result<Value> {
        let name = op.name();
        ensure(lhs.ty() == rhs.ty(), name, &[lhs, rhs], || {
            "needs two operands of one type".into()
        })?;
        ensure(op.takes(lhs.element()), name, &[lhs, rhs], || {
            format!("is not defined for elements of type {}", lhs.element())
        })?;
        Ok(self.emit_one(name, &[lhs, rhs], "", &[], lhs.ty().clone()))
    }

    /// Compares each pair of elements.
    ///
    /// # Errors
    /// The operands differ in type.
    pub fn compare(&mut self, how: Comparison, lhs: &Value, rhs: &Value) -> Result<Value> {
        let kind = match lhs.element() {
            e if e.is_float() => "FLOAT",
            e if e.is_signed() => "SIGNED",
            _ => "UNSIGNED",
        };
        self.compare_as(how, kind, lhs, rhs)
    }

    /// Compares each pair of elements in an order in which every float has a place: negative NaN,
    /// negative infinity, ..., -0, +0, ..., infinity, NaN. Integers compare as usual.
    ///
    /// # Errors
    /// The operands differ in type.
    pub fn compare_total_order(
        &mut self,
        how: Comparison,
        lhs: &Value,
        rhs: &Value,
    ) -> Result<Value> {
        if !lhs.element().is_float() {
            return self.compare(how, lhs, rhs);
        }
        self.compare_as(how, "TOTALORDER", lhs, rhs)
    }

    fn compare_as(
        &mut self,
        how: Comparison,
        kind: &str,
        lhs: &Value,
        rhs: &Value,
    ) -> Result<Value> {
        ensure(lhs.ty() == rhs.ty(), "compare", &[lhs, rhs], || {
            "needs two operands of one type".into()
        })?;
        let attributes = format!(
            "comparison_direction = #stablehlo<comparison_direction {}>, \
             compare_type = #stablehlo<comparison_type {kind}>",
            how.name()
        );
        let ty = lhs.ty().with_element(ElementType::I1);
        Ok(self.emit_one("compare", &[lhs, rhs], &attributes, &[], ty))
    }

    /// Takes each element from `on_true` or `on_false`.
    ///
    /// # Errors
    /// `predicate` is not `i1` of the operands' dimensions (or a scalar), or the operands differ.
    pub fn select(
        &mut self,
        predicate: &Value,
        on_true: &Value,
        on_false: &Value,
    ) -> Result<Value> {
        let operands = [predicate, on_true, on_false];
        ensure(on_true.ty() == on_false.ty(), "select", &operands, || {
            "needs two choices of one type".into()
        })?;
        let fits = predicate.rank() == 0 || predicate.dims() == on_true.dims();
        let fits = fits && predicate.element() == ElementType::I1;
        ensure(fits, "select", &operands, || {
            "needs a predicate of i1 with the dimensions of the choices".into()
        })?;
        Ok(self.emit_one("select", &operands, "", &[], on_true.ty().clone()))
    }

    /// Limits each element to `min..=max`, which are tensors of the same type or scalars.
    ///
    /// # Errors
    /// The types do not fit.
    pub fn clamp(&mut self, min: &Value, x: &Value, max: &Value) -> Result<Value> {
        let operands = [min, x, max];
        let fits =
            |v: &Value| v.element() == x.element() && (v.rank() == 0 || v.dims() == x.dims());
        ensure(fits(min) && fits(max), "clamp", &operands, || {
            "needs limits of the operand's type, or scalars".into()
        })?;
        Ok(self.emit_one("clamp", &operands, "", &[], x.ty().clone()))
    }

    /// Converts each element by value. Floats are truncated towards zero when they become integers;
    /// a value outside of the integer's range is unspecified.
    pub fn convert(&mut self, x: &Value, element: ElementType) -> Value {
        if x.element() == element {
            return x.clone();
        }
        self.emit_one("convert", &[x], "", &[], x.ty().with_element(element))
    }

    /// Reinterprets the bits of each element.
    ///
    /// # Errors
    /// The two element types differ in width.
    pub fn bitcast_convert(&mut self, x: &Value, element: ElementType) -> Result<Value> {
        let same = x.element().size_in_bytes() == element.size_in_bytes()
            && x.element() != ElementType::I1
            && element != ElementType::I1;
        ensure(same, "bitcast_convert", &[x], || {
            format!("{element} has another width")
        })?;
        Ok(self.emit_one(
            "bitcast_convert",
            &[x],
            "",
            &[],
            x.ty().with_element(element),
        ))
    }

    /// Whether each element is neither infinite nor NaN.
    ///
    /// # Errors
    /// The elements are no floats.
    pub fn is_finite(&mut self, x: &Value) -> Result<Value> {
        if !x.element().is_float() {
            return Err(error("is_finite", "needs floats".into(), &[x]));
        }
        let ty = x.ty().with_element(ElementType::I1);
        Ok(self.emit_one("is_finite", &[x], "", &[], ty))
    }
}
