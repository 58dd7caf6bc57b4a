//! The configuration of a run: every flag of `train` and the content of its files, by name.
//!
//! It is written into checkpoints, compared with the checkpoint's on `--resume`, and compared
//! between all processes of a job before they train.

use std::path::Path;

use distribute_classifier::{
    DatasetName, EXTRA_KEY, Inputs, TargetsName, Task, model_file_settings, stored_l2, stored_loss,
};
use distribute_core::checkpoint::Metadata;
use distribute_core::{Configuration, Difference};
use distribute_readers::TrainTest;
use serde_json::{Map, Value};

use crate::failure::Failure;
pub(crate) use crate::flags::named as name;
use crate::flags::{
    CheckArgs, ClusterArgs, DataArgs, DeviceArgs, FileArgs, FloatName, GeneralArgs, ObservingArgs,
    OptimizerName, ParameterServerArgs, PrecisionName, ScheduleFlag, StrategyName, TpuArgs,
    TrainArgs, TrainingArgs, ValidationArgs, WeightArgs, WireName,
};
use crate::schedule::updates;
use crate::task::optimizer;

/// The flag that parameter servers take from the chief.
pub(crate) const LEARNING_RATE: &str = "--learning-rate";
/// The key of the configuration in a checkpoint's metadata.
const KEY: &str = "configuration";

/// What a flag affects, and so where its value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The result: stored in the checkpoint, and equal in all processes of a job.
    Result,
    /// The length or the rules of training: equal in all processes of a job, but may change when a
    /// run continues.
    Job,
    /// Actions that workers which exchange gradients do together; with parameter servers only the
    /// chief does them.
    Together,
    /// The result, but by the content of the named file or by the resulting size: see [`contents`].
    Content,
    /// Only this process.
    Local,
}

