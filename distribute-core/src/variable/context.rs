//! The two contexts a variable can be used in.

use crate::strategy::StrategyId;
use crate::{Error, PerReplica, ReduceOp, ReplicaContext, Result, Strategy};
use burn::tensor::{Device, TensorData};

/// Where a variable is used: a step passes its [`ReplicaContext`], code outside of a step passes
/// the strategy. Sealed: those are all there are.
pub trait VariableContext: sealed::Context {}

impl<C: sealed::Context + ?Sized> VariableContext for C {}

pub(super) mod sealed {
    use super::*;

    pub trait Context {
        /// The strategy.
        ///
        /// # Errors
        /// If `op` is called in the wrong context.
        fn strategy_id(&self, op: &'static str) -> Result<StrategyId>;

        /// The replica, in a step.
        fn replica(&self) -> Option<&ReplicaContext>;

        /// Where tensors are put that are read.
        ///
        /// # Errors
        /// For a strategy without replicas.
        fn device(&self) -> Result<&Device>;

        /// Reduces one copy per local replica over all replicas, outside of a step.
        fn reduce(&self, op: ReduceOp, copies: Vec<TensorData>) -> Result<TensorData>;
    }

    impl Context for ReplicaContext {
        fn strategy_id(&self, op: &'static str) -> Result<StrategyId> {
            let missing = || Error::invalid(format!("{op}: the step of this context has ended"));
            crate::scope::step_strategy().ok_or_else(missing)
        }

        fn replica(&self) -> Option<&ReplicaContext> {
            Some(self)
        }

        fn device(&self) -> Result<&Device> {
            Ok(ReplicaContext::device(self))
        }

        fn reduce(&self, op: ReduceOp, mut copies: Vec<TensorData>) -> Result<TensorData> {
            let missing = || Error::invalid("a variable without a copy");
            self.all_reduce(op, copies.pop().ok_or_else(missing)?)
        }
    }

    impl<S: Strategy + ?Sized> Context for S {
        fn strategy_id(&self, op: &'static str) -> Result<StrategyId> {
            crate::scope::check_cross_replica(&self.id(), op)?;
            Ok(self.id())
        }

        fn replica(&self) -> Option<&ReplicaContext> {
            None
        }

        fn device(&self) -> Result<&Device> {
            let missing = || Error::invalid("the strategy has no replicas");
            let first = self.replicas().first().ok_or_else(missing)?;
            Ok(&first.device)
        }

        fn reduce(&self, op: ReduceOp, copies: Vec<TensorData>) -> Result<TensorData> {
            crate::strategy::reduce::reduce(self, op, PerReplica::new(copies))
        }
    }
}
