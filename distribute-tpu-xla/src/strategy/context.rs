//! Where programs run.

use std::sync::Arc;
use std::time::Duration;

use distribute_core::WorkerGroup;

use super::step_check::StepChecks;
use crate::pjrt::{Client, Device};
use crate::stablehlo::Precision;

/// The devices of a strategy, and what holds for all its programs.
pub(crate) struct ExecutionContext {
    pub(crate) client: Client,
    /// The devices of this process' replicas, in replica order.
    pub(crate) devices: Arc<[Device]>,
    /// The devices of all replicas, by their global numbers.
    pub(crate) assignment: Vec<i64>,
    /// The processes, if there are several.
    pub(crate) workers: Option<WorkerGroup>,
    /// Whether they run the same steps, if there are several.
    pub(crate) step_checks: Option<Arc<StepChecks>>,
    /// How long to wait for the results of a program.
    pub(crate) timeout: Option<Duration>,
    /// Whether programs are compared with their steps.
    pub(crate) checks_steps: bool,
    /// How exactly programs multiply.
    pub(crate) precision: Precision,
}
