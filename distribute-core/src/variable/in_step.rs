//! Variables that a step makes.

use super::{DistributedVariable, VariableOptions, VariableValue};
use crate::{Error, ReplicaContext, Result, current_strategy};

impl ReplicaContext {
    /// Creates a variable inside a step, with replica 0's initial value in every copy; every
    /// replica gets a handle of the same variable. Blocks until all replicas have called it.
    ///
    /// # Errors
    /// The errors of [`DistributedVariable::new`], and another replica's failure. With parameter
    /// servers variables are made outside of steps.
    pub fn variable<T: VariableValue + 'static>(
        &self,
        mut initial: T,
        options: VariableOptions,
    ) -> Result<DistributedVariable<T>> {
        self.refuse_captured("ctx.variable")?;
        let strategy = current_strategy();
        if strategy.remote_store().is_some() {
            return Err(Error::invalid(
                "ctx.variable: with parameter servers variables are made outside of steps, by the \
                 coordinator's strategy, and steps use them",
            ));
        }
        let count = self.num_local();
        self.exchange("variable", 0, initial.take()?, |mut values| {
            let mut initial = values.swap_remove(0);
            self.peers().take_initial_value(&mut initial)?;
            let variable = DistributedVariable::create(&*strategy, initial, options, None)?;
            Ok(vec![variable; count])
        })
    }
}
