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
        let attributes = self.all_replicas();
        let results = operands.iter().map(|v| v.ty().clone()).collect();
        Ok(self.emit("all_reduce", &list, &attributes, &[region], results))
    }

    /// Concatenates the operand of all replicas along a dimension, in replica order; every replica
    /// gets the result.
    ///
    /// # Errors
    /// There is no such dimension.
    pub fn all_gather(&mut self, operand: &Value, dimension: usize) -> Result<Value> {
        let in_range = dimension < operand.rank();
        ensure(in_range, "all_gather", &[operand], || {
            format!("has no dimension {dimension}")
        })?;
        let groups = self.all_replicas();
        let attributes = format!("all_gather_dim = {dimension} : i64, {groups}");
        let mut dims = operand.dims().to_vec();
        dims[dimension] *= self.num_replicas();
        let ty = TensorType::new(dims, operand.element());
        Ok(self.emit_one("all_gather", &[operand], &attributes, &[], ty))
    }

    /// One group of all replicas.
    fn all_replicas(&self) -> String {
        let replicas: Vec<String> = (0..self.num_replicas()).map(|r| r.to_string()).collect();
        format!(
            "replica_groups = dense<[[{}]]> : tensor<1x{}xi64>",
            replicas.join(", "),
            replicas.len()
        )
    }

    /// The number of this replica, a scalar of `ui32`.
    pub fn replica_id(&mut self) -> Value {
        let ty = TensorType::scalar(ElementType::U32);
        self.emit_one("replica_id", &[], "", &[], ty)
    }
}
