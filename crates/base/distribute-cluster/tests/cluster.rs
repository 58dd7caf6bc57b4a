//! Resolvers of launchers and schedulers, detection, and what hostile input does to them.

use std::collections::BTreeMap;

use distribute_cluster::{
    Accelerators, Cluster, ClusterError, ClusterKind, ClusterResolver, ClusterSpec,
    KubernetesResolver, MAX_TASKS, MasterTarget, Overrides, RankResolver, SimpleResolver,
    SlurmResolver, TaskType, Tasks, TfConfigResolver, UnionResolver, detect, detect_with,
    expand_hostlist, expand_tasks_per_node, id_in_cluster, parse_task_index, tf_config_json,
    validate,
};
use proptest::prelude::*;
use rstest::rstest;

#[path = "cluster/file.rs"]
mod file;
#[path = "cluster/launchers.rs"]
mod launchers;
#[path = "cluster/sources.rs"]
mod sources;

type Env = BTreeMap<String, String>;

/// Variables from text: one `NAME=value` a line.
fn env(text: &str) -> Env {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.split_once('=').unwrap();
            (name.to_string(), value.to_string())
        })
        .collect()
}

/// The addresses of a job, the task, as `h1:1 h2:1 | worker 0`.
fn summary(resolver: &dyn ClusterResolver) -> Result<String, ClusterError> {
    let spec = resolver.cluster_spec()?;
    let (task_type, task_id) = (resolver.task_type()?, resolver.task_id()?);
    Ok(format!(
        "{spec} {} {}",
        task_type.unwrap_or_default(),
        task_id.unwrap_or(-1)
    ))
}

const STEP: &str = "
    SLURM_JOB_ID=77
    SLURM_PROCID=1
    SLURM_STEP_NUM_TASKS=4
    SLURM_STEP_NODELIST=n[9-10]
    SLURM_STEP_TASKS_PER_NODE=2(x2)
    SLURM_NTASKS=16
    SLURM_JOB_NODELIST=n[1-8]
    SLURM_TASKS_PER_NODE=2(x8)";

// SLURM

#[rstest]
#[case("n1", &["n1"])]
#[case("node[001-003,007],x", &["node001", "node002", "node003", "node007", "x"])]
#[case("n[9-11]", &["n9", "n10", "n11"])]
#[case("n[098-101]", &["n098", "n099", "n100", "n101"])]
#[case("n[1,1]", &["n1", "n1"])]
#[case("n1,", &["n1"])]
#[case("", &[])]
#[case("[1-2]", &["1", "2"])]
fn hostlists(#[case] list: &str, #[case] hosts: &[&str]) {
    match expand_hostlist(list) {
        Ok(found) => assert_eq!(found, hosts),
        Err(error) => assert!(hosts.is_empty(), "{error}"),
    }
}

#[rstest]
#[case::unclosed("n[1-2")]
#[case::unopened("n1-2]")]
#[case::empty_brackets("n[]")]
#[case::nested("n[1-[2-3]]")]
#[case::two_pairs("r[1-2]n[3-4]")]
#[case::after_brackets("n[1-2]x")]
#[case::domain("n[1-2].example")]
#[case::no_number("n[a-b]")]
#[case::three_ends("n[1-2-3]")]
#[case::open_range("n[1-]")]
#[case::empty_entry("n[1,,2]")]
#[case::empty_name("n1,,n2")]
#[case::leading_comma(",n1")]
#[case::sign("n[+1-2]")]
#[case::beyond_64_bits("n[1-99999999999999999999]")]
fn hostlists_that_do_not_parse(#[case] list: &str) {
    let error = expand_hostlist(list).unwrap_err();
    assert!(matches!(error, ClusterError::Hostlist { .. }), "{error:?}");
}

