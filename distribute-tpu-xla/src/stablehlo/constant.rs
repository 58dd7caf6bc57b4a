//! Constants of many elements.

use super::builder::{Builder, Value, error};
use super::elementwise::Comparison;
use super::error::{Result, StableHloError};
use super::types::{ElementType, TensorType};

impl Builder {
    /// A tensor of given elements, as little-endian bytes in row-major order.
    ///
    /// # Errors
    /// The number of bytes does not fit the type.
    pub fn constant(&mut self, ty: TensorType, bytes: &[u8]) -> Result<Value> {
        if bytes.len() != ty.size_in_bytes() {
            let problem = format!("{} bytes given, {} needed", bytes.len(), ty.size_in_bytes());
            return Err(error("constant", problem, &[]).with_type(ty));
        }
        // MLIR packs large truth values into bits; as bytes they need no second format.
        if ty.element() == ElementType::I1 && ty.num_elements() > 16 {
            let bytes: Vec<u8> = bytes.iter().map(|b| u8::from(*b != 0)).collect();
            let bytes = self.dense(ty.with_element(ElementType::U8), &bytes);
            let zero = self.splat(ty.dims(), ElementType::U8, 0i64);
            return self.compare(Comparison::Ne, &bytes, &zero);
        }
        Ok(self.dense(ty, bytes))
    }
}

impl StableHloError {
    fn with_type(mut self, ty: TensorType) -> Self {
        if let Self::Operands { operands, .. } = &mut self {
            operands.push(ty);
        }
        self
    }
}
