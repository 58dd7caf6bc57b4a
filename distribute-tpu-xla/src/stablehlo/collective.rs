//! Operations between the replicas that run the program.

use super::builder::{Builder, Value, ensure};
use super::elementwise::Binary;
use super::error::Result;
use super::types::{ElementType, TensorType};

impl Builder {
    /// Combines each of `operands` over all replicas with `op`; every replica gets the results.
    ///
    /// # Errors
    /// There is no operand, or the operands do not have one element type.
    pub fn all_reduce(&mut self, op: Binary, operands: &[Value]) -> Result<Vec<Value>> {
        let list: Vec<&Value> = operands.iter().collect();
        let same = operands
            .windows(2)
            .all(|p| p[0].element() == p[1].element());
        ensure(same && !operands.is_empty(), "all_reduce", &list, || {
            "needs operands of one element type".into()
        })?;
        let scalar = TensorType::scalar(operands[0].element());
        let region = self.region(&[scalar.clone(), scalar], |b, args| {
            Ok(vec![b.binary(op, &args[0], &args[1])?])
        })?;
        let replicas: Vec<String> = (0..self.num_replicas()).map(|r| r.to_string()).collect();
        let attributes = format!(
            "replica_groups = dense<[[{}]]> : tensor<1x{}xi64>",
            replicas.join(", "),
            replicas.len()
        );
        let results = operands.iter().map(|v| v.ty().clone()).collect();
        Ok(self.emit("all_reduce", &list, &attributes, &[region], results))
    }

    /// The number of this replica, a scalar of `ui32`.
    pub fn replica_id(&mut self) -> Value {
        let ty = TensorType::scalar(ElementType::U32);
        self.emit_one("replica_id", &[], "", &[], ty)
    }
}
