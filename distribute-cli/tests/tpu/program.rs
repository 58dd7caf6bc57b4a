//! `train --strategy tpu` on XLA's CPU client: the numbers of other strategies, checkpoints both
//! ways, compiling without a device, and what is refused.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use distribute_core::checkpoint::load_latest;
use rstest::rstest;
use serde_json::Value;

use crate::{common, plugins};

/// XLA's CPU client, or a line that says how to get it.
fn plugin() -> Option<String> {
    Some(plugins::cpu_plugin()?.display().to_string())
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

/// What a model ends with decides the loss: of a class each, of one choice, of yes and no.
#[rstest]
#[case::a_sigmoid_per_class("sigmoid", r#"{"class_name": "Flatten", "config": {}}"#)]
#[case::a_softmax("softmax", r#"{"class_name": "Flatten", "config": {}}"#)]
#[case::a_softmax_layer("linear", r#"{"class_name": "Softmax", "config": {}}"#)]
fn the_head_of_a_model_decides_the_loss_of_a_compiled_run(
    #[case] activation: &str,
    #[case] last: &str,
) {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = format!(
        r#"{{"class_name": "Sequential", "config": {{"layers": [
            {{"class_name": "Flatten", "config": {{}}}},
            {{"class_name": "Dense", "config": {{"units": 10, "activation": "{activation}"}}}},
            {last}]}}}}"#
    );
    fs::write(folder.path().join("model.json"), model).unwrap();
    let run = "--model model.json --epochs 1 --batch-size";
    let (expected, _) = trained(folder.path(), &format!("{run} 64 --replicas 1"));
    let tpu = format!("--strategy tpu --pjrt-plugin {plugin} --replicas 2");
    let (found, _) = trained(folder.path(), &format!("{run} 32 {tpu}"));
    close(&found, &expected, &AVERAGES);
    // A mean of ten yes-no questions begins near ln 2, one choice among ten near ln 10.
    let loss = found["loss"].as_f64().unwrap();
    assert_eq!(loss < 1.0, activation == "sigmoid", "{loss}");
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

/// Its numbers are the same as at the same precision in steps that run as they are, its checkpoint
/// goes on under either, and `f16` has the loss scale in it.
#[rstest]
fn a_compiled_run_in_16_bits(#[values("bf16", "f16")] precision: &str) {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tpu = format!("--strategy tpu --pjrt-plugin {plugin} --replicas 2 --batch-size 32");
    let eager = "--replicas 2 --batch-size 32".to_string();
    let run = format!("--model mlp --precision {precision} --clip-norm 1");
    let (expected, _) = trained(folder.path(), &format!("{run} {eager} --steps 22"));
    let near = |found: &Value| {
        for name in AVERAGES {
            let [found, expected] = [found, &expected].map(|it| it[name].as_f64().unwrap());
            assert!(
                (found - expected).abs() < 0.02,
                "{name}: {found} {expected}"
            );
        }
    };
    for (first, second) in [(&tpu, &eager), (&eager, &tpu), (&tpu, &tpu)] {
        let saved = tempfile::tempdir_in(folder.path()).unwrap();
        let into = format!("--checkpoint-dir {}/c", saved.path().display());
        trained(folder.path(), &format!("{run} {first} --steps 11 {into}"));
        let (_, checkpoint) = load_latest(saved.path().join("c")).unwrap().found.unwrap();
        let scale = checkpoint.tensors.get("loss_scale/dynamic_scale");
        assert_eq!(scale.is_some(), precision == "f16");
        let again = format!("{run} {second} --steps 22 --resume {into}");
        near(&trained(folder.path(), &again).0);
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
    let accuracy = |out: &str| {
        let line = out.lines().find(|line| line.starts_with("test accuracy"));
        line.unwrap().to_string()
    };
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
fn the_same_seed_gives_the_same_bits_and_files_and_the_devices_have_their_names() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = format!(
        "--strategy tpu --pjrt-plugin {plugin} --replicas 3 --model digits-cnn --epochs 1 \
         --batch-size 50 --log-dir logs"
    );
    let bits = |seed: u64| {
        let (_, end) = trained(folder.path(), &format!("{run} --seed {seed}"));
        end["weights_sha256"].as_str().unwrap().to_string()
    };
    let first = bits(7);
    assert_eq!(first, bits(7));
    assert_ne!(first, bits(8));
    for file in ["history.csv", "history.jsonl", "train", "validation"] {
        assert!(folder.path().join("logs").join(file).exists(), "{file}");
    }
    let out = common::succeed(
        folder.path(),
        &format!("train --output json --steps 1 {run}"),
    );
    let start: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(start["devices"].as_array().unwrap().len(), 3);
    // XLA's own names, and not the names of this program's CPU replicas.
    assert!(!start["devices"].to_string().contains("cpu:"), "{start}");
}

/// Images and labels in the format of MNIST.
fn images(folder: &Path, name: &str, count: u32) {
    let header = |numbers: &[u32]| -> Vec<u8> {
        let bytes = numbers.iter().map(|number| number.to_be_bytes());
        bytes.flatten().collect()
    };
    let mut images = header(&[2051, count, 28, 28]);
    images.extend((0..count * 28 * 28).map(|i| (i * i % 251) as u8));
    let mut labels = header(&[2049, count]);
    labels.extend((0..count).map(|i| (i % 10) as u8));
    fs::write(folder.join(format!("{name}-images-idx3-ubyte")), images).unwrap();
    fs::write(folder.join(format!("{name}-labels-idx1-ubyte")), labels).unwrap();
}

/// More rows than examples, fewer examples than replicas, a model from a file.
#[rstest]
#[case("--dataset csv:few.csv --replicas 8 --batch-size 1", 8)]
#[case("--dataset csv:few.csv --replicas 3 --batch-size 1000", 3)]
#[case("--dataset idx:. --model model.json --replicas 2 --batch-size 5", 2)]
fn data_of_any_size_and_models_of_files_train_as_under_mirrored(
    #[case] run: &str,
    #[case] replicas: usize,
) {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let row = |i: u32| format!("{},{},{}\n", (f64::from(i) * 0.7).sin(), i % 5, i % 2);
    let rows: String = (0..13).map(row).collect();
    fs::write(folder.path().join("few.csv"), format!("a,b,label\n{rows}")).unwrap();
    for (name, count) in [("train", 23), ("t10k", 7)] {
        images(folder.path(), name, count);
    }
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/training/distribute-keras/tests/keras/documents_cnn.keras3.json"
    );
    fs::copy(model, folder.path().join("model.json")).unwrap();
    let run = format!("{run} --epochs 2");
    let (expected, _) = trained(folder.path(), &run);
    let tpu = format!("{run} --strategy tpu --pjrt-plugin {plugin}");
    let (found, end) = trained(folder.path(), &tpu);
    close(&found, &expected, &AVERAGES);
    assert!(end["steps"].as_u64().unwrap() > 0, "{replicas} replicas");
}

