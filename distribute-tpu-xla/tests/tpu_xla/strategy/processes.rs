//! A system of several processes, as on a slice of several machines: XLA's CPU client in each, with
//! collectives over sockets.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use distribute_core::checkpoint::Checkpoint;
use distribute_core::collectives::contract;
use distribute_core::metric::Mean;
use distribute_core::{
    Adam, Error, LossScale, PerReplica, ReduceOp, Result, Strategy, StrategyExt, SyncBatchNorm,
    SyncBatchNormConfig, TensorData, TrainState,
};
use distribute_data::{
    Batching, Digits, StrategyDataExt, average_loss, sparse_categorical_crossentropy,
};
use distribute_fit::callbacks::ModelCheckpoint;
use distribute_fit::{Callback, Control, Fit, Objective};
use distribute_tpu_xla::{TpuClusterResolver, TpuError, TpuStrategy, TpuSystem};

use crate::strategy::models::{Mlp, mlp_step, with_fixed_weights};
use crate::strategy::support::{Data, assert_close, plugin, system, within};

/// Set in the processes that a test starts.
const PROCESS: &str = "DISTRIBUTE_TEST_PROCESS";
const COORDINATOR: &str = "DISTRIBUTE_TEST_COORDINATOR";
const REPLICAS: &str = "DISTRIBUTE_TEST_REPLICAS";
const FOLDER: &str = "DISTRIBUTE_TEST_FOLDER";

const PROCESSES: usize = 2;
const STEPS: usize = 24;

/// One of the processes of a test.
struct Process {
    id: usize,
    system: TpuSystem,
    strategy: TpuStrategy,
    folder: PathBuf,
}

/// What this process is, if a test has started it.
fn this_process() -> Option<Process> {
    let variable = |name| env::var(name).ok();
    let id: usize = variable(PROCESS)?.parse().unwrap();
    let replicas: i64 = variable(REPLICAS)?.parse().unwrap();
    let coordinator = variable(COORDINATOR)?;
    let nothing = BTreeMap::<String, String>::new();
    let resolver = TpuClusterResolver::resolve_in("local", &nothing).unwrap();
    let resolver = resolver
        .processes(id, PROCESSES, Some(&coordinator))
        .unwrap();
    let connection = resolver.connect_with(plugin().as_deref()).unwrap();
    let options = [
        ("cpu_device_count", replicas.into()),
        ("initialization_timeout_seconds", 60_i64.into()),
    ];
    let system: TpuSystem = connection.initialize_with(&options).unwrap();
    assert_eq!((system.process_id(), system.num_processes()), (id, 2));
    let builder = TpuStrategy::builder(&system).timeout(Duration::from_secs(60));
    Some(Process {
        id,
        strategy: builder.build().unwrap(),
        system,
        folder: PathBuf::from(variable(FOLDER)?),
    })
}

/// Starts a test of this file in several processes, each with this many replicas.
fn start(test: &str, replicas: usize, folder: &Path) -> Vec<Child> {
    // The port is free again when the listener is dropped.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let coordinator = listener.local_addr().unwrap().to_string();
    drop(listener);
    let start = |id: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            &format!("strategy::processes::{test}"),
            "--nocapture",
        ]);
        command
            .env(PROCESS, id.to_string())
            .env(COORDINATOR, &coordinator)
            .env(REPLICAS, replicas.to_string())
            .env(FOLDER, folder);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    (0..PROCESSES).map(start).collect()
}

