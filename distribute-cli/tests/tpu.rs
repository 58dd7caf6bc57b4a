//! `train --strategy tpu` on XLA's CPU client: the numbers of other strategies, checkpoints both
//! ways, compiling without a device, and what is refused.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use rstest::rstest;
use serde_json::Value;

/// XLA's CPU client, or a line that says how to get it.
fn plugin() -> Option<String> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = set("PJRT_CPU_PLUGIN").map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
    let file = "distribute/pjrt-cpu/2.21.0/pjrt_c_api_cpu_plugin.so";
    let cached = cache.map(|cache| cache.join(file));
    let found = named.or(cached.filter(|path| path.is_file()));
    if found.is_none() {
        println!(
            "SKIPPED: no PJRT_CPU_PLUGIN: run distribute-tpu-xla/pjrt-cpu/build, and the tests of \
             --strategy tpu run too"
        );
    }
    found.map(|path| path.display().to_string())
}

/// The last epoch of a run and its end.
fn trained(folder: &Path, arguments: &str) -> (Value, Value) {
    let out = common::succeed(folder, &format!("train --output json {arguments}"));
    let events: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let epoch = events.iter().rfind(|event| event["event"] == "epoch");
    (epoch.unwrap().clone(), events.last().unwrap().clone())
}

fn close(found: &Value, expected: &Value, names: &[&str]) {
    for name in names {
        let (a, b) = (
            found[name].as_f64().unwrap(),
            expected[name].as_f64().unwrap(),
        );
        assert!(
            (a - b).abs() <= 1e-4 * b.abs().max(1.0),
            "{name}: {a}, expected {b}"
        );
    }
}

const AVERAGES: [&str; 4] = ["loss", "accuracy", "val_loss", "val_accuracy"];

#[rstest]
fn a_compiled_run_has_the_losses_of_an_eager_one(
    #[values("mlp", "digits-cnn")] model: &str,
    #[values(1, 2, 8)] replicas: usize,
) {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Short batches, filled up: 30 examples are left of 1438 to train with, 39 of 359 to test.
    let run = format!("--model {model} --epochs 1 --batch-size");
    let (expected, _) = trained(folder.path(), &format!("{run} 64 --replicas 1"));
    let share = 64 / replicas;
    let tpu = format!("--strategy tpu --pjrt-plugin {plugin} --replicas {replicas}");
    let (found, end) = trained(folder.path(), &format!("{run} {share} {tpu}"));
    close(&found, &expected, &AVERAGES);
    assert_eq!(end["steps"], 23);
}

#[test]
fn a_checkpoint_of_one_continues_under_the_other() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tpu = format!("--strategy tpu --pjrt-plugin {plugin} --replicas 2 --batch-size 32");
    let eager = "--replicas 1 --batch-size 64".to_string();
    let run = "--model mlp --optimizer adamw";
    let (expected, _) = trained(folder.path(), &format!("{run} {eager} --steps 22"));
    for (first, second) in [(&tpu, &eager), (&eager, &tpu)] {
        let saved = tempfile::tempdir_in(folder.path()).unwrap();
        let saved = format!("--checkpoint-dir {}/c", saved.path().display());
        trained(folder.path(), &format!("{run} {first} --steps 11 {saved}"));
        let again = format!("{run} {second} --steps 22 --resume {saved}");
        let (found, _) = trained(folder.path(), &again);
        close(&found, &expected, &AVERAGES);
    }
}

#[test]
fn a_texts_model_and_the_order_of_what_is_said() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut rows = "text,label\n".to_string();
    for i in 0..200 {
        let (words, label) = match i % 2 {
            0 => ("a good film with a happy end", 1),
            _ => ("bad and far too long", 0),
        };
        rows += &format!("{words} number {},{label}\n", i % 7);
    }
    fs::write(folder.path().join("reviews.csv"), rows).unwrap();
    let run = "train --model text --dataset csv:reviews.csv --steps 20 --batch-size 8";
    let tpu = format!("{run} --strategy tpu --pjrt-plugin {plugin} --replicas 2");
    let finished = common::run(folder.path(), &tpu);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let said: Vec<&str> = finished.stderr.lines().collect();
    let running = said
        .iter()
        .position(|line| *line == "Running on TPU [\"local\"]");
    assert_eq!(said[running.unwrap() + 1], "Number of accelerators: 8");
    let expected = common::run(folder.path(), &format!("{run} --replicas 2"));
    let accuracy = |out: &str| out.split(';').next().unwrap().to_string();
    assert_eq!(accuracy(&finished.stdout), accuracy(&expected.stdout));
}

#[test]
fn a_step_is_compiled_for_devices_that_are_not_there() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!(
        "train --strategy tpu --pjrt-plugin {plugin} --compile-only --topology cpu:4 --model mlp \
         --output json"
    );
    let report: Value = serde_json::from_str(&common::succeed(folder.path(), &arguments)).unwrap();
    assert_eq!(report["event"], "compiled");
    assert_eq!(
        (&report["devices"], &report["replicas"]),
        (&4.into(), &4.into())
    );
    // Weights, biases and two slots of Adam of each.
    let parameters = 64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10;
    assert_eq!(report["donated_bytes"], 3 * 4 * parameters);
    assert_eq!(report["alias_bytes"], report["donated_bytes"]);
    assert!(
        report["collectives"]["all-reduce"].as_u64().unwrap() >= 1,
        "{report}"
    );
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("no-plugin.so"), "text").unwrap();
    let mut said = String::new();
    let mut refuse = |arguments: &str| {
        let finished = common::run(folder.path(), arguments);
        let code = finished.code.unwrap();
        assert!(matches!(code, 1 | 2), "{arguments}: {}", finished.stderr);
        said += &format!("{arguments}\n  exit {code}: {}", finished.stderr);
    };
    refuse("train --strategy tpu --pjrt-plugin missing.so");
    refuse("train --strategy tpu --pjrt-plugin no-plugin.so");
    refuse("train --strategy tpu --devices cpu:0");
    refuse("train --pjrt-plugin x.so");
    refuse("train --tpu local");
    refuse("train --strategy tpu --compile-only");
    refuse("train --strategy tpu --topology v5e:2x4");
    refuse("evaluate --strategy tpu --checkpoint-dir x");
    insta::with_settings!({ filters => vec![(r"/\S*/\.tmp\w+", "[FOLDER]")] }, {
        insta::assert_snapshot!("refused", said);
    });
}

#[test]
fn what_the_devices_do_not_allow_is_refused() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let train = format!("train --strategy tpu --pjrt-plugin {plugin}");
    let mut said = String::new();
    let mut refuse = |arguments: &str| {
        let finished = common::run(folder.path(), &format!("{train} {arguments}"));
        assert!(matches!(finished.code, Some(1 | 2)), "{}", finished.stderr);
        said += &format!("{arguments}\n  {}", finished.stderr);
    };
    refuse("--replicas 9");
    refuse("--compile-only --topology mars:2x4");
    refuse("--compile-only --topology cpu:2 --replicas 3");
    insta::assert_snapshot!("not_allowed", said);
}