#[rstest]
fn every_built_in_model_is_measured(
    #[values("mnist-cnn", "digits-cnn", "mlp", "text")] model: &str,
) {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let bench = format!(
        "bench tpu --pjrt-plugin {plugin} --model {model} --batch-size 2 --replicas 1,2 --rounds 2 \
         --seconds 0.01"
    );
    let out = common::succeed(folder.path(), &format!("{bench} --output json"));
    let lines = out.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.map(Result::unwrap).collect();
    let measured = lines
        .iter()
        .map(|line| (line["impl"].as_str(), line["replicas"].as_u64()));
    let expected = [("one-device", 1), ("tpu", 1), ("tpu", 2)];
    assert!(measured.eq(expected.map(|(name, replicas)| (Some(name), Some(replicas)))));
    for line in &lines {
        assert_eq!(line["model"], model);
        assert!(line["step_ms"].as_f64().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("no-plugin.so"), "text").unwrap();
    fs::write(folder.path().join("text.so"), "a longer text\n".repeat(100)).unwrap();
    let mut said = String::new();
    let mut refuse = |arguments: &str| {
        let finished = common::run(folder.path(), arguments);
        let code = finished.code.unwrap();
        assert!(matches!(code, 1 | 2), "{arguments}: {}", finished.stderr);
        said += &format!("{arguments}\n  exit {code}: {}", finished.stderr);
    };
    refuse("train --strategy tpu --pjrt-plugin missing.so");
    refuse("train --strategy tpu --pjrt-plugin no-plugin.so");
    refuse("train --strategy tpu --pjrt-plugin text.so");
    refuse("train --strategy tpu --pjrt-plugin .");
    refuse("bench tpu --pjrt-plugin missing.so");
    refuse("bench tpu --rounds 0");
    refuse("train --strategy tpu --tpu grpc://10.0.0.2:8470");
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

/// A library made of a file that the tests of the plugins have; nothing, and a line that says so,
/// without a C compiler.
fn compile_c(folder: &Path, source: &str, define: &str) -> Option<()> {
    let sources = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../distribute-tpu-xla/tests/tpu_xla/pjrt"
    );
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(folder.join("false.so"));
    cc.arg(Path::new(sources).join(source))
        .args([define, "-ldl"]);
    let Ok(output) = cc.output() else {
        println!("SKIPPED: no C compiler `cc` to make a false plugin with: install gcc");
        return None;
    };
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(())
}

#[test]
fn a_library_that_is_no_plugin_or_one_of_another_version_is_refused_in_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let defines = [
        "-DSYMBOL=SomethingElse",
        "-DNO_TABLE",
        "-DMAJOR=1",
        "-DMINOR=1",
    ];
    let mut said = String::new();
    for define in defines {
        if compile_c(folder.path(), "fake.c", define).is_none() {
            return;
        }
        let finished = common::run(
            folder.path(),
            "train --strategy tpu --pjrt-plugin ./false.so",
        );
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        said += &format!("{define}\n  {}", finished.stderr);
    }
    insta::with_settings!({ filters => vec![(r"/\S*/\.tmp\w+", "[FOLDER]")] }, {
        insta::assert_snapshot!("other_libraries", said);
    });
}

