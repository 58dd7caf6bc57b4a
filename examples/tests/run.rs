//! Runs every example and checks what it prints.

#[path = "../../distribute-tpu-xla/tests/tpu_xla/plugins.rs"]
#[expect(dead_code, reason = "shared with tests that use all of it")]
mod plugins;

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use distribute_launch::ReservedPorts;
use plugins::cpu_plugin;

/// No example with compiled steps comes close to it, even on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(240);

/// The standard output of an example that must succeed.
fn output(path: &str) -> String {
    let output = Command::new(path).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path} failed: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn last_number(text: &str) -> f64 {
    text.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn custom_loop_learns_the_digits() {
    let text = output(env!("CARGO_BIN_EXE_custom_loop"));
    assert!(text.starts_with("Number of devices: 2\n"), "{text}");
    assert!(last_number(&text) >= 0.9, "{text}");
}

#[test]
fn fit_learns_the_digits() {
    let text = output(env!("CARGO_BIN_EXE_fit"));
    assert!(text.contains("trained for "), "{text}");
    assert!(text.contains("predicted [359, 1] labels"), "{text}");
}

/// The program that `distribute-cli new` writes. A second run finds that everything is done.
#[test]
fn the_template_trains_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let mut program = Command::new(env!("CARGO_BIN_EXE_digits"));
        let output = program.current_dir(folder.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = run();
    assert!(first.contains("val_accuracy: 0.9"), "{first}");
    let second = run();
    assert!(second.contains("all epochs are done"), "{second}");
}

#[test]
fn library_code_sees_the_strategy() {
    let text = output(env!("CARGO_BIN_EXE_library_code"));
    let expected = "default: 0.1\nmirrored: 0.4\nin a step: [0.4, 0.4, 0.4, 0.4]\ndefault again\n";
    assert_eq!(text, expected);
}

#[test]
fn one_device_finds_the_slope() {
    let text = output(env!("CARGO_BIN_EXE_one_device"));
    assert!(text.starts_with("one-device with 1 replica\n"), "{text}");
    assert!((last_number(&text) - 3.0).abs() < 0.02, "{text}");
}

#[test]
fn own_strategy_trains_as_mirrored() {
    let text = output(env!("CARGO_BIN_EXE_own_strategy"));
    assert!(text.starts_with("timed: weight "), "{text}");
    assert!(
        text.ends_with("3 runs were timed\nsame weight: true\n"),
        "{text}"
    );
}

#[test]
fn central_storage_gives_the_weights_of_mirrored() {
    let text = output(env!("CARGO_BIN_EXE_central_storage"));
    assert!(text.ends_with("same weight: true\n"), "{text}");
}

#[test]
fn own_cross_device_ops_sum() {
    let text = output(env!("CARGO_BIN_EXE_own_cross_device_ops"));
    let expected = "cross-device ops: running-sum\n\
                    [(111.0, 37.0), (111.0, 37.0), (111.0, 37.0)]\n";
    assert_eq!(text, expected);
}

#[test]
fn iterators_resume_in_the_middle() {
    let text = output(env!("CARGO_BIN_EXE_iterators"));
    assert!(text.contains("same batch: true"), "{text}");
    assert!(text.ends_with("steps left in the epoch: 12\n"), "{text}");
}

/// The numbers of a line, without what stands around them.
fn numbers(line: &str) -> Vec<f64> {
    let words = line.split(|letter: char| !(letter.is_ascii_digit() || ".-".contains(letter)));
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn gan_finds_the_center_of_the_data_and_goes_on_after_a_restart() {
    let text = output(env!("CARGO_BIN_EXE_gan"));
    let centers: Vec<_> = text
        .lines()
        .filter(|line| line.contains("center"))
        .collect();
    let distance = |line: &str| {
        let center = &numbers(line.split_once("center ").unwrap().1)[..2];
        (center[0] - 2.0).hypot(center[1] + 1.0)
    };
    assert!(distance(centers[0]) > 1.0, "{text}");
    assert!(distance(centers[centers.len() - 1]) < 0.3, "{text}");
    assert!(
        text.ends_with("same weights after a restart: true\n"),
        "{text}"
    );
}

#[test]
fn actor_critic_learns_the_shortest_way() {
    let text = output(env!("CARGO_BIN_EXE_actor_critic"));
    let lengths: Vec<f64> = text.lines().map(last_number).collect();
    assert!(lengths[0] > 10.0, "{text}");
    assert!(lengths[lengths.len() - 1] < 6.0, "{text}");
}

#[test]
fn distillation_teaches_the_student_without_a_label() {
    let text = output(env!("CARGO_BIN_EXE_distillation"));
    let accuracies: Vec<f64> = text
        .lines()
        .filter(|line| line.contains("accuracy"))
        .map(last_number)
        .collect();
    let [teacher, before, student] = accuracies[..] else {
        panic!("{text}");
    };
    assert!(teacher > 0.9 && before < 0.3 && student > 0.85, "{text}");
    assert!(text.contains("teacher unchanged: true\n"), "{text}");
}

#[test]
fn mean_teacher_follows_the_student() {
    let text = output(env!("CARGO_BIN_EXE_mean_teacher"));
    let lines: Vec<Vec<f64>> = text.lines().map(numbers).collect();
    let (first, last) = (&lines[0], &lines[lines.len() - 1]);
    assert!(first[1] < 0.3 && first[2] < 0.3, "{text}");
    assert!(last[1] > 0.8 && last[2] > 0.8, "{text}");
}

/// An example as one task of a cluster.
fn start_task(program: &[&str], cluster: &str, task: &str) -> Child {
    let config = format!(r#"{{"cluster": {cluster}, "task": {task}}}"#);
    Command::new(program[0])
        .args(&program[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("TF_CONFIG", config)
        .env_remove("DISTRIBUTE_JOB_TOKEN")
        .spawn()
        .unwrap()
}

/// Waits for the end of a process that writes little; kills it if it takes too long.
fn end(mut child: Child) -> Output {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            child.kill().unwrap();
        }
        // Asking less often, not waiting for something to be over.
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Runs an example as a chief, some parameter servers and two workers; what the chief printed.
/// The others print nothing, and all of them succeed.
fn output_of_chief(program: &[&str], servers: usize) -> String {
    let ports = ReservedPorts::new(servers + 3, Ipv4Addr::LOCALHOST.into()).unwrap();
    let addresses: Vec<String> = ports.addresses().iter().map(|at| at.to_string()).collect();
    let (servers_at, others) = addresses.split_at(servers);
    let (workers, chief) = others.split_at(2);
    let cluster = format!(r#"{{"chief": {chief:?}, "ps": {servers_at:?}, "worker": {workers:?}}}"#);
    let mut tasks: Vec<(&str, usize)> = (0..servers).map(|index| ("ps", index)).collect();
    tasks.extend([("worker", 0), ("worker", 1), ("chief", 0)]);
    let start = |(role, index): (&'static str, usize)| {
        let task = format!(r#"{{"type": "{role}", "index": {index}}}"#);
        (role, start_task(program, &cluster, &task))
    };
    let running: Vec<_> = tasks.into_iter().map(start).collect();
    let mut printed = String::new();
    for (role, task) in running {
        let output = end(task);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{role}: {errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        if role == "chief" {
            printed = text;
        } else {
            assert_eq!(text, "", "{role}");
        }
    }
    printed
}

#[test]
fn parameter_server_finds_the_weights_with_two_workers() {
    let text = output_of_chief(&[env!("CARGO_BIN_EXE_parameter_server")], 1);
    let of_epoch = text.lines().find(|line| line.starts_with("epoch 5: "));
    assert!(last_number(of_epoch.unwrap()) < 0.001, "{text}");
}

#[test]
fn embedding_learns_with_few_of_its_rows_on_their_way() {
    let text = output_of_chief(&[env!("CARGO_BIN_EXE_embedding")], 2);
    let epochs: Vec<&str> = text.lines().collect();
    assert_eq!(epochs.len(), 6, "{text}");
    let losses: Vec<f64> = epochs.iter().map(|line| last_number(line)).collect();
    assert!(losses[5] < losses[0] / 4.0, "{text}");
    for line in epochs {
        let mut words = line.split_whitespace().skip(2);
        let rows: u64 = words.next().unwrap().parse().unwrap();
        // A user and a film for each of 256 examples, some of them twice.
        assert!((200..512).contains(&rows), "{line}");
        assert!(line.contains(" of 25000 rows "), "{line}");
    }
}

#[test]
fn tracking_loss_prints_the_documented_numbers() {
    let text = output(env!("CARGO_BIN_EXE_tracking_loss"));
    assert_eq!(
        text,
        "PerReplica:{0: 1.25, 1: 2.25}\nSUM: 3.5\nMean metric: 1.75\n"
    );
}

/// Runs an example with this plugin and two devices; ends it if it takes too long.
fn run_with_plugin(path: &str, plugin: PathBuf) -> Output {
    run_arguments_with_plugin(&[path], plugin)
}

fn run_arguments_with_plugin(program: &[&str], plugin: PathBuf) -> Output {
    let mut child = Command::new(program[0])
        .args(&program[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("PJRT_PLUGIN_LIBRARY_PATH", plugin)
        .env("PJRT_CPU_DEVICE_COUNT", "2")
        .env_remove("COLAB_TPU_ADDR")
        .env_remove("TPU_NAME")
        .spawn()
        .unwrap();
    let (ended, end) = mpsc::channel();
    let pipes: [Box<dyn Read + Send>; 2] = [
        Box::new(child.stdout.take().unwrap()),
        Box::new(child.stderr.take().unwrap()),
    ];
    let readers = pipes.map(|mut pipe| {
        let ended = ended.clone();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).unwrap();
            ended.send(()).unwrap();
            bytes
        })
    });
    if (0..2).any(|_| end.recv_timeout(LIMIT).is_err()) {
        child.kill().unwrap();
    }
    let [stdout, stderr] = readers.map(|reader| reader.join().unwrap());
    Output {
        status: child.wait().unwrap(),
        stdout,
        stderr,
    }
}

/// The standard output of an example that must succeed with the CPU plugin, if there is one.
fn output_with_plugin(path: &str) -> Option<String> {
    let output = run_with_plugin(path, cpu_plugin()?);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path} failed: {errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn tpu_learns_the_digits() {
    let Some(text) = output_with_plugin(env!("CARGO_BIN_EXE_tpu")) else {
        return;
    };
    assert!(text.contains("Running on TPU [\"local\"]\n"), "{text}");
    assert!(text.contains("Number of accelerators: 2\n"), "{text}");
    let epoch = text.lines().find(|line| line.starts_with("epoch 4: "));
    assert!(last_number(epoch.unwrap()) >= 0.85, "{text}");
    // One for training, one for testing: no batch had another size.
    assert!(text.ends_with("programs: 2\n"), "{text}");
}

#[test]
fn tpu_without_a_plugin_is_one_line_and_no_fallback() {
    let output = run_with_plugin(env!("CARGO_BIN_EXE_tpu"), "/nowhere/plugin.so".into());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(output.stdout.is_empty());
    assert!(errors.starts_with("TPU failed to initialize: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// The loss of an epoch of the transformer under a strategy.
fn loss(text: &str, strategy: &str, epoch: usize) -> f64 {
    let start = format!("{strategy} epoch {epoch}: ");
    let line = text.lines().find(|line| line.starts_with(&start));
    last_number(line.unwrap_or_else(|| panic!("no `{start}` in {text}")))
}

#[test]
fn transformer_learns_to_add_without_a_plugin() {
    let path = env!("CARGO_BIN_EXE_transformer");
    let output = run_with_plugin(path, "/nowhere/plugin.so".into());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("not under TpuStrategy: TPU failed to initialize: "),
        "{text}"
    );
    assert!(
        loss(&text, "mirrored", 3) < 0.3 * loss(&text, "mirrored", 0),
        "{text}"
    );
}

#[test]
fn transformer_learns_the_same_when_it_is_compiled() {
    let Some(text) = output_with_plugin(env!("CARGO_BIN_EXE_transformer")) else {
        return;
    };
    for epoch in 0..4 {
        let (cpu, tpu) = (loss(&text, "mirrored", epoch), loss(&text, "tpu", epoch));
        assert!((cpu - tpu).abs() <= 0.005, "{text}");
    }
    assert!(
        loss(&text, "tpu", 3) < 0.3 * loss(&text, "tpu", 0),
        "{text}"
    );
}

/// What an example prints under each strategy that its option `--strategy` names, two replicas or
/// workers in all but the first; the last is missing where there is no plugin.
fn outputs_under_strategies(program: &[&str]) -> Vec<String> {
    let with = |more: &[&'static str]| [program, more].concat();
    let succeeded = |output: Output| {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let ports = ReservedPorts::new(2, Ipv4Addr::LOCALHOST.into()).unwrap();
    let addresses: Vec<String> = ports.addresses().iter().map(|at| at.to_string()).collect();
    let workers = [0, 1].map(|index| {
        let cluster = format!(r#"{{"worker": {addresses:?}}}"#);
        let task = format!(r#"{{"type": "worker", "index": {index}}}"#);
        let arguments = with(&["--strategy", "multi-worker", "--replicas", "1"]);
        start_task(&arguments, &cluster, &task)
    });
    let [chief, _] = workers.map(|worker| succeeded(end(worker)));
    let mut outputs: Vec<String> = ["one-device", "mirrored"]
        .map(|strategy| {
            let arguments = with(&["--strategy", strategy]);
            let mut command = Command::new(arguments[0]);
            succeeded(command.args(&arguments[1..]).output().unwrap())
        })
        .into();
    outputs.push(chief);
    if let Some(plugin) = cpu_plugin() {
        let arguments = with(&["--strategy", "tpu"]);
        outputs.push(succeeded(run_arguments_with_plugin(&arguments, plugin)));
    }
    outputs
}

/// The number behind `name` in each of the outputs: all are near the first.
#[track_caller]
fn same_number(outputs: &[String], name: &str) -> f64 {
    let number = |text: &String| -> f64 {
        let (_, behind) = text
            .rsplit_once(name)
            .unwrap_or_else(|| panic!("no {name}: {text}"));
        let word = behind.split([' ', ',', '\n']).next().unwrap();
        word.parse().unwrap()
    };
    let numbers: Vec<f64> = outputs.iter().map(number).collect();
    let is_near = |other: &f64| (other - numbers[0]).abs() <= 2e-3;
    assert!(numbers.iter().all(is_near), "{name}: {numbers:?}");
    numbers[0]
}

#[test]
fn a_resnet_trains_the_same_under_every_strategy() {
    let program = env!("CARGO_BIN_EXE_resnet");
    let outputs = outputs_under_strategies(&[program, "--steps", "4", "--batch", "30"]);
    assert!(same_number(&outputs, " loss: ") < 2.6);
    assert!(same_number(&outputs, "val_loss: ") > 0.1);
    assert!(
        outputs.iter().all(|text| text.contains("val_accuracy: ")),
        "{outputs:?}"
    );
}

#[test]
fn a_gpt_trains_the_same_under_every_strategy() {
    let program = [env!("CARGO_BIN_EXE_gpt"), "--steps", "20", "--batch", "8"];
    let small = [
        "--width", "32", "--layers", "1", "--length", "16", "--write", "20",
    ];
    let outputs = outputs_under_strategies(&[&program[..], &small[..]].concat());
    let (first, last) = (
        same_number(&outputs, "step 10: loss "),
        same_number(&outputs, "step 20: loss "),
    );
    assert!(last < first, "{outputs:?}");
    same_number(&outputs, "test loss ");
    assert!(
        outputs.iter().all(|text| text.contains("\nAlice ")),
        "{outputs:?}"
    );
}

#[test]
fn a_recommender_trains_the_same_under_every_strategy() {
    let program = env!("CARGO_BIN_EXE_recommender");
    let few = ["--epochs", "2", "--steps-per-epoch", "40"];
    let outputs = outputs_under_strategies(&[&[program][..], &few[..]].concat());
    assert!(same_number(&outputs, "loss ") < 0.7, "{outputs:?}");
    assert!(same_number(&outputs, "accuracy ") > 0.5, "{outputs:?}");
}

#[test]
fn a_recommender_learns_with_its_tables_on_servers() {
    let program = env!("CARGO_BIN_EXE_recommender");
    let text = output_of_chief(&[program, "--on-servers", "--epochs", "4"], 2);
    let epochs: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(epochs.len(), 4, "{text}");
    assert!(
        last_number(&epochs[3]) < 0.8 * last_number(&epochs[0]),
        "{text}"
    );
    assert!(same_number(&epochs[3..], "accuracy ") > 0.7, "{text}");
}

/// What a user sees of an error that `main` returns: its message with its causes, no fields.
#[test]
fn an_error_that_main_returns_prints_its_message() {
    let program = Command::new(env!("CARGO_BIN_EXE_parameter_server"))
        .env("TF_CONFIG", "{")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(program.status.code(), Some(1));
    let text = String::from_utf8(program.stderr).unwrap();
    assert_eq!(
        text,
        "Error: TF_CONFIG is not valid JSON: EOF while parsing an object at line 1 column 1\n"
    );
}