#[rstest]
#[case("n[1-999999999]")]
#[case("n[1-60000],m[1-60000]")]
fn hostlists_of_too_many_hosts(#[case] list: &str) {
    let error = expand_hostlist(list).unwrap_err();
    assert!(
        matches!(
            error,
            ClusterError::TooMany {
                limit: MAX_TASKS,
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_backwards_range_and_an_endless_name_are_refused() {
    let error = expand_hostlist("n[3-1]").unwrap_err();
    assert!(matches!(
        error,
        ClusterError::BackwardsRange {
            first: 3,
            last: 1,
            ..
        }
    ));
    let error = expand_hostlist(&format!("{}[1-9]", "n".repeat(100_000))).unwrap_err();
    assert!(error.to_string().len() < 500, "{error}");
}

#[rstest]
#[case("2(x3),1", Some(vec![2, 2, 2, 1]))]
#[case("4", Some(vec![4]))]
#[case("2(x0),1", Some(vec![1]))]
#[case("", None)]
#[case("2(x3", None)]
#[case("2x3", None)]
#[case("2(x-1)", None)]
#[case("a", None)]
#[case("1(x999999999)", None)]
#[case("999999999999999999999999", None)]
fn tasks_per_node(#[case] list: &str, #[case] counts: Option<Vec<usize>>) {
    assert_eq!(expand_tasks_per_node(list).ok(), counts);
}

#[test]
fn a_step_is_read_before_its_job_and_nodes_keep_their_order() {
    let resolver = SlurmResolver::new(env(STEP));
    assert_eq!(
        summary(&resolver).unwrap(),
        "ClusterSpec({'worker': ['n9:8888', 'n9:8889', 'n10:8888', 'n10:8889']}) worker 1"
    );
    assert_eq!(resolver.master().unwrap(), "grpc://n9:8889");
    assert_eq!(resolver.num_accelerators().unwrap(), Accelerators::new());
}

#[test]
fn the_job_is_read_where_the_step_says_nothing() {
    let variables = "
        SLURM_PROCID=2
        SLURM_NTASKS=3
        SLURM_JOB_NODELIST=a,b
        SLURM_TASKS_PER_NODE=2,1";
    let resolver = SlurmResolver::new(env(variables)).port_base(9000);
    assert_eq!(
        summary(&resolver).unwrap(),
        "ClusterSpec({'worker': ['a:9000', 'a:9001', 'b:9000']}) worker 2"
    );
}

#[rstest]
#[case::block("block", &["n9:8888", "n9:8889", "n10:8888", "n10:8889"])]
#[case::cyclic("cyclic", &["n9:8888", "n10:8888", "n9:8889", "n10:8889"])]
#[case::cyclic_sockets("cyclic:block", &["n9:8888", "n10:8888", "n9:8889", "n10:8889"])]
#[case::sockets("block:cyclic", &["n9:8888", "n9:8889", "n10:8888", "n10:8889"])]
#[case::plane("plane", &["n9:8888", "n10:8888", "n9:8889", "n10:8889"])]
fn ranks_are_laid_over_nodes_as_slurm_does(#[case] how: &str, #[case] addresses: &[&str]) {
    let variables = format!("{STEP}\nSLURM_DISTRIBUTION={how}\nSLURM_DIST_PLANESIZE=1");
    let spec = SlurmResolver::new(env(&variables)).cluster_spec().unwrap();
    let expected = Tasks::Dense(addresses.iter().map(ToString::to_string).collect());
    assert_eq!(spec.as_dict()["worker"], expected);
}

#[test]
fn jobs_get_ranks_in_alphabetical_order() {
    let resolver = SlurmResolver::new(env(STEP)).jobs([("worker", 3), ("ps", 1)]);
    assert_eq!(
        summary(&resolver).unwrap(),
        "ClusterSpec({'ps': ['n9:8888'], 'worker': ['n9:8889', 'n10:8888', 'n10:8889']}) worker 0"
    );
    let error = SlurmResolver::new(env(STEP))
        .jobs([("worker", 9)])
        .cluster_spec()
        .unwrap_err();
    assert_eq!(
        error,
        ClusterError::TaskCount {
            requested: 9,
            assigned: 4
        }
    );
}

#[test]
fn gpus_are_shared_by_the_tasks_of_a_node() {
    let resolver = SlurmResolver::new(env(STEP)).gpus_per_node(5);
    assert_eq!(resolver.num_accelerators().unwrap()["GPU"], 2);
    assert_eq!(resolver.gpu_ids().unwrap(), [2, 3]);
    let visible = format!("{STEP}\nCUDA_VISIBLE_DEVICES=0,1");
    assert_eq!(SlurmResolver::new(env(&visible)).gpu_ids().unwrap(), [1]);
    let on_node = format!("{visible}\nSLURM_GPUS_ON_NODE=8");
    assert_eq!(
        SlurmResolver::new(env(&on_node)).gpu_ids().unwrap(),
        [4, 5, 6, 7]
    );
    let error = resolver.gpus_per_task(3).cluster_spec().unwrap_err();
    let expected = ClusterError::TooFewAccelerators {
        tasks: 2,
        per_task: 3,
        available: 5,
    };
    assert_eq!(error, expected);
}

#[rstest]
#[case("SLURM_PROCID=4")]
#[case("SLURM_PROCID=-1")]
#[case("SLURM_PROCID=one")]
#[case("SLURM_STEP_TASKS_PER_NODE=2")]
#[case("SLURM_STEP_TASKS_PER_NODE=2(x3)")]
#[case("SLURM_STEP_NUM_TASKS=5")]
#[case("SLURM_STEP_NODELIST=n[1-")]
#[case("SLURM_STEP_NODELIST=n1,n1")]
#[case("SLURM_STEP_NODELIST=n[1-999999999]")]
#[case("SLURM_DISTRIBUTION=arbitrary")]
fn broken_slurm_variables(#[case] line: &str) {
    let resolver = SlurmResolver::new(env(&format!("{STEP}\n{line}")));
    assert!(resolver.cluster_spec().is_err());
    assert!(resolver.task_id().is_err());
}

#[test]
fn ports_end_at_65535() {
    let error = SlurmResolver::new(env(STEP))
        .port_base(65535)
        .cluster_spec()
        .unwrap_err();
    assert_eq!(
        error,
        ClusterError::Port {
            first: 65535,
            last: 65536
        }
    );
    let hosts = SlurmResolver::new(env(STEP))
        .hosts(["r1n1", "r2n1"])
        .cluster_spec()
        .unwrap();
    assert_eq!(hosts.task_address("worker", 2).unwrap(), "r2n1:8888");
}

// Kubernetes

#[test]
fn an_indexed_job_is_found_by_pod_names() {
    let variables = "
        KUBERNETES_SERVICE_HOST=10.0.0.1
        HOSTNAME=train-2
        JOB_COMPLETION_INDEX=2
        JOB_COMPLETIONS=3
        JOB_SUBDOMAIN=train-svc
        JOB_PORT_BASE=7000";
    let resolver = KubernetesResolver::new(env(variables));
    assert_eq!(
        summary(&resolver).unwrap(),
        "ClusterSpec({'worker': ['train-0.train-svc:7000', 'train-1.train-svc:7000', \
         'train-2.train-svc:7000']}) worker 2"
    );
    assert_eq!(detect(env(variables)).kind, ClusterKind::Kubernetes);
}

#[test]
fn a_jobset_is_found_by_pod_names() {
    let variables = "
        HOSTNAME=set-workers-1-0
        JOB_COMPLETION_INDEX=0
        JOB_COMPLETIONS=2
        JOBSET_NAME=set
        REPLICATED_JOB_REPLICAS=2";
    let resolver = KubernetesResolver::new(env(variables));
    assert_eq!(
        summary(&resolver).unwrap(),
        "ClusterSpec({'worker': ['set-workers-0-0.set:8888', 'set-workers-0-1.set:8888', \
         'set-workers-1-0.set:8888', 'set-workers-1-1.set:8888']}) worker 2"
    );
}

#[test]
fn a_jobset_of_several_jobs_has_roles() {
    let variables = "
        HOSTNAME=set-ps-0-1
        JOB_COMPLETION_INDEX=1
        JOBSET_NAME=set
        JOB_SUBDOMAIN=net
        JOBSET_JOBS=chief=1, worker=2, ps=2";
    let resolver = KubernetesResolver::new(env(variables));
    let cluster = Cluster::resolve(&resolver).unwrap().unwrap();
    assert_eq!(
        (cluster.task_type(), cluster.task_id()),
        (TaskType::ParameterServer, 1)
    );
    assert_eq!(cluster.address(), Some("set-ps-0-1.net:8888"));
    assert_eq!(cluster.leader_address(), Some("set-chief-0-0.net:8888"));
    assert_eq!(cluster.worker_count(), 3);
    assert_eq!(cluster.rank(), None);
}

#[test]
fn several_jobs_of_a_jobset_may_be_workers() {
    let variables = "
        HOSTNAME=set-second-0-1
        JOB_COMPLETION_INDEX=1
        JOBSET_NAME=set
        JOBSET_JOBS=first=2,second=2";
    let resolver = KubernetesResolver::new(env(variables));
    let cluster = Cluster::resolve(&resolver).unwrap().unwrap();
    assert_eq!(
        (cluster.task_type(), cluster.task_id()),
        (TaskType::Worker, 3)
    );
    assert_eq!(cluster.address(), Some("set-second-0-1.set:8888"));
}

#[rstest]
#[case::no_completions("HOSTNAME=t-0\nJOB_COMPLETION_INDEX=0")]
#[case::no_service("HOSTNAME=t-0\nJOB_COMPLETION_INDEX=0\nJOB_COMPLETIONS=2")]
#[case::other_pod("HOSTNAME=t-1\nJOB_COMPLETION_INDEX=0\nJOB_COMPLETIONS=2\nJOB_SUBDOMAIN=s")]
#[case::index("HOSTNAME=t-2\nJOB_COMPLETION_INDEX=2\nJOB_COMPLETIONS=2\nJOB_SUBDOMAIN=s")]
#[case::many("HOSTNAME=t-0\nJOB_COMPLETION_INDEX=0\nJOB_COMPLETIONS=99999999\nJOB_SUBDOMAIN=s")]
#[case::jobset_name("HOSTNAME=x\nJOB_COMPLETION_INDEX=0\nJOB_COMPLETIONS=2\nJOBSET_NAME=s")]
#[case::replicas(
    "HOSTNAME=s-w-9-0\nJOB_COMPLETION_INDEX=0\nJOBSET_NAME=s\nREPLICATED_JOB_REPLICAS=2"
)]
#[case::not_listed("HOSTNAME=s-w-0-0\nJOB_COMPLETION_INDEX=0\nJOBSET_NAME=s\nJOBSET_JOBS=ps=1")]
#[case::unreadable("HOSTNAME=s-w-0-0\nJOB_COMPLETION_INDEX=0\nJOBSET_NAME=s\nJOBSET_JOBS=w")]
fn broken_kubernetes_variables(#[case] variables: &str) {
    let error = KubernetesResolver::new(env(variables))
        .cluster_spec()
        .unwrap_err();
    assert!(
        matches!(
            error,
            ClusterError::MissingVariable { .. }
                | ClusterError::InvalidVariable { .. }
                | ClusterError::RankTooBig { .. }
        ),
        "{error:?}"
    );
}

// Open MPI and torchrun

#[test]
fn mpirun_on_one_host_and_on_many() {
    let one = "
        OMPI_COMM_WORLD_RANK=1
        OMPI_COMM_WORLD_SIZE=2
        OMPI_COMM_WORLD_LOCAL_SIZE=2";
    assert_eq!(
        summary(&RankResolver::open_mpi(env(one))).unwrap(),
        "ClusterSpec({'worker': ['127.0.0.1:8888', '127.0.0.1:8889']}) worker 1"
    );
    let many = "
        OMPI_COMM_WORLD_RANK=1
        OMPI_COMM_WORLD_SIZE=2
        OMPI_COMM_WORLD_LOCAL_SIZE=1";
    let error = RankResolver::open_mpi(env(many))
        .cluster_spec()
        .unwrap_err();
    assert!(
        error.to_string().contains("mpirun -x MASTER_ADDR"),
        "{error}"
    );
    let many = format!("{many}\nMASTER_ADDR=host1\nMASTER_PORT=9000");
    let cluster = Cluster::resolve(&RankResolver::open_mpi(env(&many)))
        .unwrap()
        .unwrap();
    assert_eq!(cluster.leader_address(), Some("host1:9000"));
    assert_eq!(cluster.workers(), [Some("host1:9000"), None]);
    assert_eq!((cluster.address(), cluster.own_port()), (None, None));
    let error = cluster.spec().task_address("worker", 1).unwrap_err();
    assert!(matches!(
        error,
        ClusterError::AddressNotKnown { index: 1, .. }
    ));
    assert_eq!(cluster.spec().num_tasks("worker"), Ok(2));
}

const TORCHRUN: &str = "
    RANK=1
    WORLD_SIZE=2
    LOCAL_WORLD_SIZE=2
    MASTER_ADDR=::1
    MASTER_PORT=29500";

#[test]
fn torchrun_on_one_host_leaves_the_port_of_its_store_alone() {
    assert_eq!(
        summary(&RankResolver::torchrun(env(TORCHRUN))).unwrap(),
        "ClusterSpec({'worker': ['[::1]:29500', '[::1]:29501']}) worker 1"
    );
    let agent = format!("{TORCHRUN}\nTORCHELASTIC_USE_AGENT_STORE=True");
    let spec = RankResolver::torchrun(env(&agent)).cluster_spec().unwrap();
    assert_eq!(spec.task_address("worker", 0).unwrap(), "[::1]:29501");
}

#[rstest]
#[case("RANK=2")]
#[case("RANK=x")]
#[case("WORLD_SIZE=0")]
#[case("WORLD_SIZE=999999999")]
#[case("LOCAL_WORLD_SIZE=3")]
#[case("MASTER_PORT=65535")]
#[case("MASTER_PORT=65536")]
fn broken_torchrun_variables(#[case] line: &str) {
    let resolver = RankResolver::torchrun(env(&format!("{TORCHRUN}\n{line}")));
    assert!(resolver.cluster_spec().is_err());
}

// Detection

const TF_CONFIG: &str =
    r#"TF_CONFIG={"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}"#;

#[rstest]
#[case("", ClusterKind::OneProcess)]
#[case(TF_CONFIG, ClusterKind::TfConfig)]
#[case("TF_CONFIG={bad", ClusterKind::TfConfig)]
#[case("TF_CONFIG={}", ClusterKind::OneProcess)]
#[case(TORCHRUN, ClusterKind::Torchrun)]
#[case("RANK=0\nWORLD_SIZE=2", ClusterKind::Torchrun)]
#[case(
    "RANK=0\nOMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=1",
    ClusterKind::OpenMpi
)]
#[case("OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=1", ClusterKind::OpenMpi)]
#[case(STEP, ClusterKind::Slurm)]
#[case("SLURM_JOB_ID=1\nSLURM_PROCID=0\nSLURM_NTASKS=4", ClusterKind::Slurm)]
fn detection(#[case] variables: &str, #[case] kind: ClusterKind) {
    assert_eq!(detect(env(variables)).kind, kind);
}

