//! Options of the libraries by their names on the command line: errors of the libraries tell
//! programmers what to set, and who reads them here has flags.

/// What the libraries say, and what the program says instead.
const NAMES: [(&str, &str); 21] = [
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
        "set them, use a loopback address, or ask for `insecure` by name",
        "give each process its --certs DIR (`distribute-cli certs` makes them), use a loopback \
         address, or --insecure on a network that you trust",
    ),
    (
        "clip, or choose `NonFinite::Apply`",
        "limit the gradients with --clip-norm, or choose --non-finite apply",
    ),
    (
        "use an optimizer of `distribute_core::optim`",
        "use an --optimizer without `burn:`",
    ),
    (" (`RemoteState::add`)", ""),
    (
        "; pass `.prefetch(0)` to do without one",
        "; start fewer processes",
    ),
    (
        ", or take the weights alone with `fit::restore_weights` (the tensors whose names do not \
         begin with `optimizer/`)",
        "",
    ),
    (
        "give the coordinator's address to `TpuClusterResolver::processes`, or set",
        "set",
    ),
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

    /// Options of other programs that messages name.
    const FOREIGN: [&str; 8] = [
        "--distribution",
        "--exact",
        "--features",
        "--no-default-features",
        "--nocapture",
        "--otlp-endpoint",
        "--release",
        "--test-threads",
    ];

    /// The texts of a source file before its tests.
    fn texts(source: &str) -> String {
        let code = source.split("#[cfg(test)]\nmod tests").next();
        let mut texts = String::new();
        for (index, part) in code.unwrap_or_default().split('"').enumerate() {
            if index % 2 == 1 {
                texts.push_str(part);
                texts.push('\n');
            }
        }
        texts
    }

    #[test]
    fn every_flag_that_a_message_names_is_there() {
        let program = crate::flags::program();
        let mut flags = std::collections::BTreeSet::new();
        let mut commands = vec![&program];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            let long = command.get_arguments().filter_map(clap::Arg::get_long);
            flags.extend(long.map(|long| format!("--{long}")));
        }
        flags.extend(["--help".to_string(), "--version".to_string()]);
        flags.extend(FOREIGN.map(String::from));
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (mut folders, mut named) = (vec![root], 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() {
                    let left_out = ["target", "tests", "examples", "xtask", "fuzz"];
                    let sources = !name.starts_with('.') && !left_out.contains(&&*name);
                    folders.extend(sources.then_some(path));
                    continue;
                }
                // The last names flags of other programs, and checks what it suggests itself.
                if !name.ends_with(".rs") || name.contains("tests") || name == "other_names.rs" {
                    continue;
                }
                let texts = texts(&std::fs::read_to_string(&path).unwrap());
                let words = texts.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
                let long = |word: &&str| {
                    let name = word.strip_prefix("--").unwrap_or_default();
                    name.starts_with(|c: char| c.is_ascii_lowercase())
                };
                for flag in words.filter(long) {
                    assert!(flags.contains(flag), "{}: {flag}", path.display());
                    named += 1;
                }
            }
        }
        assert!(named > 100, "{named}");
    }
}
