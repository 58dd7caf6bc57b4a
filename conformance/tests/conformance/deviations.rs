//! Where the library does something else than TensorFlow on purpose: one test each, named
//! `deviation_` and the deviation's name.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::BatchNormConfig;
use burn::tensor::{Device, Tensor};
use conformance::Deviation;
use distribute_core::checkpoint::CheckpointManager;
use distribute_core::cluster::{
    ClusterError, ClusterResolver, SlurmResolver, TfConfigResolver, expand_hostlist, id_in_cluster,
};
use distribute_core::collectives::{GroupOptions, in_process};
use distribute_core::optim::MovingAverage;
use distribute_core::{
    Clip, DefaultStrategy, Error, HierarchicalCopy, LogicalDevice, LossScale, MirroredStrategy,
    MultiWorkerMirroredStrategy, PerReplica, ReduceOp, Replicated, Sgd, Strategy, StrategyExt,
    TensorData, TrainState, VariableAggregation, VariableOptions,
};
use distribute_data::{AutoShardPolicy, Batching, Dataset, FnDataset, StrategyDataExt};
use distribute_fit::callbacks::{EarlyStopping, ModelCheckpoint, ReduceLrOnPlateau};
use distribute_fit::{Callback, Fit, History, Objective, StepContext};
use distribute_records::{Compression, Cut, RecordError, RecordReader, RecordWriter};

use crate::mirrored;

#[test]
fn deviation_plain_zero() {
    let strategy = mirrored(2);
    assert_eq!(
        strategy.reduce(ReduceOp::Sum, Replicated(0_i32)).unwrap(),
        0
    );
    assert_eq!(
        strategy.reduce(ReduceOp::Sum, Replicated(0.0_f32)).unwrap(),
        0.0
    );
    let other = strategy
        .reduce(ReduceOp::Sum, Replicated(1.5_f32))
        .unwrap_err();
    assert!(matches!(other, Error::NotDistributed { .. }), "{other:?}");
}

#[test]
fn deviation_plain_number() {
    let strategy = mirrored(3);
    let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 2.0_f32));
    assert_eq!(sums.unwrap().values(), [6.0; 3]);
}

#[test]
fn deviation_no_drift() {
    let strategy = mirrored(2);
    let variable = strategy
        .variable(1.0_f32, VariableOptions::default())
        .unwrap();
    let result = strategy.run((), |ctx, ()| variable.assign(ctx, ctx.replica_id() as f32));
    let error = result.unwrap_err();
    assert!(
        matches!(
            error.root_cause(),
            Error::AggregationRequired { op: "assign" }
        ),
        "{error:?}"
    );
    let copies = variable.local_values().unwrap();
    assert_eq!(copies, [1.0, 1.0], "nothing was changed");
}

/// Copies that are to differ are assigned in a step; outside it does not compile, see
/// `DistributedVariable`.
#[test]
fn deviation_no_drift_outside() {
    let strategy = mirrored(2);
    let variable = strategy
        .variable(0.0_f32, VariableOptions::on_read_sum())
        .unwrap();
    let values = PerReplica::new(vec![10.0_f32, 20.0]);
    strategy
        .run(values, |ctx, value| variable.assign(ctx, value))
        .unwrap();
    assert_eq!(variable.read(&strategy).unwrap(), 30.0);
}

#[test]
fn deviation_odd_hierarchical() {
    for replicas in [3, 5] {
        let builder = MirroredStrategy::builder().replicas(replicas);
        let strategy = builder
            .cross_device_ops(HierarchicalCopy::default())
            .build()
            .unwrap();
        let sums = strategy.run((), |ctx, ()| {
            ctx.all_reduce(ReduceOp::Sum, (ctx.replica_id() + 1) as f32)
        });
        let complete = (replicas * (replicas + 1) / 2) as f32;
        assert_eq!(sums.unwrap().values(), vec![complete; replicas]);
    }
}

#[test]
fn deviation_unknown_device() {
    let error = "gpu:0".parse::<LogicalDevice>().unwrap_err();
    insta::assert_snapshot!(
        error,
        @"gpu:0 is a GPU: its name is read by `distribute::cuda::parse`, in a build with --features cuda"
    );
}