/// The CPU plugin without `PJRT_Client_Create`, or without `PJRT_Client_Compile`.
#[rstest]
#[case("PJRT_Client_Create", 10)]
#[case("PJRT_Client_Compile", 20)]
fn a_plugin_without_a_function_is_refused_with_its_name(#[case] name: &str, #[case] hole: usize) {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control");
    let define = format!("-DCONTROL=\"{}\"", control.display());
    if compile_c(folder.path(), "holes.c", &define).is_none() {
        return;
    }
    fs::write(&control, format!("{plugin} 128 {hole}")).unwrap();
    let run = "train --strategy tpu --pjrt-plugin ./false.so --steps 1 --model mlp";
    let finished = common::run(folder.path(), run);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let error = finished.stderr.lines().last().unwrap();
    assert!(error.starts_with("error: "), "{error}");
    assert!(error.contains(&format!("lacks {name};")), "{error}");
}

#[test]
fn without_a_plugin_there_are_two_lines_and_verbose_has_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str| {
        let mut program = common::program(folder.path());
        for name in ["PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT"] {
            program.env_remove(name);
        }
        for name in [
            "XDG_CACHE_HOME",
            "PJRT_CPU_PLUGIN",
            "PJRT_PLUGIN_LIBRARY_PATH",
        ] {
            program.env_remove(name);
        }
        program
            .env("HOME", folder.path())
            .env("PATH", folder.path());
        let output = program.args(arguments.split_whitespace()).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    for command in [
        "train --strategy tpu",
        "bench tpu",
        "conformance --strategy tpu",
    ] {
        let said = run(command);
        if !said.contains("no PJRT plugin was found") {
            println!("SKIPPED: the system's own Python has a plugin: {said}");
            return;
        }
        assert_eq!(said.lines().count(), 1, "{said}");
        let begin = if command.starts_with("conformance") {
            "error: nothing was checked: skipped tpu: no PJRT plugin was found; name one"
        } else {
            "error: TPU failed to initialize: no PJRT plugin was found; name one"
        };
        assert!(said.starts_with(begin), "{said}");
        assert!(
            said.contains("pjrt_c_api_cpu_plugin.so (not there)"),
            "{said}"
        );
        assert!(said.len() < 800, "{said}");
    }
    let said = run("train --strategy tpu --verbose");
    // The places, and nothing that only Rust can read.
    assert!(!said.contains("NotFound {"), "{said}");
    let places = [
        "PJRT_CPU_PLUGIN (not set)",
        "PJRT_PLUGIN_LIBRARY_PATH (not set)",
        "TPU_LIBRARY_PATH (not set)",
    ];
    for place in places {
        assert!(said.contains(&format!("\n  {place}\n")), "{said}");
    }
}

