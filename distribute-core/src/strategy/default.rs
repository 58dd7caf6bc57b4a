//! The strategy that changes nothing: what code runs under when no other was chosen.

use std::sync::Arc;

use super::{Replica, ReplicaStep, Strategy, StrategyId, handle_of, run_on_calling_thread};
use crate::{LogicalDevice, Result, scope};

/// The default strategy: one replica on the CPU, on the calling thread
/// (TensorFlow: `tf.distribute.get_strategy()` outside any scope).
///
/// All its handles are one strategy.
#[derive(Debug, Clone)]
#[must_use]
pub struct DefaultStrategy {
    replicas: Arc<[Replica; 1]>,
    id: StrategyId,
}

impl DefaultStrategy {
    /// A handle of the default strategy.
    pub fn new() -> Self {
        Self {
            replicas: Arc::new([Replica::new(0, LogicalDevice::cpu(0))]),
            id: StrategyId::default_strategy(),
        }
    }
}

impl Default for DefaultStrategy {
    fn default() -> Self {
        Self::new()
    }
}

impl Strategy for DefaultStrategy {
    handle_of!(self: &*self.replicas, step => {
        run_on_calling_thread(self.handle(), &self.replicas[0], step)
    });

    fn distributes_variables(&self) -> bool {
        false
    }
}

/// The strategy whose scope or step is running on this thread, else the default strategy.
///
/// ```
/// use distribute_core::{OneDeviceStrategy, StrategyExt, current_strategy};
///
/// assert_eq!(current_strategy().name(), "default");
/// let strategy = OneDeviceStrategy::new("cpu:0".parse()?)?;
/// strategy.within(|| assert_eq!(current_strategy().name(), "one-device"))?;
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub fn current_strategy() -> Arc<dyn Strategy> {
    scope::innermost_strategy().unwrap_or_else(|| Arc::new(DefaultStrategy::new()))
}
