//! Loops.

use super::builder::{Builder, Value, ensure};
use super::elementwise::{Binary, Comparison};
use super::error::Result;
use super::types::{ElementType, TensorType};

impl Builder {
    /// Runs `body` a fixed number of times. It gets the number of the run, a scalar of `ui32` from
    /// 0, and the state, and returns the next state. It may use nothing else of the program.
    ///
    /// # Errors
    /// The errors of `body`, or it returns other types than it got.
    pub fn repeat(
        &mut self,
        times: u32,
        state: &[&Value],
        body: impl FnOnce(&mut Self, &Value, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let first = self.scalar(ElementType::U32, 0i64);
        let operands: Vec<&Value> = [&first].into_iter().chain(state.iter().copied()).collect();
        let types: Vec<TensorType> = operands.iter().map(|v| v.ty().clone()).collect();
        let condition = self.region(&types, |b, values| {
            let end = b.scalar(ElementType::U32, i64::from(times));
            Ok(vec![b.compare(Comparison::Lt, &values[0], &end)?])
        })?;
        let body = self.region(&types, |b, values| {
            let one = b.scalar(ElementType::U32, 1i64);
            let next = b.binary(Binary::Add, &values[0], &one)?;
            let mut results = body(b, &values[0], &values[1..])?;
            results.insert(0, next);
            Ok(results)
        })?;
        ensure(body.results == types, "while", &operands, || {
            format!("its body returns {:?}", body.results)
        })?;
        let mut results = self.emit("while", &operands, "", &[condition, body], types);
        Ok(results.split_off(1))
    }
}