/// One search for all commands, by variable or in the cache.
#[test]
fn the_cpu_client_is_found_by_every_command_alike() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache/distribute/pjrt-cpu/2.21.0");
    fs::create_dir_all(&cache).unwrap();
    std::os::unix::fs::symlink(&plugin, cache.join("pjrt_c_api_cpu_plugin.so")).unwrap();
    let cached = folder.path().join("cache").display().to_string();
    let run = |arguments: &str, (name, value): (&str, &str)| {
        let mut program = common::program(folder.path());
        let others = ["PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT"];
        let variables = [
            "XDG_CACHE_HOME",
            "PJRT_CPU_PLUGIN",
            "PJRT_PLUGIN_LIBRARY_PATH",
        ];
        for other in others.into_iter().chain(variables) {
            program.env_remove(other);
        }
        program
            .env("HOME", folder.path())
            .env("PATH", folder.path());
        program.env(name, value).args(arguments.split_whitespace());
        program.output().unwrap()
    };
    let commands = [
        "doctor",
        "train --strategy tpu --model mlp --steps 2 --replicas 2",
        "train --strategy tpu --compile-only --topology cpu:2 --model mlp",
        "bench tpu --model mlp --rounds 1 --seconds 0.05",
        "conformance --strategy tpu --family reduce",
    ];
    for named in [("XDG_CACHE_HOME", &*cached), ("PJRT_CPU_PLUGIN", &*plugin)] {
        for command in commands {
            let output = run(command, named);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{command}, {named:?}: {said}"
            );
        }
        let doctor = String::from_utf8(run("doctor", named).stdout).unwrap();
        let line = doctor.lines().find(|line| line.starts_with("PJRT plugin"));
        assert!(
            line.unwrap().contains("pjrt_c_api_cpu_plugin.so"),
            "{doctor}"
        );
    }
}

/// Nothing is saved and nothing runs, so a signal ends the program while a compiler works.
#[test]
fn a_signal_ends_compiling_within_a_second() {
    let Some(libtpu) = libtpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (signal, ended) in [("TERM", 143), ("INT", 130)] {
        let mut program = common::plain(folder.path());
        let arguments = format!(
            "train --strategy tpu --pjrt-plugin {libtpu} --compile-only --topology v5e:2x4 \
             --model digits-cnn --dump-stablehlo step.mlir"
        );
        program.args(arguments.split_whitespace());
        let mut child = program.stderr(Stdio::piped()).spawn().unwrap();
        let _watchdog = common::watchdog(child.id());
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let begun = said.find(|line| line.as_ref().unwrap().contains("compiling for v5e"));
        assert!(begun.is_some());
        let asked = Instant::now();
        common::signal(child.id(), signal);
        let code = child.wait().unwrap().code();
        // A second on a machine with nothing else to do.
        assert!(
            asked.elapsed() < Duration::from_secs(5),
            "{:?}",
            asked.elapsed()
        );
        assert_eq!(code, Some(ended));
        let rest: Vec<String> = said.map(Result::unwrap).collect();
        assert!(rest.concat().contains("before training began"), "{rest:?}");
        let program = fs::read_to_string(folder.path().join("step.mlir")).unwrap();
        assert!(program.starts_with("module @step"), "{program}");
    }
}

/// The first step is compiled in the process itself.
#[rstest]
fn a_signal_ends_compiling_the_first_step_within_a_second(
    #[values(("TERM", 143), ("INT", 130))] signal: (&str, i32),
) {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "train --strategy tpu --pjrt-plugin {plugin} --model digits-cnn --replicas 8 --output json"
    );
    let mut command = common::plain(folder.path());
    let mut process = common::Process::start(command.args(line.split_whitespace()), &[]);
    // Everything is checked; what follows is the first step.
    process.wait_for(r#""event":"start""#);
    let asked = Instant::now();
    process.signal(signal.0);
    let finished = process.finish();
    let took = asked.elapsed();
    assert_eq!(finished.code, Some(signal.1), "{}", finished.stderr);
    let said = "before training began";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    // A second on a machine with nothing else to do.
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn a_report_says_what_compiling_took_and_what_a_step_will() {
    let Some(plugin) = plugin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let compile = format!(
        "train --strategy tpu --pjrt-plugin {plugin} --compile-only --topology cpu:2 --model mlp"
    );
    let json = format!("{compile} --dump-stablehlo step.mlir --output json");
    let report: Value = serde_json::from_str(&common::succeed(folder.path(), &json)).unwrap();
    assert!(
        report["compile_seconds"].as_f64().unwrap() > 0.0,
        "{report}"
    );
    assert!(
        report["compiler_peak_bytes"].as_i64().unwrap() > 1 << 20,
        "{report}"
    );
    assert!(report["peak_bytes"].as_i64().unwrap() > 0, "{report}");
    assert!(report.get("estimated_seconds").is_some(), "{report}");
    assert!(report.get("estimated_cycles").is_some(), "{report}");
    let program = fs::read_to_string(folder.path().join("step.mlir")).unwrap();
    assert!(program.starts_with("module @step"), "{program}");
    let text = common::run(folder.path(), &compile);
    for part in ["at most at a time:", "compiled in ", "estimate of a step:"] {
        assert!(text.stdout.contains(part), "{}", text.stdout);
    }
    assert!(
        text.stderr.contains("capturing the step for cpu:2\n"),
        "{}",
        text.stderr
    );
    assert!(
        text.stderr.contains("compiling for cpu:2: "),
        "{}",
        text.stderr
    );
    let refused = common::run(
        folder.path(),
        &format!("{compile} --dump-stablehlo no/a.mlir"),
    );
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("no/a.mlir"), "{}", refused.stderr);
}