#[test]
fn deviation_default_handles() {
    assert!(DefaultStrategy::new().id() == DefaultStrategy::new().id());
    let variable = DefaultStrategy::new()
        .variable(1.0_f32, VariableOptions::default())
        .unwrap();
    assert!(variable.read(&DefaultStrategy::new()).is_ok());
}

#[test]
fn deviation_backwards_range() {
    let error = expand_hostlist("n[3-1]").unwrap_err();
    assert!(
        matches!(error, ClusterError::BackwardsRange { .. }),
        "{error:?}"
    );
}

fn tf_config(text: &str) -> TfConfigResolver {
    TfConfigResolver::new(BTreeMap::from([(
        "TF_CONFIG".to_string(),
        text.to_string(),
    )]))
}

#[test]
fn deviation_not_text() {
    let resolver = tf_config(r#"{"cluster": {"worker": ["a:1"]}, "rpc_layer": 3}"#);
    let error = ClusterResolver::rpc_layer(&resolver).unwrap_err();
    assert!(
        matches!(error, ClusterError::NotAString { .. }),
        "{error:?}"
    );
}

#[test]
fn deviation_no_rank() {
    let resolver =
        tf_config(r#"{"cluster": {"evaluator": ["a:1"]}, "task": {"type": "evaluator"}}"#);
    let spec = resolver.cluster_spec().unwrap();
    let error = id_in_cluster(&spec, Some("evaluator"), None).unwrap_err();
    assert!(
        matches!(error, ClusterError::TaskIdMissing { .. }),
        "{error:?}"
    );
}

fn slurm(variables: &[(&str, &str)]) -> SlurmResolver {
    let owned = variables
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()));
    SlurmResolver::new(owned.collect::<BTreeMap<String, String>>())
}

