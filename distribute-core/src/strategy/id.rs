//! Which strategy a value belongs to.

use std::fmt;
use std::sync::Arc;

use crate::{Error, Result};

/// The identity of a strategy: equal for handles of one strategy, different for two strategies
/// built alike. The default strategy is one for the whole process.
#[derive(Debug, Clone)]
pub struct StrategyId {
    name: &'static str,
    replicas: usize,
    token: Option<Arc<()>>,
}

impl StrategyId {
    /// A new identity.
    pub fn new(name: &'static str, replicas: usize) -> Self {
        Self {
            name,
            replicas,
            token: Some(Arc::new(())),
        }
    }

    /// The strategy's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The default strategy's identity.
    pub fn default_strategy() -> Self {
        Self {
            name: "default",
            replicas: 1,
            token: None,
        }
    }
}

impl StrategyId {
    pub(crate) fn is_default(&self) -> bool {
        self.token.is_none()
    }

    /// Refuses another strategy with a value that this one has made.
    pub(crate) fn check_user(&self, user: &Self) -> Result<()> {
        if self == user {
            return Ok(());
        }
        Err(Error::MixedStrategies {
            owner: self.to_string(),
            user: user.to_string(),
        })
    }
}

impl PartialEq for StrategyId {
    fn eq(&self, other: &Self) -> bool {
        let [own, other] = [self, other].map(|id| id.token.as_ref().map(Arc::as_ptr));
        own == other
    }
}

impl Eq for StrategyId {}

impl fmt::Display for StrategyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.replicas == 1 { "" } else { "s" };
        write!(
            f,
            "the {} strategy ({} replica{plural})",
            self.name, self.replicas
        )
    }
}