/// Runs `body` in several processes, each with this many replicas; all must succeed. Returns the
/// folder in which they left files, to the process that has started them.
fn in_processes(
    test: &str,
    replicas: usize,
    body: impl FnOnce(Process),
) -> Option<tempfile::TempDir> {
    plugin()?;
    if env::var_os(PROCESS).is_some() {
        within(150, || body(this_process().unwrap()));
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let children = start(test, replicas, folder.path());
    let outputs: Vec<Output> = children
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect();
    for output in &outputs {
        assert!(output.status.success(), "{}", text_of(output));
    }
    Some(folder)
}

fn text_of(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    (String::from_utf8_lossy(out) + String::from_utf8_lossy(err)).into_owned()
}

/// A state's tensors as text, bit by bit.
fn dump(tensors: &BTreeMap<String, TensorData>) -> String {
    let lines = tensors.iter().map(|(name, data)| {
        let bits: Vec<String> = data
            .iter::<f32>()
            .map(|v| v.to_bits().to_string())
            .collect();
        let shape: Vec<String> = data.shape().iter().map(ToString::to_string).collect();
        format!("{name} {} {}", shape.join(","), bits.join(","))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn load(text: &str) -> BTreeMap<String, TensorData> {
    let tensor = |line: &str| {
        let (rest, bits) = line.rsplit_once(' ').unwrap();
        let (name, shape) = rest.rsplit_once(' ').unwrap();
        let numbers = |list: &str| -> Vec<u32> {
            let list = list.split(',').filter(|number| !number.is_empty());
            list.map(|number| number.parse().unwrap()).collect()
        };
        let values: Vec<f32> = numbers(bits).into_iter().map(f32::from_bits).collect();
        let shape: Vec<usize> = numbers(shape).into_iter().map(|n| n as usize).collect();
        (name.to_string(), TensorData::new(values, shape))
    };
    text.lines().map(tensor).collect()
}

/// The parts of one process of the batches of all replicas.
fn share(batch: PerReplica<(Tensor<2>, Tensor<1, Int>)>, id: usize, count: usize) -> Parts {
    let parts = batch.into_values().into_iter().skip(id * count);
    PerReplica::new(parts.take(count).collect())
}

type Parts = PerReplica<(Tensor<2>, Tensor<1, Int>)>;

/// Trains in one of the processes and leaves the tensors behind.
fn train(process: Process) -> Result<()> {
    let tpu = process.strategy;
    let local = tpu.replicas().len();
    let all = PROCESSES * local;
    assert_eq!(tpu.num_replicas_in_sync(), all);
    assert_eq!(tpu.is_chief(), process.id == 0);
    let ids: Vec<usize> = tpu.replicas().iter().map(|replica| replica.id).collect();
    let first = process.id * local;
    assert_eq!(ids, (first..first + local).collect::<Vec<_>>());
    // The same weights in each process; in `scaled` they have their own, and the chief's count.
    let mut state = tpu.scope(|device| {
        let weights = Mlp::new(device);
        TrainState::new(weights, Adam::new(1e-3))
    })?;
    let write = |name: &str, text: String| {
        fs::write(process.folder.join(format!("{name}-{}", process.id)), text).unwrap();
    };
    write("initial", dump(&state.primary()?.to_tensors()?));
    let mut data = Data::new(7, all, &[12], 5);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let batch = share(data.batch::<2>(4), process.id, local);
        let loss = tpu.run((&mut state, batch), mlp_step(4 * all))?;
        assert_eq!(loss.values().len(), local);
        let loss: f32 = tpu.reduce(ReduceOp::Sum, loss)?.into_scalar();
        losses.push(loss.to_bits().to_string());
    }
    write("losses", losses.join(" "));
    write("trained", dump(&state.primary()?.to_tensors()?));
    assert_eq!(tpu.statistics().programs, 1);
    // Outside of a step: over all replicas of all processes.
    let numbers = || tpu.values_from(|id| id as f64 + 1.0);
    let expected: f64 = (1..=all).map(|number| number as f64).sum();
    assert_eq!(tpu.reduce(ReduceOp::Sum, numbers())?, expected);
    let mine: Vec<f64> = ids.iter().map(|id| *id as f64 + 1.0).collect();
    assert_eq!(tpu.local_results(numbers()), mine);
    let mean = Mean::new(&tpu);
    mean.update_all(numbers())?;
    assert_eq!(mean.result()?, expected / all as f64);
    Ok(())
}

fn equals_one_process(test: &str, replicas: usize) {
    let folder = in_processes(test, replicas, |process| train(process).unwrap());
    let Some(folder) = folder else { return };
    let read = |name: &str, id: usize| {
        fs::read_to_string(folder.path().join(format!("{name}-{id}"))).unwrap()
    };
    for name in ["initial", "losses", "trained"] {
        assert!(read(name, 0) == read(name, 1), "{name} differs in its bits");
    }
    within(150, || {
        let all = PROCESSES * replicas;
        let tpu = TpuStrategy::new(&system(all).unwrap()).unwrap();
        let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
        let mut state = tpu.scope(build).unwrap();
        let initial = load(&read("initial", 0));
        state
            .update(|state| state.load_tensors(&initial, 0))
            .unwrap();
        let mut data = Data::new(7, all, &[12], 5);
        for _ in 0..STEPS {
            let batch = data.batch::<2>(4);
            tpu.run((&mut state, batch), mlp_step(4 * all)).unwrap();
        }
        let trained = state.primary().unwrap().to_tensors().unwrap();
        assert_close(&load(&read("trained", 0)), &trained, 1e-5);
        assert_ne!(load(&read("trained", 0)), initial);
    });
}

#[test]
fn two_processes_with_one_replica_train_as_one_process() {
    equals_one_process("two_processes_with_one_replica_train_as_one_process", 1);
}

#[test]
fn two_processes_with_two_replicas_train_as_one_process() {
    equals_one_process("two_processes_with_two_replicas_train_as_one_process", 2);
}

#[test]
fn a_process_reads_its_own_shard() {
    let test = "a_process_reads_its_own_shard";
    let folder = in_processes(test, 1, |process| {
        let context = process.strategy.input_context();
        assert_eq!(context.num_input_pipelines, PROCESSES);
        assert_eq!(context.input_pipeline_id, process.id);
        assert_eq!(context.num_replicas_in_sync, PROCESSES);
        let digits = Digits::open().unwrap().test().unwrap();
        let batching = Batching::global(32).drop_remainder(true);
        let data = process.strategy.distribute_dataset(digits, batching);
        let mut rows = Vec::new();
        for batch in data.unwrap().epoch(0) {
            for (images, _) in batch.unwrap().into_values() {
                let images: Tensor<4> = images;
                assert_eq!(images.dims()[0], 16);
                let images = images.into_data().try_to_vec::<f32>().unwrap();
                rows.extend(images.chunks(64).map(|image| format!("{image:?}")));
            }
        }
        let file = process.folder.join(process.id.to_string());
        fs::write(file, rows.join("\n")).unwrap();
    });
    let Some(folder) = folder else { return };
    let read = |id: usize| fs::read_to_string(folder.path().join(id.to_string())).unwrap();
    let (first, second) = (read(0), read(1));
    assert_eq!(first.lines().count(), second.lines().count());
    assert!(first.lines().count() >= 160);
    let shared = first.lines().filter(|row| second.contains(*row)).count();
    assert!(shared <= 2, "{shared} images are in both shards");
}

#[test]
fn a_killed_process_is_an_error_of_the_other() {
    let test = "a_killed_process_is_an_error_of_the_other";
    let Some(_) = plugin() else { return };
    if env::var_os(PROCESS).is_some() {
        let Process { id, strategy, .. } = this_process().unwrap();
        return within(100, || {
            let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
            let mut state = strategy.scope(build).unwrap();
            let mut data = Data::new(7, PROCESSES, &[12], 5);
            let mut steps = 0;
            let error = loop {
                let batch = share(data.batch::<2>(4), id, 1);
                if let Err(error) = strategy.run((&mut state, batch), mlp_step(8)) {
                    break error;
                }
                steps += 1;
                if id == 1 && steps == 5 {
                    std::process::abort();
                }
            };
            assert!(matches!(TpuError::of(&error), Some(TpuError::Pjrt(_))));
            assert!(error.to_string().contains("was lost"), "{error}");
            // The state may be half a step ahead; the group has ended.
            let error = strategy.reduce(ReduceOp::Sum, PerReplica::new(vec![1.0_f32]));
            assert!(matches!(error, Err(Error::Collective(_))), "{error:?}");
            println!("ended after {steps} steps");
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let children = start(test, 1, folder.path());
    let mut outputs = children.into_iter();
    let mut output = || outputs.next().unwrap().wait_with_output().unwrap();
    let (survivor, killed) = (output(), output());
    assert!(!killed.status.success());
    let text = text_of(&survivor);
    assert!(survivor.status.success(), "{text}");
    assert!(text.contains("ended after 5 steps"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_process_with_other_shapes_is_an_error_of_all() {
    let test = "a_process_with_other_shapes_is_an_error_of_all";
    in_processes(test, 1, |Process { id, strategy, .. }| {
        let part = Tensor::<1>::ones([3 + id], &Device::flex());
        let outcome = strategy.run(PerReplica::new(vec![part]), |ctx, x| {
            ctx.all_reduce(ReduceOp::Sum, x.sum())
        });
        let error = outcome.unwrap_err();
        let expected = matches!(
            TpuError::of(&error),
            Some(TpuError::DifferentPrograms { process: 1, .. })
        );
        assert!(expected, "{error}");
    });
}

#[test]
fn processes_that_disagree_get_an_error_and_never_a_number() {
    let test = "processes_that_disagree_get_an_error_and_never_a_number";
    in_processes(test, 1, |Process { system, .. }| {
        for case in contract::cases() {
            let group = system.communicator(Duration::from_secs(60));
            case.check(&mut *group.unwrap()).unwrap();
        }
    });
}

/// A matrix over all replicas: its sum, twice its sum, or the largest.
fn reduced(strategy: &TpuStrategy, step: &str, shape: [usize; 2]) -> Result<Vec<f32>> {
    let part = Tensor::<2>::ones(shape, &Device::flex()) * (strategy.replicas()[0].id + 1) as f32;
    let part = PerReplica::new(vec![part]);
    let reduced = match step {
        "sum" => strategy.run(part, |ctx, x| ctx.all_reduce(ReduceOp::Sum, x)),
        "doubled" => strategy.run(part, |ctx, x| Ok(ctx.all_reduce(ReduceOp::Sum, x)? * 2.0)),
        _ => strategy.run(part, |ctx, x| ctx.all_reduce(ReduceOp::Max, x)),
    };
    let values: Tensor<2> = reduced?.into_values().remove(0);
    let data = values.try_into_data().map_err(Error::step)?;
    Ok(data.try_to_vec().unwrap())
}

fn assert_other_programs(outcome: Result<Vec<f32>>, what: &str) {
    let error = outcome.unwrap_err();
    let found = matches!(
        TpuError::of(error.root_cause()),
        Some(TpuError::DifferentPrograms { process: 1, .. })
    );
    assert!(found && error.to_string().contains(what), "{error}");
}

#[test]
fn processes_that_compile_other_steps_are_told_the_first_difference() {
    let test = "processes_that_compile_other_steps_are_told_the_first_difference";
    in_processes(test, 1, |Process { id, system, .. }| {
        // The group of a strategy ends with the first difference.
        let other = |steps: [&str; 2], shapes: [[usize; 2]; 2], what: &str| {
            let strategy = TpuStrategy::new(&system).unwrap();
            assert_other_programs(reduced(&strategy, steps[id], shapes[id]), what);
        };
        let sum = "in operation 0 (all_reduce) the op is sum on one and max on the other";
        other(["sum", "max"], [[4, 8]; 2], sum);
        let shape = "in operation 0 (all_reduce) the tensors are f32[4, 8] on one and f32[8, 4]";
        other(["sum", "sum"], [[4, 8], [8, 4]], shape);
        let alone = "what the replicas compute by themselves differs";
        other(["sum", "doubled"], [[4, 8]; 2], alone);
        let strategy = TpuStrategy::new(&system).unwrap();
        assert_eq!(reduced(&strategy, "sum", [4, 8]).unwrap(), [3.0; 32]);
    });
}

#[test]
fn processes_that_run_other_steps_get_an_error_and_never_a_number() {
    let test = "processes_that_run_other_steps_get_an_error_and_never_a_number";
    in_processes(test, 1, |process| {
        let (id, strategy) = (process.id, process.strategy);
        for (step, value) in [("sum", 3.0), ("doubled", 6.0)] {
            assert_eq!(reduced(&strategy, step, [4, 8]).unwrap(), [value; 32]);
        }
        // Both steps are compiled, and now each process runs another one.
        let another = "it runs another one of the compiled steps";
        assert_other_programs(reduced(&strategy, ["sum", "doubled"][id], [4, 8]), another);
        assert_other_programs(reduced(&strategy, "sum", [4, 8]), another);
        // The plugin of these tests finds by itself that the operations between replicas differ.
        let strategy = TpuStrategy::new(&process.system).unwrap();
        for step in ["sum", "max"] {
            reduced(&strategy, step, [4, 8]).unwrap();
        }
        let error = reduced(&strategy, ["sum", "max"][id], [4, 8]).unwrap_err();
        assert!(TpuError::of(&error).is_some(), "{error:?}");
    });
}

#[test]
fn a_process_that_compiles_while_the_other_runs_is_an_error_of_both() {
    let test = "a_process_that_compiles_while_the_other_runs_is_an_error_of_both";
    in_processes(test, 1, |Process { id, strategy, .. }| {
        reduced(&strategy, "sum", [4, 8]).unwrap();
        let error = reduced(&strategy, "sum", [[4, 8], [2, 8]][id]).unwrap_err();
        assert!(TpuError::of(error.root_cause()).is_some(), "{error:?}");
    });
}

#[test]
fn a_process_that_cannot_build_its_state_tells_the_other() {
    let test = "a_process_that_cannot_build_its_state_tells_the_other";
    in_processes(test, 1, |Process { id, strategy, .. }| {
        let outcome = strategy.try_scope(|device| match id {
            0 => Ok(Mlp::new(device)),
            _ => Err(Error::invalid("the weights are not there")),
        });
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("the weights are not there"), "{error}");
        assert!(id == 1 || error.contains("rank 1 aborted"), "{error}");
    });
}

/// Synchronized statistics before a layer.
#[derive(Module, Debug)]
struct Normalized {
    norm: SyncBatchNorm,
    output: Linear,
}

/// Seven steps with a dynamic loss scale, of which two overflow on the last replica of all; after
/// each the scale, the good and the skipped steps and the updates, and all tensors.
fn scaled(
    tpu: &TpuStrategy,
    initial: Option<&BTreeMap<String, TensorData>>,
) -> Result<Vec<(String, BTreeMap<String, TensorData>)>> {
    let all = tpu.num_replicas_in_sync();
    let mut state = tpu.try_scope(|device| {
        let norm = SyncBatchNormConfig::new(3).init(device)?;
        let output = LinearConfig::new(3, 1).init(device);
        let scale = LossScale::dynamic().initial(1024.0)?.growth_steps(2)?;
        let mut model = Normalized { norm, output };
        // The other processes keep weights of their own: the chief's count.
        if tpu.is_chief() {
            model = with_fixed_weights(model);
        }
        Ok(TrainState::new(model, Adam::new(0.01)).with_loss_scale(scale))
    })?;
    if let Some(initial) = initial {
        state.update(|state| state.load_tensors(initial, 0))?;
    }
    let mut found = vec![("start".to_string(), state.primary()?.to_tensors()?)];
    for number in 0..7 {
        let parts = tpu.replicas().iter().map(|replica| {
            let value = |i: usize| ((i * 7 + replica.id * 31 + number * 13) as f32 * 0.37).sin();
            let rows: Vec<f32> = (0..12).map(value).collect();
            let overflows = [2, 3].contains(&number) && replica.id + 1 == all;
            let device = Device::flex().autodiff();
            let size: f32 = if overflows { 1e37 } else { 1.0 };
            let size = Tensor::<1>::from_data([size], &device);
            (
                Tensor::<2>::from_data(TensorData::new(rows, [4, 3]), &device),
                size,
            )
        });
        let parts = PerReplica::new(parts.collect());
        tpu.run((&mut state, parts), |ctx, (state, (x, size))| {
            let x = state.model.norm.forward(x);
            let loss = state.model.output.forward(x).powi_scalar(2).mean() * size;
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        })?;
        let tensors = state.primary()?.to_tensors()?;
        let host = state.host_metadata();
        let scale = host.loss_scale();
        let (good, skipped) = (scale.good_steps(), scale.skipped_steps());
        let numbers = format!("{} {good} {skipped} {}", scale.scale(), host.step());
        found.push((numbers, tensors));
    }
    assert_eq!(tpu.statistics().programs, 1);
    Ok(found)
}

#[test]
fn all_processes_skip_the_same_updates() {
    let test = "all_processes_skip_the_same_updates";
    let folder = in_processes(test, 1, |process| {
        let found = scaled(&process.strategy, None).unwrap();
        for (step, (numbers, tensors)) in found.iter().enumerate() {
            let file = process.folder.join(format!("{step}-{}", process.id));
            fs::write(file, format!("{numbers}\n{}", dump(tensors))).unwrap();
        }
    });
    let Some(folder) = folder else { return };
    let read = |step: usize, id: usize| {
        let text = fs::read_to_string(folder.path().join(format!("{step}-{id}"))).unwrap();
        let (numbers, tensors) = text.split_once('\n').unwrap();
        (numbers.to_string(), load(tensors))
    };
    let skipped: Vec<String> = (1..8).map(|step| read(step, 0).0).collect();
    let wanted = [
        "1024 1 0 1",
        "2048 0 0 2",
        "1024 0 1 2",
        "512 0 2 2",
        "512 1 2 3",
        "1024 0 2 4",
        "1024 1 2 5",
    ];
    assert_eq!(skipped, wanted);
    within(150, || {
        let tpu = TpuStrategy::new(&system(2).unwrap()).unwrap();
        let alone = scaled(&tpu, Some(&read(0, 0).1)).unwrap();
        for (step, (numbers, tensors)) in alone.iter().enumerate() {
            let (found, other) = (read(step, 0), read(step, 1));
            assert_eq!(found, other, "step {step}");
            assert_eq!(found.0, *numbers, "step {step}");
            assert_close(&found.1, tensors, 1e-5);
        }
        for skipped in [3, 4] {
            let of_model = |step: usize| {
                let mut tensors = read(step, 1).1;
                tensors.retain(|name, _| !name.starts_with("loss_scale/"));
                tensors
            };
            assert_eq!(of_model(skipped), of_model(2));
        }
        assert_ne!(
            read(1, 0).1["model/norm.moving_mean"],
            read(2, 0).1["model/norm.moving_mean"]
        );
    });
}

/// Examples of a line, learnt by `Fit` with a checkpoint in the folder that all see.
fn fit(process: &Process, stops: bool, epochs: usize) -> (u64, String) {
    let tpu = &process.strategy;
    let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
    let mut state = tpu.scope(build).unwrap();
    let digits = Digits::open().unwrap().test().unwrap();
    let batching = Batching::global(32).shuffle(1).drop_remainder(true);
    let data = tpu.distribute_dataset(digits, batching).unwrap();
    let folder = process.folder.join("checkpoints");
    let saved = ModelCheckpoint::with_workers(tpu, &folder).unwrap();
    let found = Latest::find(&folder);
    let (id, workers) = (process.id, tpu.workers().unwrap().clone());
    let asks = OnBatch(move |step| {
        // One of the processes is told to end.
        if stops && id == 1 && step == 4 {
            workers.request_stop();
        }
    });
    let fit = Fit::new(tpu).epochs(epochs).callback(saved).callback(asks);
    let fit = fit.resume_from(found);
    let outcome = fit.run(&mut state, &data, |ctx, model: &Mlp, (x, y)| {
        let (x, y): (Tensor<4>, Tensor<1, Int>) = (x, y);
        let examples = x.dims()[0];
        let rows: Tensor<2> = x.flatten(1, 3);
        let logits = model.forward(rows.slice([0..examples, 0..12]));
        let y = y.remainder_scalar(5);
        let loss = sparse_categorical_crossentropy(logits, y);
        let loss = average_loss(ctx, loss)?;
        Ok(Objective::new(loss).examples(examples))
    });
    let history = outcome.unwrap();
    let losses = history.epochs.iter().map(|epoch| epoch.logs.loss());
    let bits = dump(&state.primary().unwrap().to_tensors().unwrap());
    let losses: Vec<String> = losses.map(|loss| loss.to_string()).collect();
    (
        state.host_metadata().step(),
        format!("{} {bits}", losses.join(",")),
    )
}

/// Calls a function with the number of updates after each batch.
struct OnBatch<F>(F);

impl<F: FnMut(u64) + Send> Callback for OnBatch<F> {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        (self.0)(run.progress().step);
        Ok(())
    }
}

struct Latest;

impl Latest {
    fn find(folder: &Path) -> Option<Checkpoint> {
        distribute_core::checkpoint::load_latest(folder)
            .ok()?
            .found
            .map(|(_, found)| found)
    }
}

#[test]
fn processes_fit_stop_and_resume_together() {
    let test = "processes_fit_stop_and_resume_together";
    let folder = in_processes(test, 2, |process| {
        // Stopped in the middle of the first epoch, after the same update everywhere.
        let (step, first) = fit(&process, true, 2);
        assert_eq!(step, 5);
        let (step, second) = fit(&process, false, 2);
        assert_eq!(step, 22);
        let file = process.folder.join(process.id.to_string());
        fs::write(file, format!("{first}\n{second}")).unwrap();
    });
    let Some(folder) = folder else { return };
    let read = |id: usize| fs::read_to_string(folder.path().join(id.to_string())).unwrap();
    assert!(read(0) == read(1));
}
