//! Where the library does something else than TensorFlow on purpose: one test each, named
//! `deviation_` and the deviation's name.

use std::collections::BTreeMap;

use conformance::Deviation;
use distribute_core::checkpoint::CheckpointManager;
use distribute_core::cluster::{
    ClusterError, ClusterResolver, SlurmResolver, TfConfigResolver, expand_hostlist, id_in_cluster,
};
use distribute_core::collectives::{GroupOptions, in_process};
use distribute_core::{
    DefaultStrategy, Error, HierarchicalCopy, LogicalDevice, MirroredStrategy,
    MultiWorkerMirroredStrategy, PerReplica, ReduceOp, Replicated, Strategy, StrategyExt,
    TensorData, VariableAggregation, VariableOptions,
};
use distribute_data::fit::callbacks::ModelCheckpoint;

fn mirrored(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::builder()
        .replicas(replicas)
        .build()
        .unwrap()
}

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
        @"gpu:0 is a GPU: its name is read by `distribute_data::cuda::parse`, in a build with --features cuda"
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
        "nobody else held it"
    );
}

#[test]
fn every_deviation_has_a_test() {
    let here = include_str!("deviations.rs");
    for deviation in Deviation::ALL {
        let name = format!("fn deviation_{}()", deviation.name().replace('-', "_"));
        assert!(here.contains(&name), "there is no {name}");
    }
}
