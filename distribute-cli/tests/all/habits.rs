//! What people expect of a program: completion, manual pages, a dry run, a version.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use rstest::rstest;
use serde_json::Value;

use crate::common::{self, last_event, run, succeed};

/// The commands that the help names.
fn named_commands(folder: &Path) -> BTreeSet<String> {
    let help = succeed(folder, "--help");
    let (_, rest) = help.split_once("Commands:\n").unwrap();
    let (rows, _) = rest.split_once("\n\n").unwrap();
    // A row whose text goes on has no name.
    let rows = rows.lines().filter_map(|row| row.strip_prefix("  "));
    let names = rows.filter_map(|row| row.split(' ').next().filter(|name| !name.is_empty()));
    names
        .filter(|name| *name != "help")
        .map(str::to_string)
        .collect()
}

#[rstest]
#[case("bash")]
#[case("zsh")]
#[case("fish")]
#[case("elvish")]
#[case("powershell")]
fn a_shell_completes_commands_and_flags(#[case] shell: &str) {
    let folder = tempfile::tempdir().unwrap();
    let script = succeed(folder.path(), &format!("completions {shell}"));
    for name in named_commands(folder.path()) {
        assert!(script.contains(&name), "{shell}: {name}");
    }
    assert!(script.contains("checkpoint-dir"), "{shell}");
}

#[test]
fn bash_takes_the_script_and_completes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("script"),
        succeed(folder.path(), "completions bash"),
    )
    .unwrap();
    let ask = "source ./script; \
               complete=$(complete -p distribute-cli | grep -o '_distribute[^ ]*'); \
               COMP_WORDS=(distribute-cli tra); COMP_CWORD=1; \
               $complete distribute-cli tra distribute-cli; echo \"${COMPREPLY[@]}\"; \
               COMP_WORDS=(distribute-cli train --checkpoint-d); COMP_CWORD=2; \
               $complete distribute-cli --checkpoint-d train; echo \"${COMPREPLY[@]}\"; \
               COMP_WORDS=(distribute-cli bench all-reduce --wor); COMP_CWORD=3; \
               $complete distribute-cli --wor all-reduce; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("timeout")
        .args(["60", "bash", "--norc", "-c", ask])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let found = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(found, "train\n--checkpoint-dir\n--world\n", "{output:?}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    succeed(folder.path(), "man --out man/man1");
    let pages = fs::read_dir(folder.path().join("man/man1")).unwrap();
    let pages: BTreeSet<String> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(pages.contains("distribute-cli.1"), "{pages:?}");
    for name in named_commands(folder.path()) {
        assert!(
            pages.contains(&format!("distribute-cli-{name}.1")),
            "{name}: {pages:?}"
        );
    }
    assert!(pages.contains("distribute-cli-bench-train.1"), "{pages:?}");
    assert!(
        !pages.iter().any(|page| page.contains("guard")),
        "{pages:?}"
    );
    let train = folder.path().join("man/man1/distribute-cli-train.1");
    let train = fs::read_to_string(train).unwrap();
    assert!(
        train.contains(".SH") && train.contains("checkpoint\\-dir"),
        "{train}"
    );
    fs::write(folder.path().join("file"), "").unwrap();
    let refused = run(folder.path(), "man --out file");
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("cannot write file"),
        "{}",
        refused.stderr
    );
}

#[test]
fn the_version_names_the_features() {
    let folder = tempfile::tempdir().unwrap();
    let version = succeed(folder.path(), "--version");
    let features = [
        (cfg!(feature = "full"), "full"),
        (cfg!(feature = "nccl"), "nccl"),
        (cfg!(feature = "cuda"), "cuda"),
        (cfg!(feature = "fusion"), "fusion"),
        (cfg!(feature = "autotune"), "autotune"),
        (cfg!(feature = "otlp"), "otlp"),
    ];
    let named = features.iter().filter(|(is_on, _)| *is_on);
    let named: Vec<&str> = named.map(|(_, name)| *name).collect();
    let named = match named[..] {
        [] => "none".to_string(),
        _ => named.join(", "),
    };
    let expected = format!(
        "distribute-cli {} (features: {named})\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(version, expected);
    assert!(succeed(folder.path(), "doctor").starts_with(&expected));
}

/// What a dry run says is what the run itself then says of itself.
#[rstest]
#[case("--replicas 3 --model mlp --epochs 2")]
#[case("--strategy one-device --model mlp --epochs 2 --batch-size 100")]
#[case("--strategy central-storage --replicas 2 --model digits-cnn --steps 3")]
#[case("--model mlp --steps 3 --optimizer sgd --accumulate 3 --devices cpu:1,cpu:0")]
fn a_dry_run_says_what_would_run(#[case] flags: &str) {
    let folder = tempfile::tempdir().unwrap();
    let train = format!("train --output json --checkpoint-dir saved {flags}");
    let plan = last_event(&succeed(folder.path(), &format!("{train} --dry-run")));
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing is written"
    );
    let out = succeed(folder.path(), &train);
    let start: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    for key in [
        "strategy",
        "workers",
        "replicas",
        "devices",
        "model",
        "parameters",
        "dataset",
        "train_examples",
        "test_examples",
        "batch_size",
        "global_batch_size",
        "epochs",
        "optimizer",
    ] {
        assert_eq!(plan[key], start[key], "{key}");
    }
    let done = last_event(&out);
    assert_eq!(plan["updates"], done["steps"]);
    // Weights, gradients and the optimizer's state of Adam, twice the weights.
    let bytes = plan["parameters"].as_u64().unwrap() * 4;
    let replicas = plan["replicas"].as_u64().unwrap();
    let expected = match flags {
        flags if flags.contains("central") => bytes * (2 * replicas + 1 + 2),
        flags if flags.contains("sgd") => bytes * replicas * (2 + sgd_slots()),
        _ => bytes * replicas * 4,
    };
    assert_eq!(plan["state_bytes"], expected);
    // What a finished run would go on with.
    let again = last_event(&succeed(
        folder.path(),
        &format!("{train} --resume --dry-run"),
    ));
    assert_eq!(again["updates_done"], done["steps"]);
}

