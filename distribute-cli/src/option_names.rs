//! Replaces the names of library options in error messages by flags: the libraries' messages are
//! for programmers, but users of this program set flags.

/// Texts of the libraries, and their replacements.
const NAMES: [(&str, &str); 46] = [
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
    ("`DatasetName::with_header`", "--csv-header"),
    ("`CsvHeader::Absent`", "--csv-header no"),
    (
        "the data set images needs the folder of the images, one folder per class: \
         `DatasetName::ImagesAt`, or `ReadingOptions::data_dir`",
        "--dataset images needs the folder of the images, one folder per class: --dataset \
         images:DIR, or --data-dir DIR",
    ),
    ("`ReadingOptions::data_dir`", "--data-dir"),
    ("`ReadingOptions::csv_delimiter`", "--csv-delimiter"),
    ("`ReadingOptions::label_column`", "--label-column"),
    ("`ReadingOptions::color_mode`", "--color-mode"),
    ("`ReadingOptions::columns`", "--columns"),
    ("`TaskOptions::validation_split`", "--validation-split"),
    ("by `TaskOptions::loss`: ", ": --loss "),
    ("`OutputOptions::losses`", "--loss"),
    ("`OutputOptions::loss_weights`", "--loss-weights"),
    ("`LossName::CrossEntropy`", "--loss cross-entropy"),
    ("`LossName::Mse`", "--loss mse"),
    ("`TargetsName::Values`", "--targets values"),
    ("`TargetsName::Classes`", "--targets classes"),
    (
        "`ReadingOptions::sample_weight_column`",
        "--sample-weight-column",
    ),
    ("`SplitName::All`", "--split all"),
    (
        "choose `ScaleName::By255` or `ScaleName::None`",
        "say --scale 255 or --scale none",
    ),
    ("(use a schedule)", "(use --lr-schedule)"),
    ("`OptimizerOptions::clip_norm`", "--clip-norm"),
    ("`OptimizerOptions::name`", "--optimizer"),
    (
        "of clip_norm (global_clipnorm), clipnorm and clipvalue one can be given",
        "of --clip-norm (global_clipnorm), and clipnorm and clipvalue of --optimizer, one can be \
         given",
    ),
    ("`Policy::mixed_float16`, which", "--precision f16, which"),
    ("`TrainState::accumulate_mean`", "--accumulate"),
];

/// A message with flags in place of options.
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
        let mut rest = code.unwrap_or_default();
        let mut texts = String::new();
        while let Some(first) = rest.chars().next() {
            let (text, after) = match first {
                '/' if rest.starts_with("//") => (None, after_line(rest)),
                '\'' => (None, after_quote(rest)),
                '"' => text(&rest[1..], "\"", true),
                'r' if is_raw(rest) => {
                    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
                    text(
                        &rest[2 + hashes..],
                        &format!("\"{}", "#".repeat(hashes)),
                        false,
                    )
                }
                // A name or a prefix of a text, such as `b` or `r#fn`.
                _ => (None, after_name(rest)),
            };
            texts.extend(text.into_iter().flat_map(|text| [text, "\n"]));
            rest = after;
        }
        texts
    }

    fn after_line(rest: &str) -> &str {
        rest.find('\n').map_or("", |end| &rest[end..])
    }

    /// After a letter in quotes, or after the quote that begins the name of a lifetime.
    fn after_quote(rest: &str) -> &str {
        let mut letters = rest.char_indices().skip(1);
        let (_, letter) = letters.next().unwrap_or_default();
        if letter == '\\' {
            // What is escaped may be the quote.
            let end = letters.skip(1).find(|(_, letter)| *letter == '\'');
            return end.map_or("", |(end, _)| &rest[end + 1..]);
        }
        match letters.next() {
            Some((end, '\'')) => &rest[end + 1..],
            _ => &rest[1..],
        }
    }

    fn is_raw(rest: &str) -> bool {
        rest[1..].trim_start_matches('#').starts_with('"')
    }

    fn after_name(rest: &str) -> &str {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let prefix = ["br", "cr"].iter().any(|it| rest.starts_with(it)) && is_raw(&rest[1..]);
        match rest.find(|c| !is_name(c)) {
            _ if prefix => &rest[1..],
            Some(end) if end > 0 => &rest[end..],
            Some(_) => &rest[rest.chars().next().map_or(0, char::len_utf8)..],
            None => "",
        }
    }

    /// A text up to what closes it, and what follows.
    fn text<'a>(rest: &'a str, close: &str, escapes: bool) -> (Option<&'a str>, &'a str) {
        let mut at = 0;
        while at < rest.len() && !rest[at..].starts_with(close) {
            let mut letters = rest[at..].chars();
            let letter = letters.next().map_or(0, char::len_utf8);
            let escaped = letters
                .next()
                .filter(|_| escapes && rest[at..].starts_with('\\'));
            at += letter + escaped.map_or(0, char::len_utf8);
        }
        let after = rest.get(at + close.len()..).unwrap_or_default();
        (Some(&rest[..at]), after)
    }

    #[test]
    fn texts_are_found_whatever_stands_between_them() {
        let source = r##"
            // "left out"
            fn a<'a>(b: &'a str) { match b'"' { '\'' | '"' | '\\' => "one\" two", _ => r"three\" } }
            let c = r#"four "five" six"#; let d = b"seven"; let e = br#"eight"#; "nine \
            ten"; r#fn(car"eleven")
        "##;
        let found = texts(source);
        let lines: Vec<&str> = found.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "one\\\" two",
                "three\\",
                "four \"five\" six",
                "seven",
                "eight",
                "nine \\",
                "ten",
                "eleven"
            ]
        );
    }

    /// Advices behind quotes that are no texts.
    #[test]
    fn advices_behind_odd_quotes_are_seen() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let count = |path: &str, flag: &str| {
            let source = std::fs::read_to_string(root.join(path)).unwrap();
            texts(&source).matches(flag).count()
        };
        assert!(
            count(
                "training/distribute-readers/src/table_start.rs",
                "--csv-delimiter"
            ) >= 3
        );
        assert!(count("base/distribute-cluster/src/addresses.rs", "--cluster-spec") >= 1);
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
