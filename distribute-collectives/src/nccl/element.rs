//! The element types of NCCL.

use super::version::Version;
use crate::buffer::DType;
use crate::names::named_enum;
use crate::reduce::ReduceOp;

named_enum! {
    all: pub,
    /// The type of the elements of a [`DeviceBuffer`](super::DeviceBuffer): all that NCCL has.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[repr(u8)]
    #[non_exhaustive]
    pub enum ElementType {
        /// Signed 8-bit integer.
        I8 = 0 => "i8",
        /// Unsigned 8-bit integer.
        U8 = 1 => "u8",
        /// Signed 32-bit integer.
        I32 = 2 => "i32",
        /// Unsigned 32-bit integer.
        U32 = 3 => "u32",
        /// Signed 64-bit integer.
        I64 = 4 => "i64",
        /// Unsigned 64-bit integer.
        U64 = 5 => "u64",
        /// IEEE 754 binary16.
        F16 = 6 => "f16",
        /// IEEE 754 binary32.
        F32 = 7 => "f32",
        /// IEEE 754 binary64.
        F64 = 8 => "f64",
        /// The upper half of a binary32.
        BF16 = 9 => "bf16",
        /// 8-bit float with 4 bits of exponent; NCCL 2.24 or newer, and a GPU that can add them.
        F8E4M3 = 10 => "f8e4m3",
        /// 8-bit float with 5 bits of exponent; as [`F8E4M3`](Self::F8E4M3).
        F8E5M2 = 11 => "f8e5m2",
    }
}

impl ElementType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            ElementType::I8 | ElementType::U8 | ElementType::F8E4M3 | ElementType::F8E5M2 => 1,
            ElementType::F16 | ElementType::BF16 => 2,
            ElementType::I32 | ElementType::U32 | ElementType::F32 => 4,
            ElementType::I64 | ElementType::U64 | ElementType::F64 => 8,
        }
    }

    /// The oldest NCCL that has it.
    pub(super) fn since(self) -> Version {
        match self {
            ElementType::F8E4M3 | ElementType::F8E5M2 => Version::FLOAT8,
            _ => Version::MIN_NCCL,
        }
    }

    /// The type of buffers in host memory with the same elements.
    pub(super) fn dtype(self) -> Option<DType> {
        DType::ALL
            .into_iter()
            .find(|dtype| ElementType::from(*dtype) == self)
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => ElementType::F32,
            DType::F64 => ElementType::F64,
            DType::F16 => ElementType::F16,
            DType::BF16 => ElementType::BF16,
            DType::I32 => ElementType::I32,
            DType::I64 => ElementType::I64,
            DType::U8 => ElementType::U8,
        }
    }
}

/// `ncclRedOp_t`.
pub(super) fn reduction_code(op: ReduceOp) -> i32 {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_types_have_the_same_size_and_name() {
        for dtype in DType::ALL {
            let element = ElementType::from(dtype);
            assert_eq!(element.size_bytes(), dtype.size_bytes());
            assert_eq!(element.name(), dtype.name());
            assert_eq!(element.dtype(), Some(dtype));
        }
        assert_eq!(ElementType::U64.dtype(), None);
    }

    #[test]
    fn codes_are_those_of_nccl_h() {
        for (code, element) in ElementType::ALL.into_iter().enumerate() {
            assert_eq!(element as usize, code);
        }
        assert_eq!(ReduceOp::ALL.map(reduction_code), [0, 4, 3, 2, 1]);
    }
}