fn sgd_slots() -> u64 {
    let sgd = distribute_core::optim::from_config("sgd", &serde_json::json!({})).unwrap();
    sgd.slots().len() as u64
}

#[test]
fn a_dry_run_knows_the_workers_and_refuses_what_the_run_would() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = r#"{"cluster":{"worker":["127.0.0.1:1","127.0.0.1:2"]},"task":{"type":"worker","index":1}}"#;
    let train = "train --strategy multi-worker --model mlp --replicas 3 --dry-run";
    let output = common::program(folder.path())
        .args(train.split_whitespace())
        .env("TF_CONFIG", cluster)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("2 workers, each with cpu:0, cpu:1, cpu:2"),
        "{text}"
    );
    assert!(text.contains("6 replicas"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert_refused("--strategy tpu --dry-run", "--compile-only");
    for (flags, part) in [
        ("--replicas 2000", "at most 1024"),
        ("--strategy one-device --replicas 2", "has one replica"),
        (
            "--strategy one-device --replicas-per-device 2",
            "has one replica, 2 were",
        ),
        (
            "--strategy default --replicas-per-device 2",
            "has one replica, 2 were",
        ),
        (
            "--strategy multi-worker --total-replicas 1000000000000",
            "at most 1024",
        ),
        (
            "--strategy multi-worker --max-staleness 3",
            "is for --strategy parameter-server",
        ),
        (
            "--strategy multi-worker --tpu here",
            "is for --strategy tpu",
        ),
        ("--pjrt-plugin none.so", "is for --strategy tpu"),
        ("--model nothing", "unknown model"),
        ("--resume --checkpoint-dir none", "holds no checkpoint"),
    ] {
        assert_refused(flags, part);
        assert_refused(&format!("{flags} --dry-run"), part);
    }
}

/// A training is refused as wrong usage that says this.
#[track_caller]
fn assert_refused(flags: &str, part: &str) {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(folder.path(), &format!("train {flags}"));
    assert_eq!(refused.code, Some(2), "{flags}: {}", refused.stderr);
    assert!(refused.stderr.contains(part), "{flags}: {}", refused.stderr);
}

#[cfg(feature = "full")]
#[rstest]
#[case("--pjrt-plugin none.so", "is for --strategy tpu")]
#[case("--total-replicas 2", "gradients that workers exchange")]
#[case("--replicas 2", "has one replica")]
#[case("--log-bits bits", "--log-bits is not for")]
#[case("--trace trace.json", "--trace is not for")]
#[case("--metrics-addr 0", "--metrics-addr is not for")]
fn a_dry_run_refuses_what_parameter_servers_do(#[case] flags: &str, #[case] part: &str) {
    let flags = format!("--strategy parameter-server {flags}");
    assert_refused(&flags, part);
    assert_refused(&format!("{flags} --dry-run"), part);
}

/// The chief of parameter servers takes neither model nor batches from the checkpoint, because the
/// workers do not read it.
#[cfg(feature = "full")]
#[test]
fn a_dry_run_of_parameter_servers_goes_on_with_what_the_flags_say() {
    let folder = tempfile::tempdir().unwrap();
    let saved = "--replicas 1 --checkpoint-dir saved --l2 0.01";
    let train = "--model mlp --batch-size 16";
    succeed(folder.path(), &format!("train {saved} {train} --steps 2"));
    let again = "train --strategy parameter-server --checkpoint-dir saved --resume --dry-run";
    for (flags, part) in [
        ("--model mlp --batch-size 16", "was trained with --l2 0.01"),
        ("--l2 0.01 --batch-size 16", "holds the model"),
        (
            "--l2 0.01 --model mlp --batch-size 8",
            "give all processes --batch-size 16",
        ),
    ] {
        let refused = run(folder.path(), &format!("{again} {flags}"));
        assert_eq!(refused.code, Some(2), "{flags}: {}", refused.stderr);
        assert!(refused.stderr.contains(part), "{flags}: {}", refused.stderr);
    }
    let text = succeed(folder.path(), &format!("{again} --l2 0.01 {train}"));
    assert!(text.contains("2 of them done"), "{text}");
}

#[test]
fn a_dry_run_of_a_batch_beyond_memory_says_how_much_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let batch = usize::MAX;
    let flags = format!("train --dry-run --model mlp --replicas 1 --batch-size {batch}");
    let text = succeed(folder.path(), &flags);
    assert!(text.contains("memory      at least"), "{text}");
}