/// libtpu, or a line that says how to get it.
fn libtpu() -> Option<String> {
    Some(plugins::libtpu()?.display().to_string())
}

/// What is said beside what the compiler works at, which is said as often as it takes long.
fn beside_progress(stderr: &str) -> impl Iterator<Item = &str> {
    let works = ["capturing the step", "compiling for", "still compiling"];
    let is_progress = move |line: &&str| works.iter().any(|begin| line.starts_with(begin));
    stderr.lines().filter(move |line| !is_progress(line))
}

/// A convolution whose feature maps no core of a v5e holds.
const TOO_LARGE: &str = r#"{"class_name": "Sequential", "config": {"layers": [
    {"class_name": "InputLayer", "config": {"batch_input_shape": [null, 8, 8, 1]}},
    {"class_name": "Conv2D", "config": {"filters": 60000, "kernel_size": [3, 3],
        "strides": [1, 1], "padding": "same", "activation": "relu", "use_bias": true}},
    {"class_name": "MaxPooling2D", "config": {"pool_size": [2, 2], "strides": [2, 2],
        "padding": "valid"}},
    {"class_name": "Flatten", "config": {}},
    {"class_name": "Dense", "config": {"units": 10, "activation": "linear", "use_bias": true}}
]}}"#;

#[test]
fn what_no_tpu_holds_or_is_is_said_in_the_words_of_libtpu() {
    let Some(libtpu) = libtpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("large.json"), TOO_LARGE).unwrap();
    let compile = format!("train --strategy tpu --pjrt-plugin {libtpu} --compile-only --topology");
    let mut said = String::new();
    let mut refuse = |arguments: &str| {
        let finished = common::run(folder.path(), &format!("{compile} {arguments}"));
        // What libtpu ends its process with has no type.
        let code = finished.code;
        assert!(
            matches!(code, Some(1 | 2)),
            "{arguments}: {}",
            finished.stderr
        );
        assert_eq!(finished.stdout, "");
        let lines = beside_progress(&finished.stderr);
        let lines: Vec<String> = lines.map(|line| format!("  {line}\n")).collect();
        said += &format!("{arguments}\n{}", lines.concat());
    };
    refuse("v9:2x4");
    refuse("v5e");
    // libtpu ends its process: a v5e has two dimensions.
    refuse("v5e:2x4x7");
    refuse("v5e:0x4");
    refuse("v5e:2x4 --replicas 9");
    refuse("v5e:2x4 --replicas 1 --batch-size 1438 --model large.json");
    insta::assert_snapshot!("libtpu", said);
}

#[rstest]
fn a_job_is_compiled_for_a_tpu_that_is_not_there(
    #[values("v5e:2x4", "v4:2x2x2", "v5p:2x2x2", "v6e:2x4")] topology: &str,
) {
    let Some(libtpu) = libtpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = format!(
        "train --strategy tpu --pjrt-plugin {libtpu} --compile-only --topology {topology} \
         --model mlp"
    );
    let finished = common::run(folder.path(), &run);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    // Nothing of libtpu's own log.
    assert_eq!(beside_progress(&finished.stderr).next(), None);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert!(
        lines[0].starts_with(&format!("{topology} (TPU v")),
        "{}",
        lines[0]
    );
    assert!(lines.contains(&"collectives: 1 all-reduce"), "{lines:?}");
    let fits = lines.iter().any(|line| line.starts_with("fits: "));
    assert!(fits, "{lines:?}");
    let verbose = common::run(folder.path(), &format!("{run} --verbose --output json"));
    let report: Value = serde_json::from_str(&verbose.stdout).unwrap();
    let (seconds, cycles) = (&report["estimated_seconds"], &report["estimated_cycles"]);
    let estimate = format!(
        "the compiler's estimate of a step: {:.1} us, {} cycles in all operations",
        seconds.as_f64().unwrap() * 1e6,
        cycles.as_u64().unwrap()
    );
    assert!(lines.contains(&estimate.as_str()), "{lines:?}, {report}");
    let bytes = |name: &str| report[name].as_u64().unwrap();
    assert!(bytes("alias_bytes") >= bytes("donated_bytes"), "{report}");
}