#[test]
fn the_order_of_detection_is_written_down() {
    let all = format!("{TF_CONFIG}\n{TORCHRUN}\n{STEP}");
    assert_eq!(detect(env(&all)).kind, ClusterKind::TfConfig);
    assert_eq!(
        detect(env(&format!("{TORCHRUN}\n{STEP}"))).kind,
        ClusterKind::Torchrun
    );
    let mpi = format!("OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=1\n{STEP}");
    assert_eq!(detect(env(&mpi)).kind, ClusterKind::OpenMpi);
}

#[test]
fn what_was_detected_can_be_read() {
    let texts = [
        detect(env("")).to_string(),
        detect(env(TF_CONFIG)).to_string(),
        detect(env(STEP)).to_string(),
        detect(env("RANK=0\nSLURM_JOB_ID=1\nSLURM_PROCID=0\nTF_CONFIG=")).to_string(),
        detect_with(
            env(&format!("{TF_CONFIG}\n{STEP}")),
            Overrides {
                kind: Some(ClusterKind::Slurm),
                task_id: Some(3),
                port_base: Some(7000),
                ..Overrides::default()
            },
        )
        .to_string(),
    ];
    insta::assert_snapshot!(texts.join("\n\n"));
}

#[test]
fn flags_win_over_what_was_detected() {
    let overrides = Overrides {
        task_type: Some("worker".to_string()),
        task_id: Some(0),
        rpc_layer: Some("grpc".to_string()),
        ..Overrides::default()
    };
    let detected = detect_with(env(TF_CONFIG), overrides.clone());
    assert_eq!(detected.resolver.master().unwrap(), "grpc://a:1");
    assert_eq!(
        Cluster::resolve(&*detected.resolver)
            .unwrap()
            .unwrap()
            .rank(),
        Some(0)
    );
    let cluster_spec = ClusterSpec::new([("worker", ["x:1", "y:1"])]).ok();
    let detected = detect_with(
        env(TF_CONFIG),
        Overrides {
            cluster_spec,
            ..overrides
        },
    );
    assert_eq!(detected.resolver.master().unwrap(), "grpc://x:1");
    let ports = Overrides {
        port_base: Some(7000),
        ..Overrides::default()
    };
    let spec = detect_with(env(STEP), ports)
        .resolver
        .cluster_spec()
        .unwrap();
    assert_eq!(spec.task_address("worker", 0).unwrap(), "n9:7000");
}

