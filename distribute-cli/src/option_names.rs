//! Options of the libraries by their names on the command line: errors of the libraries tell
//! programmers what to set, and who reads them here has flags.

/// What the libraries say, and what the program says instead.
const NAMES: [(&str, &str); 14] = [
    (
        "raise `ServerOptions::coordinator_timeout`",
        "raise --rendezvous-timeout",
    ),
    (
        "raise `WorkerOptions::coordinator_timeout`",
        "raise --rendezvous-timeout",
    ),
    (", or raise `ServerOptions::orphan_timeout`", ""),
    (", or raise `WorkerOptions::orphan_timeout`", ""),
    (", or raise `CoordinatorOptions::schedule_timeout`", ""),
    (
        "; raise `CoordinatorOptions::step_timeout` if it should",
        "",
    ),
    (
        "; raise `ServerOptions::max_variables`",
        "; use a larger --shard-bytes",
    ),
    (
        "raise `ServerOptions::max_shard_bytes`, or use a partitioner with smaller shards",
        "use a smaller --shard-bytes",
    ),
    (
        "raise `ServerOptions::max_request_bytes`, or use a partitioner with smaller shards",
        "use a smaller --shard-bytes",
    ),
    (
        "raise `ServerOptions::max_memory_bytes`, or use a partitioner with smaller shards",
        "start more parameter servers, and use --shard-bytes",
    ),
    ("; raise `WorkerOptions::max_message_bytes`", ""),
    (
        "set `weight_decay` beside `exclude_from_weight_decay`",
        "add --weight-decay to --weight-decay-exclude",
    ),
    ("use `drop_remainder`", "use --drop-remainder"),
    (
        "raise the timeout of the group",
        "raise --timeout, or --heartbeat-timeout if it only pauses",
    ),
];

/// A message with flags in the place of options.
pub(crate) fn in_flags(message: &str) -> String {
    let replace = |message: String, (option, flag)| message.replace(option, flag);
    NAMES.into_iter().fold(message.to_string(), replace)
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use std::time::Duration;

    use distribute_core::collectives::{CollectiveError, OperationKind};
    use distribute_ps::PsError;

    use super::in_flags;

    fn no_coordinator(option: &'static str) -> String {
        let error = PsError::NoCoordinator {
            task: "worker 1".to_string(),
            chief: "the chief at 10.0.0.1:2222".to_string(),
            waited: Duration::from_secs(1),
            option,
            refused: String::new(),
        };
        in_flags(&error.to_string())
    }

    #[test]
    fn errors_name_flags() {
        let lost = PsError::CoordinatorLost {
            task: "worker 1".to_string(),
            chief: "the chief".to_string(),
            waited: Duration::from_secs(300),
            option: "WorkerOptions::orphan_timeout",
            refused: String::new(),
        };
        let timeout = CollectiveError::Timeout {
            missing: vec![1],
            op: OperationKind::Barrier,
            sequence: 3,
            elapsed: Duration::from_secs(300),
        };
        let full = PsError::TooLarge {
            what: "the variable `a`".to_string(),
            bytes: 10,
            limit: 5,
            option: "max_shard_bytes",
        };
        let all = [
            no_coordinator("ServerOptions::coordinator_timeout"),
            no_coordinator("WorkerOptions::coordinator_timeout"),
            in_flags(&lost.to_string()),
            in_flags(&timeout.to_string()),
            in_flags(&full.to_string()),
        ];
        insta::assert_snapshot!(all.join("\n"), @r"
        worker 1: no coordinator has come within 1.0s; start the chief at 10.0.0.1:2222, or raise --rendezvous-timeout
        worker 1: no coordinator has come within 1.0s; start the chief at 10.0.0.1:2222, or raise --rendezvous-timeout
        worker 1: the chief has been gone for 300.0s without having ended the job, and none has come since; start the job again, which resumes from the last checkpoint
        operation 3 (barrier) timed out after 300.0s: rank(s) [1] did not take part; look there, or raise --timeout, or --heartbeat-timeout if it only pauses
        the variable `a` has 10 bytes, the limit is 5; use a smaller --shard-bytes
        ");
    }
}