const STEP: [(&str, &str); 4] = [
    ("SLURM_PROCID", "1"),
    ("SLURM_STEP_NUM_TASKS", "2"),
    ("SLURM_STEP_NODELIST", "n[1-2]"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
];

#[test]
fn deviation_no_gpus() {
    let spec = slurm(&STEP).cluster_spec().unwrap();
    assert_eq!(spec.num_tasks("worker").unwrap(), 2);
}

#[test]
fn deviation_node_order() {
    let mut variables = STEP;
    variables[2].1 = "b1,a1";
    let spec = slurm(&variables).cluster_spec().unwrap();
    assert!(spec.task_address("worker", 0).unwrap().starts_with("b1:"));
}

#[test]
fn deviation_job_variables() {
    let job = [
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_TASKS_PER_NODE", "1(x2)"),
    ];
    let spec = slurm(&job).cluster_spec().unwrap();
    assert_eq!(spec.num_tasks("worker").unwrap(), 2);
}

/// Runs a program on two workers of one replica each, which are threads here.
fn two_workers<T: Send>(program: impl Fn(&MultiWorkerMirroredStrategy) -> T + Sync) -> Vec<T> {
    let group = in_process(2, GroupOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = group
            .into_iter()
            .map(|endpoint| {
                let program = &program;
                scope.spawn(move || {
                    let builder = MultiWorkerMirroredStrategy::builder();
                    program(&builder.communicator(Box::new(endpoint)).build().unwrap())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn deviation_traced_gather() {
    let gathered = two_workers(|strategy| {
        let found = strategy.run((), |ctx, ()| {
            let mine = TensorData::new(vec![ctx.replica_id() as f32], [1]);
            ctx.all_gather(mine, 0)
        });
        found.unwrap().into_values()
    });
    let both = TensorData::new(vec![0.0_f32, 1.0], [2]);
    assert_eq!(gathered, [[both.clone()], [both]]);
}

#[test]
fn deviation_first_replica() {
    let values = two_workers(|strategy| {
        let options = VariableOptions::default().aggregation(VariableAggregation::OnlyFirstReplica);
        let variable = strategy.variable(1.0_f32, options).unwrap();
        let assigned = strategy.run((), |ctx, ()| {
            variable.assign(ctx, ctx.replica_id() as f32 + 5.0)
        });
        assigned.unwrap();
        variable.local_values().unwrap()
    });
    assert_eq!(values, [[5.0], [5.0]], "replica 0's value on all workers");
}

#[test]
fn deviation_chief_writes() {
    let folder = tempfile::tempdir().unwrap();
    let saves = two_workers(|strategy| {
        let saver = ModelCheckpoint::with_workers(strategy, folder.path()).unwrap();
        // The chief holds the directory; another one cannot.
        let held = CheckpointManager::open(folder.path()).is_err();
        strategy.workers().unwrap().barrier().unwrap();
        drop(saver);
        held
    });
    assert_eq!(saves, [true, true]);
    assert!(
        CheckpointManager::open(folder.path()).is_ok(),
        "nothing else held it"
    );
}

#[derive(Module, Debug)]
struct OneWeight {
    w: Param<Tensor<1>>,
}

/// A weight of 1 with these gradients by step and replica: its values after each step, the same
/// on all replicas, and the tensors at the end.
fn after_gradients(
    gradients: &[Vec<Option<f32>>],
    make: impl Fn(OneWeight) -> TrainState<OneWeight>,
) -> (Vec<f32>, BTreeMap<String, TensorData>) {
    let strategy = mirrored(gradients[0].len());
    let state = strategy.scope(|device| {
        let w = Tensor::ones([1], device).require_grad();
        make(OneWeight {
            w: Param::from_tensor(w),
        })
    });
    let mut state = state.unwrap();
    let mut weights = Vec::new();
    for step in gradients {
        let step = PerReplica::new(step.clone());
        let result = strategy.run((&mut state, step), |ctx, (state, gradient)| {
            let mut loss = Tensor::<1>::zeros([1], ctx.device()).require_grad();
            if let Some(gradient) = gradient {
                loss = loss + state.model.w.val().mul_scalar(gradient);
            }
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        result.unwrap();
        let all = state.values().unwrap().iter();
        let all: Vec<f32> = all.map(|it| it.model.w.val().into_scalar()).collect();
        assert!(all.iter().all(|weight| *weight == all[0]), "{all:?}");
        weights.push(all[0]);
    }
    let tensors = state.primary().unwrap().to_tensors().unwrap();
    (weights, tensors)
}

/// Keras 3 would clip to 1 and -1, whose sum is 0.
#[test]
fn deviation_clips_sum() {
    let (weights, _) = after_gradients(&[vec![Some(3.0), Some(-2.5)]], |model| {
        TrainState::new(model, Sgd::new(1.0)).clip(Clip::Value(1.0))
    });
    assert_eq!(weights, [0.5]);
}

/// One weight after gradients of scaled losses, with a scale of 8, and what the scale is then.
fn after_scaled_gradients(steps: &[[f32; 2]], scale: LossScale) -> (f32, u64, LossScale) {
    let strategy = mirrored(2);
    let state = strategy.scope(|device| {
        let w = Tensor::ones([1], device).require_grad();
        let model = OneWeight {
            w: Param::from_tensor(w),
        };
        TrainState::new(model, Sgd::new(1.0)).with_loss_scale(scale)
    });
    let mut state = state.unwrap();
    for step in steps {
        let step = PerReplica::new(step.to_vec());
        let result = strategy.run((&mut state, step), |ctx, (state, gradient)| {
            let loss = state.model.w.val().mul_scalar(gradient);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        result.unwrap();
    }
    let state = state.primary().unwrap();
    let weight = state.model.w.val().into_scalar();
    (weight, state.step(), state.loss_scale().clone())
}

/// The last of the replicas has an infinite gradient, then a sum overflows; Keras 3 applies both.
#[test]
fn deviation_any_replica() {
    let scale = LossScale::dynamic().initial(8.0).unwrap();
    let steps = [[0.25, 0.25], [0.5, f32::INFINITY], [8e37, 8e37]];
    let (weight, step, scale) = after_scaled_gradients(&steps, scale);
    assert_eq!((weight, step), (0.5, 1));
    assert_eq!((scale.scale(), scale.good_steps()), (2.0, 0));
}

#[test]
fn deviation_scale_bounds() {
    let scale = LossScale::dynamic().initial(2.0).unwrap();
    let (_, _, low) = after_scaled_gradients(&[[f32::NAN, 0.0]; 3], scale);
    assert_eq!(low.scale(), 1.0);
    let largest = 2.0_f64.powi(127);
    let high = LossScale::dynamic().initial(largest).unwrap();
    let high = high.growth_steps(1).unwrap();
    let (_, _, high) = after_scaled_gradients(&[[0.25, 0.25]; 2], high);
    assert_eq!(high.scale(), largest);
}

#[test]
fn deviation_skipped_count() {
    let steps = [[0.25, 0.0], [f32::NAN, 0.0], [0.25, 0.0]];
    let (_, step, scale) = after_scaled_gradients(&steps, LossScale::dynamic());
    assert_eq!((step, scale.skipped_steps()), (2, 1));
}

/// In Keras 2 the weight stays 1.
#[test]
fn deviation_subnormal_scale() {
    let scale = LossScale::dynamic().initial(2.0_f64.powi(127)).unwrap();
    let (weight, _, _) = after_scaled_gradients(&[[0.25, 0.5]], scale);
    assert_eq!(weight, 0.25);
}

/// Two updates of two micro-batches: the average is the first weight, then the mean with the
/// second. Keras 3 counts four: 1, 0, -0.5 and then -1.25.
#[test]
fn deviation_update_average() {
    let (weights, tensors) = after_gradients(&vec![vec![Some(0.5)]; 4], |model| {
        let averaged = MovingAverage::of(Sgd::new(1.0), 0.5).unwrap();
        TrainState::new(model, averaged).accumulate(2)
    });
    assert_eq!(weights, [1.0, 0.0, 0.0, -1.0]);
    let average = tensors["optimizer/average/w"].try_to_vec::<f32>().unwrap();
    assert_eq!(average, [-0.5]);
}

#[test]
fn deviation_one_micro_batch() {
    let (weights, _) = after_gradients(&vec![vec![Some(0.5)]; 2], |model| {
        TrainState::new(model, Sgd::new(1.0)).accumulate(1)
    });
    assert_eq!(weights, [0.5, 0.0]);
}

#[test]
fn deviation_no_gradients() {
    let steps = [vec![None, None], vec![None, Some(0.5)]];
    let (weights, _) = after_gradients(&steps, |model| TrainState::new(model, Sgd::new(1.0)));
    assert_eq!(weights, [1.0, 0.5]);
}

/// One file between two workers. TensorFlow fails on worker 0, which has the file, and gives
/// worker 1 nothing; here no worker is left to wait for one that failed.
#[test]
fn deviation_too_few_files() {
    struct OneFile;
    impl Dataset for OneFile {
        type Batch = usize;

        fn len(&self) -> usize {
            6
        }

        fn files(&self) -> Option<Vec<std::ops::Range<usize>>> {
            Some(std::iter::once(0..6).collect())
        }

        fn batch(&self, rows: &[usize], _: &Device) -> distribute_core::Result<usize> {
            Ok(rows.len())
        }
    }
    let batching = Batching::global(4).auto_shard(AutoShardPolicy::File);
    let found = two_workers(|strategy| strategy.distribute_dataset(OneFile, batching).map(drop));
    for result in found {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("1 file(s) between 2 workers"), "{error}");
    }
}

/// Two replicas; the average is put in the place of the weight by every second update.
#[test]
fn deviation_traced_update() {
    let (weights, _) = after_gradients(&vec![vec![Some(0.25); 2]; 8], |model| {
        let averaged = MovingAverage::of(Sgd::new(1.0), 0.5).unwrap();
        let averaged = averaged.overwrite_every(2).unwrap();
        TrainState::new(model, averaged).accumulate(2)
    });
    assert_eq!(weights, [1.0, 0.0, 0.0, -0.5, -0.5, -1.5, -1.5, -1.75]);
}

/// Moving mean and variance that are read after a step on these numbers per replica.
fn moved(parts: &[&[f32]]) -> [f32; 2] {
    let strategy = mirrored(parts.len());
    let config = BatchNormConfig::new(1).with_momentum(0.5);
    let mut norm = strategy.scope(|device| config.init(device)).unwrap();
    let device = &strategy.replicas()[0].device;
    let part = |part: &&[f32]| {
        let data = TensorData::new(part.to_vec(), [part.len(), 1]);
        Tensor::<2>::from_data(data, device)
    };
    let parts = PerReplica::new(parts.iter().map(part).collect());
    let step = strategy.run((&mut norm, parts), |_, (norm, x)| Ok(norm.forward(x)));
    step.unwrap();
    let norm = norm.primary().unwrap();
    [&norm.running_mean, &norm.running_var].map(|state| state.value().into_scalar())
}

/// The replicas have 1 and 3; Keras 3 reads 1.
#[test]
fn deviation_mean_statistics() {
    assert_eq!(moved(&[&[1.0, 3.0], &[5.0, 7.0]]), [2.0, 1.0]);
}

/// The second replica still has 0 and 1; in Keras 3 it has NaN.
#[test]
fn deviation_empty_part() {
    assert_eq!(moved(&[&[1.0, 5.0], &[]]), [0.75, 1.75]);
}

/// The variance of 1 and 5 is 4; in Keras 2's fused kernel it is 8.
#[test]
fn deviation_population_variance() {
    assert_eq!(moved(&[&[1.0, 5.0]]), [1.5, 2.5]);
}

/// Trains with these values of `val_loss`, and of the metric `score` in the logs `val_score`.
fn fit_with(values: &[f32], callback: impl Callback) -> distribute_core::Result<History> {
    let strategy = DefaultStrategy::new();
    let mut state = strategy.scope(|device| {
        let w = Param::from_tensor(Tensor::ones([1], device).require_grad());
        TrainState::new(OneWeight { w }, Sgd::new(1.0))
    })?;
    let ones = |indices: &[usize], device: &Device| Ok(Tensor::<1>::ones([indices.len()], device));
    let data = FnDataset::new(1, ones);
    let data = strategy.distribute_dataset(data, Batching::global(1))?;
    let objective = |ctx: &StepContext<'_>, model: &OneWeight, _: Tensor<1>| {
        let value = values[ctx.epoch()];
        let loss = model.w.val().mul_scalar(0.0).add_scalar(value);
        Ok(Objective::new(loss).examples(1).metric("score", value, 1))
    };
    Fit::new(&strategy)
        .epochs(values.len())
        .callback(callback)
        .run_with_validation(&mut state, &data, &data, objective)
}

/// In Keras NaN stays the best value, and training ends after the patience.
#[test]
fn deviation_nan_is_never_best() {
    let mut early = EarlyStopping::new("val_loss").patience(2);
    let history = fit_with(&[f32::NAN, 3.0, 2.0, 1.0], &mut early).unwrap();
    assert_eq!(history.epochs.len(), 4);
    assert_eq!(early.best(), Some((1.0, 3)));
    let mut reduce = ReduceLrOnPlateau::new("val_loss").patience(2);
    fit_with(&[f32::NAN, 3.0, 2.0], &mut reduce).unwrap();
    assert_eq!(reduce.best(), Some(2.0));
}

#[test]
fn deviation_missing_metric() {
    let early = fit_with(&[1.0], EarlyStopping::new("val_lost"));
    let reduce = fit_with(&[1.0], ReduceLrOnPlateau::new("val_lost"));
    for error in [early.unwrap_err(), reduce.unwrap_err()] {
        let error = error.to_string();
        assert!(
            error.contains("val_lost") && error.contains("val_loss"),
            "{error}"
        );
    }
}

/// TensorFlow takes a file that ends inside a record's length for a complete one, and does not read
/// what stands behind a zlib stream.
#[test]
fn deviation_cut_file() {
    let written = |compression| {
        let mut writer = RecordWriter::new(Vec::new(), "test", compression);
        writer.write(b"first").unwrap();
        writer.finish().unwrap()
    };
    let failure = |bytes: &[u8]| {
        let mut reader = RecordReader::new(bytes, "test", None).unwrap();
        let mut data = Vec::new();
        assert!(reader.read(&mut data).unwrap());
        assert_eq!(data, b"first");
        reader.read(&mut data).unwrap_err()
    };
    let mut cut = written(Compression::Plain);
    cut.extend_from_slice(&[5, 0, 0]);
    assert!(matches!(
        failure(&cut),
        RecordError::Truncated {
            cut: Cut::Header,
            found: 3,
            ..
        }
    ));
    let mut joined = written(Compression::Zlib);
    joined.extend(written(Compression::Zlib));
    assert!(matches!(failure(&joined), RecordError::Behind { .. }));
}

#[test]
fn every_deviation_has_a_test() {
    let here = include_str!("deviations.rs");
    for deviation in Deviation::ALL {
        let name = format!("fn deviation_{}()", deviation.name().replace('-', "_"));
        assert!(here.contains(&name), "there is no {name}");
    }
}
