//! The two contexts that a variable or a metric can be used in.

use burn::tensor::Device;

use super::access::{Access, InStep, Outside};
use super::shared::Copies;
use super::traced::InCapture;
use crate::strategy::StrategyId;
use crate::trace::Receiver;
use crate::{Error, Leaf, ReplicaContext, Result, Strategy, strategy};

/// Where a variable is used: a step passes its [`ReplicaContext`], code outside of a step passes
/// the strategy. Sealed: those are all there are.
pub trait VariableContext: sealed::Context {}

impl<C: sealed::Context + ?Sized> VariableContext for C {}

pub(crate) mod sealed {
    use super::*;

    pub trait Context {
        /// The strategy.
        ///
        /// # Errors
        /// If `op` is called in the wrong context.
        fn strategy_id(&self, op: &'static str) -> Result<StrategyId>;

        /// Where tensors are put that are read.
        ///
        /// # Errors
        /// For a strategy without replicas.
        fn device(&self) -> Result<&Device>;

        /// A variable of this process, as it is reached from here.
        fn access<'a>(&'a self, copies: &'a Copies) -> Box<dyn Access + 'a>;

        /// Hands values to the host: now, or after each call of a compiled step.
        ///
        /// # Errors
        /// What the receiver does not accept.
        fn give(&self, values: &mut [&mut dyn Leaf], receiver: Receiver<'_>) -> Result<()>;
    }

    impl Context for ReplicaContext {
        fn strategy_id(&self, op: &'static str) -> Result<StrategyId> {
            let missing = || Error::invalid(format!("{op}: the step of this context has ended"));
            crate::scope::step_strategy().ok_or_else(missing)
        }

        fn device(&self) -> Result<&Device> {
            Ok(ReplicaContext::device(self))
        }

        fn access<'a>(&'a self, copies: &'a Copies) -> Box<dyn Access + 'a> {
            match self.trace() {
                Some(trace) => Box::new(InCapture(trace)),
                None => Box::new(InStep { ctx: self, copies }),
            }
        }

        fn give(&self, values: &mut [&mut dyn Leaf], receiver: Receiver<'_>) -> Result<()> {
            self.peers().give(self.local_id(), values, receiver)
        }
    }

    impl<S: Strategy + ?Sized> Context for S {
        fn strategy_id(&self, op: &'static str) -> Result<StrategyId> {
            crate::scope::check_cross_replica(&self.id(), op)?;
            Ok(self.id())
        }

        fn device(&self) -> Result<&Device> {
            let missing = || Error::invalid("the strategy has no replicas");
            let first = self.replicas().first().ok_or_else(missing)?;
            Ok(&first.device)
        }

        fn access<'a>(&'a self, copies: &'a Copies) -> Box<dyn Access + 'a> {
            let strategy = self;
            Box::new(Outside { strategy, copies })
        }

        /// Outside of a step a value is no replica's own: any of them will do.
        fn give(&self, values: &mut [&mut dyn Leaf], receiver: Receiver<'_>) -> Result<()> {
            strategy::used_outside(self);
            receiver.receive(0, values)
        }
    }
}