// Roles and clusters

#[test]
fn a_cluster_is_checked_once() {
    let json =
        |text: &str| Cluster::resolve(&TfConfigResolver::new(env(&format!("TF_CONFIG={text}"))));
    assert_eq!(json("{}"), Ok(None));
    let evaluator = r#"{"cluster": {"chief": ["c:1"], "worker": ["w:1"]},
                        "task": {"type": "evaluator", "index": 0}}"#
        .replace('\n', " ");
    let evaluator = json(&evaluator).unwrap().unwrap();
    assert!(evaluator.is_chief());
    assert_eq!((evaluator.worker_count(), evaluator.address()), (1, None));
    assert_eq!(evaluator.workers(), [Some("c:1"), Some("w:1")]);
    let task = |task: &str| {
        json(&format!(
            r#"{{"cluster": {{"worker": ["a:1"]}}, "task": {task}}}"#
        ))
    };
    assert_eq!(task("{}"), Err(ClusterError::TaskTypeMissing));
    assert!(matches!(
        task(r#"{"type": "worker"}"#),
        Err(ClusterError::TaskIdMissing { .. })
    ));
    let negative = task(r#"{"type": "worker", "index": -1}"#);
    assert!(matches!(
        negative,
        Err(ClusterError::NegativeTaskId { task_id: -1, .. })
    ));
    let gap = json(
        r#"{"cluster": {"worker": {"0": "a", "2": "b"}}, "task": {"type": "worker", "index": 0}}"#,
    );
    assert!(matches!(gap, Err(ClusterError::SparseJob { index: 2, .. })));
}

#[test]
fn an_evaluator_outside_the_cluster_needs_an_index_for_a_rank() {
    let spec = ClusterSpec::new([("worker", ["a:1"])]).unwrap();
    assert_eq!(validate(&spec, Some("evaluator"), None), Ok(()));
    let rank = id_in_cluster(&spec, Some("evaluator"), None);
    assert!(matches!(rank, Err(ClusterError::TaskIdMissing { .. })));
}

#[test]
fn tf_config_is_read_as_python_reads_it() {
    let task = |task: &str| {
        let text = format!(r#"TF_CONFIG={{"cluster": {{"worker": ["a:1"]}}, "task": {task}}}"#);
        TfConfigResolver::new(env(&text))
    };
    let task_type = |text: &str| ClusterResolver::task_type(&task(text));
    let task_id = |text: &str| ClusterResolver::task_id(&task(text));
    assert_eq!(
        task_type(r#"{"type": null}"#).unwrap().as_deref(),
        Some("None")
    );
    assert_eq!(
        task_type(r#"{"type": true}"#).unwrap().as_deref(),
        Some("True")
    );
    assert_eq!(
        task_type(r#"{"type": [1, 1e16, "it's"]}"#)
            .unwrap()
            .unwrap(),
        "[1, 1e+16, \"it's\"]"
    );
    assert_eq!(
        task_type(r#"{"type": "a", "type": "b"}"#)
            .unwrap()
            .as_deref(),
        Some("b")
    );
    assert_eq!(task_type("[]"), Ok(None));
    assert_eq!(task_type("\"my t\""), Ok(None));
    assert!(matches!(
        task_type("\"my type\""),
        Err(ClusterError::NotAnObject { .. })
    ));
    assert!(matches!(
        task_type("[\"type\"]"),
        Err(ClusterError::NotAnObject { .. })
    ));
    assert!(matches!(
        task_type("5"),
        Err(ClusterError::NotAnObject { .. })
    ));
    assert_eq!(task_id(r#"{"index": true}"#), Ok(Some(1)));
    assert_eq!(task_id(r#"{"index": " 1_0 "}"#), Ok(Some(10)));
    assert_eq!(task_id(r#"{"index": -0.5}"#), Ok(Some(0)));
    assert!(matches!(
        task_id(r#"{"index": null}"#),
        Err(ClusterError::IndexType { .. })
    ));
    assert!(matches!(
        task_id(r#"{"index": "1.0"}"#),
        Err(ClusterError::InvalidIndex { .. })
    ));
    assert!(matches!(
        task_id(r#"{"index": 1e300}"#),
        Err(ClusterError::InvalidIndex { .. })
    ));
}

#[test]
fn specs_have_limits() {
    let sparse = ClusterSpec::parse(r#"{"worker": {"2000000000": "a:1"}}"#).unwrap();
    assert!(matches!(
        sparse.job_tasks("worker"),
        Err(ClusterError::SparseJob { .. })
    ));
    let wide = ClusterSpec::parse(r#"{"worker": {"3000000000": "a:1"}}"#);
    assert!(matches!(wide, Err(ClusterError::InvalidIndex { .. })));
    let many = ClusterSpec::new([("worker", (0..).map(|i| format!("h{i}:1")))]);
    assert!(matches!(many, Err(ClusterError::TooMany { .. })));
    let deep = "[".repeat(100_000);
    assert!(matches!(
        ClusterSpec::parse(&deep),
        Err(ClusterError::Json { .. })
    ));
    let long = " ".repeat(32 << 20);
    assert!(matches!(
        ClusterSpec::parse(&long),
        Err(ClusterError::TooMany { .. })
    ));
}

#[test]
fn the_largest_cluster_is_read_as_it_is_written() {
    let spec = ClusterSpec::new([("worker", (0..MAX_TASKS).map(|i| format!("h{i}:1")))]).unwrap();
    assert_eq!(ClusterSpec::parse(&tf_dict(&spec)).unwrap(), spec);
    let address = format!("{}:65535", "n".repeat(253));
    let first = i64::from(i32::MIN);
    let indices = first..first + i64::try_from(MAX_TASKS).unwrap();
    let sparse = indices.map(|index| (index, address.clone()));
    let spec = ClusterSpec::sparse([("worker", sparse)]).unwrap();
    assert_eq!(ClusterSpec::parse(&tf_dict(&spec)).unwrap(), spec);
}

#[test]
fn jobs_keep_their_order_and_equality_ignores_it() {
    let a = ClusterSpec::parse(r#"{"worker": ["w:1"], "chief": ["c:1"]}"#).unwrap();
    let b = ClusterSpec::parse(r#"{"chief": ["c:1"], "worker": {"0": "w:1"}}"#).unwrap();
    assert_eq!(a.jobs().collect::<Vec<_>>(), ["worker", "chief"]);
    assert_eq!(a, b);
    assert_eq!(
        tf_config_json(&a, "chief", 0),
        tf_config_json(&b, "chief", 0)
    );
}

#[test]
fn a_union_of_equal_tasks_is_refused() {
    let part = |text: &str| -> Box<dyn ClusterResolver> {
        Box::new(SimpleResolver::new(ClusterSpec::parse(text).unwrap()))
    };
    let union = UnionResolver::new(vec![
        part(r#"{"worker": {"1": "a:1"}}"#),
        part(r#"{"worker": {"1": "b:1"}}"#),
    ]);
    let error = union.unwrap().cluster_spec().unwrap_err();
    let job = "worker".to_string();
    assert_eq!(error, ClusterError::DuplicateTask { job, index: 1 });
}

#[test]
fn errors_say_what_to_do() {
    let master = |target: &MasterTarget| {
        let resolver = TfConfigResolver::new(env(TF_CONFIG));
        resolver.master_for(target).unwrap_err().to_string()
    };
    let spec = |text: &str| ClusterSpec::parse(text).unwrap_err().to_string();
    let slurm = |line: &str| {
        let resolver = SlurmResolver::new(env(&format!("{STEP}\n{line}")));
        resolver.cluster_spec().unwrap_err().to_string()
    };
    let two = ClusterSpec::new([("chief", vec!["a:1", "b:1"]), ("worker", vec!["c:1"])]).unwrap();
    let odd = ClusterSpec::new([("trainer", ["a:1"])]).unwrap();
    let checked =
        |spec: &ClusterSpec, task_type, id| validate(spec, task_type, id).unwrap_err().to_string();
    let texts = [
        ClusterSpec::parse("{bad").unwrap_err().to_string(),
        spec("3"),
        spec(r#"{"worker": "a:1"}"#),
        spec(r#"{"worker": [5]}"#),
        spec(r#"{"worker": {"x": "a:1"}}"#),
        master(&MasterTarget::task("ps", 0)),
        master(&MasterTarget::task("worker", 7)),
        checked(&two, Some("chief"), Some(0)),
        checked(&odd, None, None),
        checked(&two, Some("trainer"), None),
        slurm("SLURM_PROCID=9"),
        slurm("SLURM_PROCID=x"),
        slurm("SLURM_STEP_NUM_TASKS=9"),
        slurm("SLURM_STEP_NODELIST=r[1-2]n[1-2]"),
        slurm("SLURM_STEP_NODELIST=n[1-999999999]"),
        slurm("SLURM_STEP_NODELIST=n[1-3]"),
        SlurmResolver::new(env(""))
            .cluster_spec()
            .unwrap_err()
            .to_string(),
    ];
    insta::assert_snapshot!(texts.join("\n"));
}

// Hostile input: a typed error or a bounded answer, and never a panic.

fn hostlist_like() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop_oneof![
            "[a-z\\[\\],()x0-9-]{0,12}",
            Just("n[1-".to_string()),
            "[0-9]{1,25}",
            Just("],".to_string()),
            any::<String>(),
        ],
        0..8,
    )
    .prop_map(|parts| parts.concat())
}

fn config_like() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("null".to_string()),
        Just("\"worker\"".to_string()),
        Just("[\"a:1\", 5]".to_string()),
        Just("{\"-1\": \"a\", \"3\": \"b\"}".to_string()),
        Just("[]".to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:e}")),
        any::<String>().prop_map(|text| format!("{text:?}")),
    ];
    let names = prop::sample::select(vec!["worker", "chief", "ps", "evaluator", "other"]);
    let job = (names, value.clone()).prop_map(|(name, value)| format!("\"{name}\": {value}"));
    let jobs = prop::collection::vec(job, 0..4).prop_map(|jobs| jobs.join(", "));
    (jobs, value.clone(), value.clone(), value).prop_map(|(jobs, task_type, index, layer)| {
        format!(
            r#"{{"cluster": {{{jobs}}}, "task": {{"type": {task_type}, "index": {index}}},
                "rpc_layer": {layer}}}"#
        )
    })
}

/// Asks for everything there is to ask.
fn ask(resolver: &dyn ClusterResolver) {
    if let Ok(spec) = resolver.cluster_spec() {
        let tasks: usize = spec.jobs().map(|job| spec.task_count(job)).sum();
        assert!(tasks <= MAX_TASKS);
        for job in spec.jobs() {
            let _ = spec.job_tasks(job);
        }
        let read = ClusterSpec::parse(&tf_dict(&spec)).unwrap();
        assert!(read == spec || spec.has_unknown_addresses());
    }
    let _ = (
        resolver.task_type(),
        resolver.task_id(),
        resolver.master(),
        resolver.rpc_layer(),
    );
    let _ = (resolver.local_rank(), resolver.own_port());
    let _ = (resolver.num_accelerators(), resolver.environment());
    if let Ok(Some(cluster)) = Cluster::resolve(resolver) {
        let count = cluster.worker_count();
        assert!(
            cluster
                .rank()
                .is_none_or(|rank| rank < count.max(cluster.task_id() + 1))
        );
        let _ = (
            cluster.address(),
            cluster.leader_address(),
            cluster.is_chief(),
        );
    }
    assert!(resolver.describe().to_string().len() < 4000);
}

fn tf_dict(spec: &ClusterSpec) -> String {
    serde_json::to_string(&spec.as_dict()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_hostlist(list in hostlist_like()) {
        if let Ok(hosts) = expand_hostlist(&list) {
            prop_assert!(hosts.len() <= MAX_TASKS);
        }
        if let Ok(counts) = expand_tasks_per_node(&list) {
            prop_assert!(counts.iter().sum::<usize>() <= MAX_TASKS);
        }
    }

    #[test]
    fn hosts_expand_back(first in 0_u64..2000, count in 0_u64..50, width in 1_usize..6) {
        let last = first + count;
        let hosts = expand_hostlist(&format!("n[{first:0width$}-{last}],z")).unwrap();
        let mut expected: Vec<_> = (first..=last).map(|i| format!("n{i:0width$}")).collect();
        expected.push("z".to_string());
        prop_assert_eq!(hosts, expected);
    }

    #[test]
    fn any_index(text in any::<String>(), number in any::<i64>()) {
        let _ = parse_task_index(&text);
        prop_assert_eq!(parse_task_index(&number.to_string()), Ok(number));
    }

    #[test]
    fn any_tf_config(text in prop_oneof![any::<String>(), config_like()]) {
        let env = Env::from([("TF_CONFIG".to_string(), text)]);
        ask(&TfConfigResolver::new(env));
    }

    #[test]
    fn any_variables(values in prop::collection::btree_map(
        prop::sample::select(VARIABLES.to_vec()),
        prop_oneof![hostlist_like(), "[0-9]{1,6}", "[a-z]{1,4}-[0-9](-[0-9])?", "[0-9](,[0-9])?"],
        0..VARIABLES.len(),
    )) {
        let env: Env = values.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        for kind in ClusterKind::ALL {
            for rendezvous in [None, Some("h:1".to_string())] {
                let kind = Some(kind);
                let overrides = Overrides { kind, rendezvous, ..Overrides::default() };
                ask(&*detect_with(env.clone(), overrides).resolver);
            }
        }
        let detected = detect(env);
        prop_assert!(!detected.to_string().is_empty());
    }
}

const VARIABLES: [&str; 38] = [
    "PET_NODE_RANK",
    "PET_NNODES",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "JAX_PROCESS_ID",
    "JAX_NUM_PROCESSES",
    "JAX_COORDINATOR_ADDRESS",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "MPI_LOCALNRANKS",
    "LOCAL_RANK",
    "JSM_NAMESPACE_RANK",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_DIST_PLANESIZE",
    "SLURM_GPUS_ON_NODE",
    "CUDA_VISIBLE_DEVICES",
    "HOSTNAME",
    "JOB_COMPLETION_INDEX",
    "JOB_COMPLETIONS",
    "JOB_SUBDOMAIN",
    "JOBSET_NAME",
    "REPLICATED_JOB_NAME",
    "REPLICATED_JOB_REPLICAS",
    "JOBSET_JOBS",
];