/// A flag, its value and its scope.
type Entry = (&'static str, Option<String>, Scope);

/// All flags of `train`.
///
/// Every struct is destructured without `..`: a new flag does not compile until it is listed here.
fn entries(args: &TrainArgs) -> Vec<Entry> {
    let TrainArgs {
        general,
        dry_run: _,
        strategy,
        devices,
        data,
        training,
        validation,
        weights,
        files,
        observing,
        checks,
        cluster,
        servers,
        tpu,
    } = args;
    let mut all = vec![("--strategy", name(*strategy), Scope::Job)];
    // Before values whose defaults depend on it.
    all.extend(of_data(data));
    all.extend(of_training(training, data));
    all.extend(of_validation(validation));
    all.extend(of_weights(weights));
    all.extend(of_files(files));
    all.extend(of_observing(observing));
    all.extend(of_checks(checks));
    all.extend(of_cluster(cluster));
    all.extend(of_servers(servers));
    all.extend(of_process(general, devices, tpu));
    all
}

fn of_training(args: &TrainingArgs, data: &DataArgs) -> Vec<Entry> {
    let TrainingArgs {
        epochs,
        steps,
        optimizer: named,
        compiled_optimizer: _,
        targets: _,
        loss: _,
        loss_weights: _,
        metrics: _,
        weighted_metrics: _,
        class_weight,
        // A default value is compared like a given one.
        learning_rate: _,
        lr_schedule,
        warmup_steps,
        weight_decay,
        weight_decay_exclude,
        clip_norm,
        accumulate,
        ema,
        precision,
        l2,
        drop_remainder,
        seed,
    } = args;
    // The default is the behaviour of older versions.
    let precision = Some(*precision).filter(|named| *named != FloatName::F32);
    let dataset = data.dataset.as_ref().unwrap_or(&DatasetName::Digits);
    let epochs = epochs.unwrap_or(dataset.default_epochs());
    // Invalid values are refused when the optimizer is built.
    let rate = optimizer(args).ok().map(|built| built.learning_rate());
    let mut optimizer_and_options = args.optimizer_name().to_string();
    if let Some(options) = named.as_ref().and_then(OptimizerName::options) {
        optimizer_and_options = format!("{optimizer_and_options}:{options}");
    }
    vec![
        (
            "--optimizer",
            text(Some(optimizer_and_options)),
            Scope::Result,
        ),
        // The value may come from the model file; the resulting value is compared.
        ("--loss", None, Scope::Content),
        ("--targets", None, Scope::Content),
        ("--loss-weights", None, Scope::Content),
        ("--metrics", None, Scope::Content),
        ("--weighted-metrics", None, Scope::Content),
        (
            "--class-weight",
            (!class_weight.is_empty()).then(|| class_weights(class_weight)),
            Scope::Result,
        ),
        (LEARNING_RATE, text(rate), Scope::Result),
        ("--lr-schedule", text(lr_schedule.as_ref()), Scope::Result),
        ("--warmup-steps", text(*warmup_steps), Scope::Result),
        ("--weight-decay", text(*weight_decay), Scope::Result),
        (
            "--weight-decay-exclude",
            (!weight_decay_exclude.is_empty()).then(|| weight_decay_exclude.join(",")),
            Scope::Result,
        ),
        ("--clip-norm", text(*clip_norm), Scope::Result),
        ("--accumulate", text(*accumulate), Scope::Result),
        ("--ema", text(*ema), Scope::Result),
        ("--precision", precision.and_then(name), Scope::Result),
        ("--l2", text(*l2), Scope::Result),
        ("--drop-remainder", given(*drop_remainder), Scope::Result),
        ("--seed", text(Some(*seed)), Scope::Result),
        ("--epochs", text(Some(epochs)), Scope::Job),
        ("--steps", text(*steps), Scope::Job),
    ]
}

/// Weights of classes as the flag takes them.
fn class_weights(weights: &[(String, f32)]) -> String {
    let pairs = weights
        .iter()
        .map(|(class, weight)| format!("{class}={weight}"));
    pairs.collect::<Vec<_>>().join(",")
}

fn of_validation(args: &ValidationArgs) -> Vec<Entry> {
    let ValidationArgs {
        validation_split,
        early_stopping,
        start_from_epoch,
        restore_best,
        reduce_lr_on_plateau,
        monitor,
        min_delta,
    } = args;
    vec![
        ("--validation-split", text(*validation_split), Scope::Result),
        (
            "--reduce-lr-on-plateau",
            text(*reduce_lr_on_plateau),
            Scope::Result,
        ),
        // The best value so far is compared with later ones.
        ("--monitor", text(monitor.as_ref()), Scope::Result),
        ("--min-delta", text(*min_delta), Scope::Job),
        ("--early-stopping", text(*early_stopping), Scope::Job),
        ("--start-from-epoch", text(*start_from_epoch), Scope::Job),
        ("--restore-best", given(*restore_best), Scope::Job),
    ]
}

fn of_weights(args: &WeightArgs) -> [Entry; 3] {
    let WeightArgs {
        weights,
        skip_mismatch,
        freeze,
    } = args;
    let freeze = (!freeze.is_empty()).then(|| freeze.join(","));
    [
        // Paths may differ, the chief's weights are taken; a run that continues has its own.
        ("--weights", given(weights.is_some()), Scope::Job),
        ("--skip-mismatch", given(*skip_mismatch), Scope::Job),
        ("--freeze", freeze, Scope::Result),
    ]
}

fn of_data(args: &DataArgs) -> Vec<Entry> {
    let DataArgs {
        model: _,
        dataset,
        data_dir: _,
        csv_header: _,
        csv_delimiter: _,
        label_column: _,
        sample_weight_column: _,
        scale: _,
        color_mode: _,
        columns: _,
        batch_size: _,
    } = args;
    let dataset = dataset.as_ref().unwrap_or(&DatasetName::Digits);
    vec![
        ("--model", None, Scope::Content),
        // Paths of files may differ.
        ("--dataset", text(Some(dataset.kind())), Scope::Job),
        ("--data-dir", None, Scope::Content),
        ("--csv-header", None, Scope::Content),
        ("--csv-delimiter", None, Scope::Content),
        ("--label-column", None, Scope::Content),
        ("--sample-weight-column", None, Scope::Content),
        ("--scale", None, Scope::Content),
        ("--color-mode", None, Scope::Content),
        ("--columns", None, Scope::Content),
        ("--batch-size", None, Scope::Content),
    ]
}

fn of_files(args: &FileArgs) -> Vec<Entry> {
    let FileArgs {
        checkpoint_dir,
        checkpoint_steps,
        checkpoint_seconds,
        resume,
        restartable,
        log_dir: _,
        log_bits: _,
        log_steps,
        log_histograms: _,
    } = args;
    vec![
        // A later check finds out whether it is the same directory.
        (
            "--checkpoint-dir",
            given(checkpoint_dir.is_some()),
            Scope::Together,
        ),
        (
            "--checkpoint-steps",
            text(*checkpoint_steps),
            Scope::Together,
        ),
        (
            "--checkpoint-seconds",
            text(*checkpoint_seconds),
            Scope::Together,
        ),
        ("--resume", given(*resume), Scope::Together),
        ("--restartable", given(*restartable), Scope::Together),
        ("--log-dir", None, Scope::Local),
        ("--log-bits", None, Scope::Local),
        ("--log-histograms", None, Scope::Local),
        ("--log-steps", text(*log_steps), Scope::Together),
    ]
}

fn of_observing(args: &ObservingArgs) -> Vec<Entry> {
    let ObservingArgs {
        trace,
        metrics_addr,
        compare_ranks,
        #[cfg(feature = "otlp")]
        otlp_endpoint,
    } = args;
    vec![
        // Workers compare their clocks for it, and merge their parts.
        ("--trace", given(trace.is_some()), Scope::Together),
        ("--compare-ranks", text(*compare_ranks), Scope::Together),
        // All are told if one of them cannot listen.
        (
            "--metrics-addr",
            given(metrics_addr.is_some()),
            Scope::Together,
        ),
        #[cfg(feature = "otlp")]
        (
            "--otlp-endpoint",
            given(otlp_endpoint.is_some()),
            Scope::Together,
        ),
    ]
}

fn of_checks(args: &CheckArgs) -> [Entry; 2] {
    let CheckArgs {
        check_replicas,
        recompute,
    } = args;
    [
        ("--check-replicas", text(*check_replicas), Scope::Together),
        ("--recompute", text(*recompute), Scope::Together),
    ]
}

fn of_cluster(args: &ClusterArgs) -> Vec<Entry> {
    let ClusterArgs {
        cluster: _,
        cluster_spec: _,
        task_type: _,
        task_id: _,
        port: _,
        address: _,
        rendezvous: _,
        transport,
        communication,
        bytes_per_pack,
        wire,
        total_replicas,
        rendezvous_timeout: _,
        timeout: _,
        heartbeat_timeout: _,
        certs: _,
        insecure: _,
        replicate_state,
        flight_records: _,
    } = args;
    let local = [
        "--cluster",
        "--cluster-spec",
        "--task-type",
        "--task-id",
        "--port",
        "--address",
        "--rendezvous",
        "--rendezvous-timeout",
        "--timeout",
        "--heartbeat-timeout",
        "--certs",
        "--insecure",
        "--flight-records",
    ];
    // The default is the behaviour of older versions.
    let wire = wire.filter(|named| *named != WireName::F32);
    let mut all = vec![
        // Free when a run continues: also under a strategy that sends nothing.
        ("--wire", wire.and_then(name), Scope::Job),
        ("--transport", transport.and_then(name), Scope::Together),
        (
            "--communication",
            communication.and_then(name),
            Scope::Together,
        ),
        ("--bytes-per-pack", text(*bytes_per_pack), Scope::Together),
        ("--total-replicas", text(*total_replicas), Scope::Together),
        ("--replicate-state", text(*replicate_state), Scope::Together),
    ];
    all.extend(local.map(|flag| (flag, None, Scope::Local)));
    all
}

fn of_servers(args: &ParameterServerArgs) -> Vec<Entry> {
    let ParameterServerArgs {
        max_staleness,
        stale_gradients,
        synchronous,
        non_finite,
        shard_bytes,
    } = args;
    vec![
        ("--max-staleness", text(*max_staleness), Scope::Job),
        (
            "--stale-gradients",
            stale_gradients.and_then(name),
            Scope::Job,
        ),
        ("--synchronous", text(*synchronous), Scope::Job),
        ("--non-finite", non_finite.and_then(name), Scope::Job),
        ("--shard-bytes", text(*shard_bytes), Scope::Job),
    ]
}

fn of_process(general: &GeneralArgs, devices: &DeviceArgs, tpu: &TpuArgs) -> Vec<Entry> {
    let GeneralArgs {
        config: _,
        output: _,
        verbose: _,
    } = general;
    // Another number of replicas is another number of examples a step, which is compared.
    let DeviceArgs {
        replicas: _,
        devices: _,
        replicas_per_device: _,
    } = devices;
    let TpuArgs {
        tpu: _,
        pjrt_plugin: _,
        compile_only: _,
        topology: _,
        dump_stablehlo: _,
        precision_of_matmul,
    } = tpu;
    // The default is the precision of every other strategy too.
    let precision = precision_of_matmul.filter(|named| *named != PrecisionName::Highest);
    let flags = [
        "--dry-run",
        "--config",
        "--output",
        "--verbose",
        "--replicas",
        "--devices",
        "--replicas-per-device",
        "--tpu",
        "--pjrt-plugin",
        "--compile-only",
        "--topology",
        "--dump-stablehlo",
    ];
    let mut all = flags.map(|flag| (flag, None, Scope::Local)).to_vec();
    all.push((
        "--precision-of-matmul",
        precision.and_then(name),
        Scope::Result,
    ));
    all
}

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn given(flag: bool) -> Option<String> {
    flag.then(|| "given".to_string())
}

/// The configuration before data is read: all flags that must be equal in the processes of a job.
pub(crate) fn flags(args: &TrainArgs) -> Configuration {
    let together = args.strategy == StrategyName::MultiWorker;
    let mut configuration = Configuration::new();
    for (flag, value, scope) in entries(args) {
        let counts = match scope {
            Scope::Result | Scope::Job => true,
            Scope::Together => together,
            Scope::Content | Scope::Local => false,
        };
        if counts {
            configuration.set(flag, value);
        }
    }
    configuration
}

/// The contents of the files of a run, and sizes that follow from them: `share` is the number of
/// examples of one replica in a step.
pub(crate) fn contents(
    task: &Task,
    data: &TrainTest,
    share: usize,
) -> Result<Configuration, Failure> {
    let mut configuration = model_settings(task);
    configuration.set("--loss", Some(task.loss_text()));
    configuration.set(
        "--metrics",
        Some(metrics(task)).filter(|names| names != ACCURACY),
    );
    configuration.extend(&data_settings(task, data)?);
    // Last, because its default depends on the data.
    configuration.set("--batch-size", Some(share));
    Ok(configuration)
}

/// What is measured if nothing else is said.
const ACCURACY: &str = "accuracy";

/// What is measured: processes add up the sums of the same metrics.
fn metrics(task: &Task) -> String {
    task.metrics_text()
}

/// The model, for the comparison with other processes: a built-in one is its name, a file what it
/// says.
fn model_settings(task: &Task) -> Configuration {
    let name = match task.model_file() {
        None => task.model_name(),
        Some(_) => "a model file",
    };
    let mut settings = Configuration::new().with("--model", Some(name));
    if let Some(text) = task.model_file() {
        settings.extend(&model_file_settings(text));
    }
    settings
}

/// What identifies the data: who has the same is trained on, and tested with, the same examples
/// in the same order.
pub(crate) fn data_settings(task: &Task, data: &TrainTest) -> Result<Configuration, Failure> {
    let mut configuration = task.class_settings();
    let (train, test) = (data.train.len(), data.test.len());
    configuration.set("the number of examples", Some(train + test));
    configuration.set("the number of training examples", Some(train));
    let shape = format!("{:?}", data.train.feature_shape());
    configuration.set("the shape of an example", Some(shape));
    // Before the content, which depends on it.
    if let Some(scale) = task.scale() {
        configuration.set("--scale", Some(scale));
    }
    if task.targets == TargetsName::Values {
        configuration.set("--targets", Some(task.targets.name()));
    }
    let identity = task.identity(data)?;
    configuration.set("the content of the examples", Some(identity.content));
    configuration.set("the order and split of the examples", Some(identity.order));
    Ok(configuration)
}

/// The part of the configuration that determines the result, for the checkpoint. `global_batch` is
/// the number of examples of all replicas in a step.
pub(crate) fn of_checkpoint(
    args: &TrainArgs,
    task: &Task,
    data: &TrainTest,
    global_batch: usize,
) -> Result<Configuration, Failure> {
    let mut configuration = Configuration::new();
    for (flag, value, scope) in entries(args) {
        if scope == Scope::Result {
            configuration.set(flag, value);
        }
    }
    configuration.set("--loss", Some(task.loss_text()));
    // The sums of an epoch that goes on are of the same metrics.
    configuration.set("--metrics", Some(metrics(task)));
    configuration.extend(&data_settings(task, data)?);
    configuration.set("the number of examples in a step", Some(global_batch));
    let training = &args.training;
    if training
        .lr_schedule
        .as_ref()
        .is_some_and(ScheduleFlag::follows_run)
    {
        let dataset = args.data.dataset.as_ref().unwrap_or(&DatasetName::Digits);
        let epochs = training.epochs.unwrap_or(dataset.default_epochs());
        let updates = updates(training, epochs, data.train.len(), global_batch);
        configuration.set(
            "the updates that --lr-schedule takes for the run",
            Some(updates),
        );
    }
    Ok(configuration)
}

/// The form in the checkpoint's metadata.
pub(crate) fn to_extra(configuration: &Configuration) -> (&'static str, Value) {
    let entries = configuration
        .iter()
        .map(|(name, value)| (name.to_string(), Value::from(value)));
    (KEY, Value::Object(entries.collect::<Map<_, _>>()))
}

/// The configuration in a checkpoint; older checkpoints have fewer values.
fn stored(metadata: &Metadata) -> Configuration {
    let mut configuration = Configuration::new();
    let optimizer = &metadata.optimizer;
    configuration.set("--optimizer", Some(&optimizer.name));
    let rate = optimizer.hyper_parameters["learning_rate"].as_f64();
    if rate.is_some() {
        configuration.set(LEARNING_RATE, rate);
    }
    configuration.set("--l2", stored_l2(metadata));
    configuration.set("--seed", Some(metadata.seed));
    let Some(extra) = metadata.extra.get(EXTRA_KEY) else {
        return configuration;
    };
    configuration.extend(&Task::stored_class_settings(extra));
    for (setting, value) in extra[KEY].as_object().into_iter().flatten() {
        configuration.set(setting, value.as_str());
    }
    // Missing values are not compared.
    let inputs = Inputs::of_checkpoint(metadata).map(|(inputs, _)| inputs);
    if let Some(scale) = inputs.as_ref().map(Inputs::scale) {
        configuration.set("--scale", Some(scale));
    }
    // The list of an older checkpoint has no loss that was a default.
    if extra[KEY]["--loss"].is_null() {
        configuration.set("--loss", Some(stored_loss(metadata).name()));
    }
    configuration
}

/// Refuses a checkpoint that was made with another configuration.
pub(crate) fn same_as_stored(
    configuration: &Configuration,
    metadata: &Metadata,
    path: &Path,
    task: &Task,
) -> Result<(), Failure> {
    match configuration.difference_of_common(&stored(metadata)) {
        None => Ok(()),
        Some(difference) => Err(differs(&difference, path, task)),
    }
}

fn differs(difference: &Difference, path: &Path, task: &Task) -> Failure {
    let is_flag = difference.name.starts_with("--");
    let (here, advice) = if is_flag {
        (
            "in this run".to_string(),
            "continue with what it was made with",
        )
    } else {
        (
            format!("in this run ({})", task.dataset),
            "continue with the data and flags that it was made with",
        )
    };
    let there = format!("in the checkpoint {}", path.display());
    Failure::usage(format!(
        "{}; {advice}, or choose another --checkpoint-dir",
        difference.between(&here, &there)
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::FromArgMatches;

    use super::*;
    use crate::flags::{Cli, Command, program};

    fn args(flags: &str) -> TrainArgs {
        let line = format!("distribute-cli train {flags}");
        let matches = program().get_matches_from(line.split_whitespace());
        match Cli::from_arg_matches(&matches).unwrap().command {
            Command::Train(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_flag_of_train_has_its_place() {
        let program = program();
        let train = program.find_subcommand("train").unwrap();
        let flags: BTreeSet<String> = train
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .filter(|flag| *flag != "help")
            .map(|flag| format!("--{flag}"))
            .collect();
        let entries = entries(&args(""));
        let placed: BTreeSet<String> = entries.iter().map(|it| it.0.to_string()).collect();
        assert_eq!(placed, flags);
        assert_eq!(placed.len(), entries.len(), "each of them once");
    }

    /// A value of every flag that two processes could differ in.
    const OTHERS: &[&str] = &[
        "--optimizer sgd",
        "--optimizer adam:beta_1=0.8",
        "--class-weight 0=2",
        "--learning-rate 0.5",
        "--l2 0.01",
        "--drop-remainder",
        "--seed 2",
        "--epochs 3",
        "--steps 7",
        "--dataset csv:a.csv",
        "--checkpoint-dir a",
        "--checkpoint-steps 5",
        "--checkpoint-seconds 5",
        "--resume",
        "--restartable",
        "--log-steps 5",
        "--trace trace.json",
        "--metrics-addr 0",
        "--compare-ranks 5",
        #[cfg(feature = "otlp")]
        "--otlp-endpoint http://127.0.0.1:1",
        "--transport grpc",
        "--communication ring",
        "--bytes-per-pack 64",
        "--total-replicas 4",
        "--replicate-state 2",
        "--max-staleness 4",
        "--max-staleness 4 --stale-gradients refuse",
        "--synchronous 2",
        "--non-finite apply",
        "--wire bf16",
        "--shard-bytes 5",
        "--precision-of-matmul default",
        "--strategy parameter-server",
        "--l2 0",
        "--lr-schedule cosine",
        "--warmup-steps 10",
        "--weight-decay 0.1",
        "--clip-norm 1",
        "--accumulate 2",
        "--ema 0.99",
        "--precision bf16",
        "--weight-decay 0.1 --weight-decay-exclude bias",
        "--validation-split 0.3",
        "--early-stopping 3",
        "--early-stopping 3 --start-from-epoch 1",
        "--early-stopping 3 --restore-best",
        "--reduce-lr-on-plateau 0.5",
        "--monitor loss",
        "--min-delta 0.1",
        "--weights a.h5",
        "--weights a.h5 --skip-mismatch",
        "--freeze dense",
        "--check-replicas 7",
        "--recompute 7",
    ];

    #[test]
    fn another_value_of_a_flag_is_a_difference_that_names_it() {
        let own = flags(&args("--strategy multi-worker"));
        for &other in OTHERS {
            let line = if other.contains("--strategy") {
                other.to_string()
            } else {
                format!("--strategy multi-worker {other}")
            };
            let found = flags(&args(&line)).difference(&own).expect(other);
            assert!(other.contains(&found.name), "{other}: {found:?}");
        }
        let counted = entries(&args(""))
            .into_iter()
            .filter(|it| !matches!(it.2, Scope::Content | Scope::Local));
        let known = |flag: &str| OTHERS.iter().any(|other| other.contains(flag));
        let missing: Vec<_> = counted.filter(|it| !known(it.0)).collect();
        assert!(missing.is_empty(), "not tried: {missing:?}");
    }

    #[test]
    fn what_is_said_twice_or_by_default_is_no_difference() {
        let own = flags(&args("--strategy multi-worker"));
        for same in [
            "--learning-rate 0.001",
            "--epochs 30",
            "--dataset digits",
            "--log-dir a",
            "--wire f32",
        ] {
            let other = flags(&args(&format!("--strategy multi-worker {same}")));
            assert_eq!(other.difference(&own), None, "{same}");
        }
    }
}
