//! Element and tensor types, and how StableHLO writes them.

use std::fmt;

/// The element types a program of this crate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// A truth value, one byte per element in a buffer (`PRED` in PJRT).
    I1,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE half precision.
    F16,
    /// The upper half of a single-precision float.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl ElementType {
    /// Bytes that one element takes in a buffer.
    pub fn size_in_bytes(self) -> usize {
        match self {
            Self::I1 | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether this is one of the four float types.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Whether this is a signed integer.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Whether this is an unsigned integer (`i1` is none).
    pub fn is_unsigned(self) -> bool {
        matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    /// Whether this is an integer of either sign (`i1` is none).
    pub fn is_integer(self) -> bool {
        self.is_signed() || self.is_unsigned()
    }

    /// The name in StableHLO's text, such as `f32` or `ui8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::I1 => "i1",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "ui8",
            Self::U16 => "ui16",
            Self::U32 => "ui32",
            Self::U64 => "ui64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a tensor: its dimensions (none for a scalar) and the type of its elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    dims: Vec<usize>,
    element: ElementType,
}

impl TensorType {
    /// A tensor of these dimensions.
    pub fn new(dims: impl Into<Vec<usize>>, element: ElementType) -> Self {
        Self {
            dims: dims.into(),
            element,
        }
    }

    /// A tensor without dimensions.
    pub fn scalar(element: ElementType) -> Self {
        Self::new([], element)
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// How many dimensions there are.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The type of the elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// How many elements there are.
    pub fn num_elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes of a dense buffer of this type.
    pub fn size_in_bytes(&self) -> usize {
        self.num_elements() * self.element.size_in_bytes()
    }

    /// The same dimensions with another element type.
    #[must_use]
    pub fn with_element(&self, element: ElementType) -> Self {
        Self::new(self.dims.clone(), element)
    }

    /// The same element type with other dimensions.
    #[must_use]
    pub fn with_dims(&self, dims: impl Into<Vec<usize>>) -> Self {
        Self::new(dims, self.element)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for dim in &self.dims {
            write!(f, "{dim}x")?;
        }
        write!(f, "{}>", self.element)
    }
}
