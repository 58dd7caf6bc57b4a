//! Limits and deadlines of a coordinator.

use std::sync::Arc;
use std::time::Duration;

use crate::partitioners::Partitioner;
use distribute_core::collectives::Interruption;
use distribute_core::collectives::control::security::Security;

use super::queue::QueueLimits;
use crate::client::ClientOptions;
use crate::update::RunOptions;

/// Limits, deadlines and credentials of a [`ClusterCoordinator`](crate::ClusterCoordinator).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CoordinatorOptions {
    /// Token and certificates for the connections to workers; none by default.
    pub security: Security,
    /// The options for calls to the parameter servers. Their credentials are replaced by
    /// `security`.
    pub client: ClientOptions,
    /// The rules that the parameter servers follow in this run.
    pub run: RunOptions,
    /// How large variables are cut into shards; not at all by default.
    pub partitioner: Option<Arc<dyn Partitioner>>,
    /// The most closures that wait for a worker; `schedule` blocks beyond. 1,024 by default.
    /// TensorFlow has 262,144.
    pub max_queued: usize,
    /// The most bytes of arguments of closures that wait; 256 MiB by default.
    pub max_queued_bytes: usize,
    /// The most bytes of one closure's arguments, and of its result; 64 MiB by default.
    pub max_message_bytes: usize,
    /// How many workers may be lost while they run a closure before the closure counts as the
    /// cause; 32 by default. TensorFlow goes on for ever.
    pub max_attempts: u32,
    /// How long the start waits for the first worker; 60 s by default.
    pub connect_timeout: Duration,
    /// How long there may be no worker at all while there is work; 60 s by default.
    pub worker_recovery_timeout: Duration,
    /// How long `schedule` waits for room while no closure ends; 10 minutes by default.
    pub schedule_timeout: Duration,
    /// How long one closure may run; 1 hour by default.
    pub step_timeout: Duration,
    /// How long a call that surfaces an error waits for running closures to stop, before it gives
    /// them up; 30 s by default.
    pub cancel_timeout: Duration,
    /// What ends waiting for servers and workers before its time, such as a signal: at the start,
    /// and later while no worker is connected; one that gives no sign of life for a second then
    /// counts as lost. Closures that run elsewhere are not touched. Nothing by default. That of
    /// `client` is the same.
    pub interruption: Interruption,
    /// How often a worker is asked for a sign of life; 1 s by default.
    pub keepalive_interval: Duration,
    /// How long the answer may take; 3 s by default. Then the worker is lost, and its closure runs
    /// on another one.
    pub keepalive_timeout: Duration,
}

impl Default for CoordinatorOptions {
    fn default() -> Self {
        Self {
            security: Security::default(),
            client: ClientOptions::default(),
            run: RunOptions::default(),
            partitioner: None,
            max_queued: 1 << 10,
            max_queued_bytes: 256 << 20,
            max_message_bytes: 64 << 20,
            max_attempts: 32,
            connect_timeout: Duration::from_secs(60),
            worker_recovery_timeout: Duration::from_secs(60),
            schedule_timeout: Duration::from_secs(600),
            step_timeout: Duration::from_secs(3600),
            cancel_timeout: Duration::from_secs(30),
            interruption: Interruption::default(),
            keepalive_interval: Duration::from_secs(1),
            keepalive_timeout: Duration::from_secs(3),
        }
    }
}

impl CoordinatorOptions {
    pub(super) fn queue_limits(&self) -> QueueLimits {
        QueueLimits {
            closures: self.max_queued.max(1),
            bytes: self.max_queued_bytes,
            attempts: self.max_attempts.max(1),
        }
    }
}
