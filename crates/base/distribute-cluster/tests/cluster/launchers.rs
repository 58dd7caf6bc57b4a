//! What launchers say and leave out, and addresses that cannot be right.

use std::collections::BTreeMap;

use distribute_cluster::{
    Cluster, ClusterError, ClusterKind, ClusterSpec, Detected, Overrides, detect, detect_with,
};
use rstest::rstest;

use crate::{STEP, TORCHRUN, env};

/// The address of a rank that is not listed, and its port where a first one was chosen.
#[test]
fn the_place_on_a_host_is_that_of_the_launcher_or_of_the_addresses() {
    let torchrun = "RANK=3\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=h";
    let ports = Overrides {
        port_base: Some(7000),
        ..Overrides::default()
    };
    let resolve = |detected: Detected| Cluster::resolve(&*detected.resolver).unwrap().unwrap();
    let cluster = resolve(detect_with(env(torchrun), ports));
    assert_eq!(cluster.leader_address(), Some("h:7000"));
    assert_eq!((cluster.local_rank(), cluster.own_port()), (1, Some(7001)));
    let listed = r#"TF_CONFIG={"cluster": {"worker": ["a:1", "b:1", "a:2"]}, "task": {"type": "worker", "index": 2}}"#;
    let cluster = resolve(detect(env(listed)));
    assert_eq!((cluster.local_rank(), cluster.own_port()), (1, None));
}

#[rstest]
#[case::mpich("PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALNRANKS=1\nMPI_LOCALRANKID=0")]
#[case::intel("PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALRANKID=0")]
#[case::pals("PMI_RANK=1\nPMI_SIZE=2\nPALS_RANKID=1\nPALS_LOCAL_RANKID=0")]
#[case::mvapich("MV2_COMM_WORLD_RANK=1\nMV2_COMM_WORLD_SIZE=2\nMV2_COMM_WORLD_LOCAL_RANK=0")]
#[case::mvapich3("MVP_COMM_WORLD_RANK=1\nMVP_COMM_WORLD_SIZE=2\nMVP_COMM_WORLD_LOCAL_RANK=0")]
#[case::jsm("JSM_NAMESPACE_RANK=1\nJSM_NAMESPACE_SIZE=2\nPMIX_RANK=1")]
#[case::flux("FLUX_TASK_RANK=1\nFLUX_JOB_SIZE=2\nFLUX_TASK_LOCAL_ID=0\nPMI_RANK=1\nPMI_SIZE=2")]
#[case::horovod("HOROVOD_RANK=1\nHOROVOD_SIZE=2")]
fn other_launchers_number_the_workers(#[case] variables: &str) {
    let detected = detect(env(variables));
    assert_eq!(detected.kind, ClusterKind::Mpi);
    let error = Cluster::resolve(&*detected.resolver)
        .unwrap_err()
        .to_string();
    for way in ["MASTER_ADDR", "--rendezvous HOST:PORT"] {
        assert!(error.contains(way), "{error}");
    }
    let detected = detect(env(&format!(
        "{variables}\nMASTER_ADDR=h\nMASTER_PORT=9000"
    )));
    let cluster = Cluster::resolve(&*detected.resolver).unwrap().unwrap();
    assert_eq!(cluster.workers(), [Some("h:9000"), None]);
    assert_eq!(cluster.rank(), Some(1));
    // On one host the launcher says all there is to say.
    let one = format!("{variables}\nMPI_LOCALNRANKS=2");
    if variables.starts_with("PMI") {
        let cluster = Cluster::resolve(&*detect(env(&one)).resolver)
            .unwrap()
            .unwrap();
        assert_eq!(cluster.address(), Some("127.0.0.1:8889"));
    }
}

/// The variables of a launcher about rank 1 of 2: its rank, the number of processes, and what else
/// is a number.
struct Numbers {
    kind: ClusterKind,
    rank: &'static str,
    size: &'static str,
    /// With their values.
    others: &'static [(&'static str, &'static str)],
}

const LAUNCHERS: [Numbers; 11] = [
    Numbers {
        kind: ClusterKind::Torchrun,
        rank: "RANK",
        size: "WORLD_SIZE",
        others: &[("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0")],
    },
    Numbers {
        kind: ClusterKind::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        others: &[
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ],
    },
    // MPICH and Intel MPI.
    Numbers {
        kind: ClusterKind::Mpi,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        others: &[("MPI_LOCALNRANKS", "1"), ("MPI_LOCALRANKID", "0")],
    },
    // Cray's PMI.
    Numbers {
        kind: ClusterKind::Mpi,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        others: &[("PMI_LOCAL_SIZE", "1"), ("PMI_LOCAL_RANK", "0")],
    },
    // PALS.
    Numbers {
        kind: ClusterKind::Mpi,
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        others: &[("PALS_LOCAL_SIZE", "1"), ("PALS_LOCAL_RANKID", "0")],
    },
    Numbers {
        kind: ClusterKind::Mpi,
        rank: "MVP_COMM_WORLD_RANK",
        size: "MVP_COMM_WORLD_SIZE",
        others: &[
            ("MVP_COMM_WORLD_LOCAL_SIZE", "1"),
            ("MVP_COMM_WORLD_LOCAL_RANK", "0"),
        ],
    },
    Numbers {
        kind: ClusterKind::Mpi,
        rank: "MV2_COMM_WORLD_RANK",
        size: "MV2_COMM_WORLD_SIZE",
        others: &[
            ("MV2_COMM_WORLD_LOCAL_SIZE", "1"),
            ("MV2_COMM_WORLD_LOCAL_RANK", "0"),
        ],
    },
    Numbers {
        kind: ClusterKind::Mpi,
        rank: "JSM_NAMESPACE_RANK",
        size: "JSM_NAMESPACE_SIZE",
        others: &[
            ("JSM_NAMESPACE_LOCAL_SIZE", "1"),
            ("JSM_NAMESPACE_LOCAL_RANK", "0"),
        ],
    },
    Numbers {
        kind: ClusterKind::Mpi,
        rank: "FLUX_TASK_RANK",
        size: "FLUX_JOB_SIZE",
        others: &[("FLUX_TASK_LOCAL_ID", "0")],
    },
    Numbers {
        kind: ClusterKind::Jax,
        rank: "JAX_PROCESS_ID",
        size: "JAX_NUM_PROCESSES",
        others: &[],
    },
    Numbers {
        kind: ClusterKind::Trainer,
        rank: "PET_NODE_RANK",
        size: "PET_NNODES",
        others: &[],
    },
];

impl Numbers {
    /// Its variables, and where rank 0 is.
    fn variables(&self) -> BTreeMap<String, String> {
        let mut all = env("MASTER_ADDR=h\nPET_MASTER_ADDR=h\nJAX_COORDINATOR_ADDRESS=h:1");
        let own = [(self.rank, "1"), (self.size, "2")];
        let own = own.into_iter().chain(self.others.iter().copied());
        all.extend(own.map(|(name, value)| (name.to_string(), value.to_string())));
        all
    }

    /// What is said when the launcher was asked for by name.
    fn resolve(
        &self,
        variables: BTreeMap<String, String>,
    ) -> Result<Option<Cluster>, ClusterError> {
        let asked = Overrides {
            kind: Some(self.kind),
            ..Overrides::default()
        };
        Cluster::resolve(&*detect_with(variables, asked).resolver)
    }
}

#[test]
fn each_launcher_is_read_and_each_number_that_is_none_is_named() {
    for launcher in LAUNCHERS {
        let all = launcher.variables();
        let cluster = launcher.resolve(all.clone()).unwrap().unwrap();
        assert_eq!((cluster.rank(), cluster.worker_count()), (Some(1), 2));
        assert_eq!(cluster.local_rank(), 0);
        let others = launcher.others.iter().map(|(name, _)| *name);
        for name in [launcher.rank, launcher.size].into_iter().chain(others) {
            for value in [
                "x",
                "-1",
                "1.5",
                "",
                "1 2",
                "0x1",
                "99999999999999999999999",
            ] {
                let mut broken = all.clone();
                broken.insert(name.to_string(), value.to_string());
                let error = launcher.resolve(broken).unwrap_err().to_string();
                assert!(error.starts_with(&format!("{name}={value}")), "{error}");
            }
        }
    }
}

#[test]
fn each_variable_that_is_missing_is_named() {
    for launcher in LAUNCHERS {
        for name in [launcher.rank, launcher.size] {
            let mut rest = launcher.variables();
            rest.remove(name);
            let error = launcher.resolve(rest.clone()).unwrap_err();
            let is_that = matches!(error, ClusterError::MissingVariable { .. });
            assert!(is_that && error.to_string().starts_with(name), "{error}");
            // Also when it was not asked for by name.
            let error = Cluster::resolve(&*detect(rest).resolver).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}

/// As Trainer and PyTorchJob give it to the torchrun of an elastic job.
#[test]
fn a_range_of_processes_is_no_number_of_them() {
    let with = |nodes: &str, more: &str| {
        let all = format!("PET_NODE_RANK=1\nPET_NNODES={nodes}\nPET_MASTER_ADDR=h\n{more}");
        Cluster::resolve(&*detect(env(&all)).resolver)
    };
    let error = with("2:4", "").unwrap_err().to_string();
    for part in [
        "PET_NNODES=2:4: a range",
        "start the program with torchrun, which sets RANK and WORLD_SIZE",
        "set PET_NNODES to the number",
        "`distribute-cli launch --workers 2..4`",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // One that leaves no choice is a number.
    let cluster = with(" 3:3", "").unwrap().unwrap();
    assert_eq!((cluster.rank(), cluster.worker_count()), (Some(1), 3));
    // torchrun has made a number of it for its children.
    let child = "RANK=2\nWORLD_SIZE=3\nMASTER_ADDR=h";
    let cluster = with("2:4", child).unwrap().unwrap();
    assert_eq!((cluster.rank(), cluster.worker_count()), (Some(2), 3));
    for nodes in [":", "2:", ":4", "2:x", "2:4:6", "-1:4", "a:b"] {
        let error = with(nodes, "").unwrap_err().to_string();
        let said = format!("PET_NNODES={nodes}: a whole number is needed");
        assert_eq!(error, said);
    }
    let error = with("70000:70000", "").unwrap_err().to_string();
    assert!(error.contains("at most 65536 is allowed"), "{error}");
    // Other launchers have no ranges.
    let error = detect(env("RANK=0\nWORLD_SIZE=2:4\nMASTER_ADDR=h"))
        .resolver
        .cluster_spec();
    let error = error.unwrap_err().to_string();
    assert_eq!(error, "WORLD_SIZE=2:4: a whole number is needed");
}

/// Each of these processes would otherwise train alone on all data, and end with success.
#[rstest]
#[case("PMIX_RANK=1", "PMIX_RANK is set (PMIx)")]
#[case("PMI_ID=0", "PMI_ID is set")]
#[case("PALS_RANKID=3", "PALS_RANKID is set")]
#[case("ALPS_APP_PE=3", "ALPS_APP_PE is set")]
#[case(
    "PMI_RANK=1",
    "PMI_RANK is set (PMI (MPICH, Intel MPI, MVAPICH, PALS)), but not PMI_SIZE"
)]
#[case("JSM_NAMESPACE_SIZE=4", "but not JSM_NAMESPACE_RANK")]
#[case(
    "OMPI_COMM_WORLD_RANK=1",
    "OMPI_COMM_WORLD_RANK set, but not OMPI_COMM_WORLD_SIZE"
)]
#[case("RANK=1", "RANK set, but not WORLD_SIZE and MASTER_ADDR")]
#[case("RANK=0\nWORLD_SIZE=2", "RANK and WORLD_SIZE set, but not MASTER_ADDR")]
#[case("WORLD_SIZE=2\nMASTER_ADDR=h", "but not RANK")]
#[case(
    "SLURM_JOB_ID=1\nSLURM_PROCID=0\nSLURM_NTASKS=4",
    "use srun for its 4 tasks"
)]
#[case("SLURM_JOB_ID=1\nSLURM_NTASKS=4", "use srun for its 4 tasks")]
#[case("KUBERNETES_SERVICE_HOST=x\nJOBSET_NAME=s", "in a JobSet")]
#[case("JOB_COMPLETIONS=3", "not JOB_COMPLETION_INDEX")]
fn signs_of_a_launcher_that_says_too_little_are_an_error(
    #[case] variables: &str,
    #[case] seen: &str,
) {
    let detected = detect(env(variables));
    let error = Cluster::resolve(&*detected.resolver).unwrap_err();
    assert!(
        matches!(error, ClusterError::UnclearLauncher { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains(seen) && text.contains("--cluster none"),
        "{text}"
    );
    assert!(!detected.to_string().is_empty());
    let alone = Overrides {
        kind: Some(ClusterKind::OneProcess),
        ..Overrides::default()
    };
    let detected = detect_with(env(variables), alone);
    assert_eq!(Cluster::resolve(&*detected.resolver), Ok(None));
}

#[rstest]
#[case("")]
#[case("MASTER_ADDR=h\nMASTER_PORT=1")]
#[case("WORLD_SIZE=1")]
#[case("RANK=0\nWORLD_SIZE=1")]
#[case("SLURM_JOB_ID=1\nSLURM_PROCID=0\nSLURM_NTASKS=1")]
#[case("KUBERNETES_SERVICE_HOST=x")]
fn one_process_that_is_meant_to_be_alone_is_alone(#[case] variables: &str) {
    assert_eq!(
        Cluster::resolve(&*detect(env(variables)).resolver),
        Ok(None)
    );
}

#[test]
fn srun_that_also_speaks_pmi_is_slurm() {
    let both = format!("{STEP}\nPMI_RANK=2\nPMI_SIZE=5\nPMIX_RANK=2");
    let step = detect(env(STEP)).resolver.task_id().unwrap().unwrap();
    let both = both.replace("PMI_RANK=2", &format!("PMI_RANK={step}"));
    let size = env(STEP)["SLURM_STEP_NUM_TASKS"].clone();
    let both = both.replace("PMI_SIZE=5", &format!("PMI_SIZE={size}"));
    assert_eq!(detect(env(&both)).kind, ClusterKind::Slurm);
    let other = format!("{both}\nPMI_SIZE=77\nMASTER_ADDR=h");
    assert_eq!(detect(env(&other)).kind, ClusterKind::Mpi);
}

#[rstest]
#[case("127.0.0.1:29500", "MASTER_ADDR=127.0.0.1 and MASTER_PORT=29500")]
#[case("[::1]:29500", "MASTER_PORT=29500")]
#[case("host:29500", "MASTER_PORT=29500")]
#[case("tcp://host:29500", "leave out tcp://")]
#[case("0.0.0.0", "others can connect to")]
#[case("::", "others can connect to")]
#[case("my host", "without spaces")]
#[case("host/path", "slashes")]
#[case("1:2:3:zz", "neither a name nor an IP address")]
#[case(" ", "MASTER_ADDR is not set")]
fn a_master_address_that_cannot_be_is_refused(#[case] address: &str, #[case] why: &str) {
    let variables = format!("RANK=1\nWORLD_SIZE=2\nMASTER_ADDR={address}\nMASTER_PORT=9");
    let error = detect(env(&variables)).resolver.cluster_spec().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("MASTER_ADDR") && text.contains(why), "{text}");
}

#[test]
fn port_0_is_no_port_to_meet_at() {
    let variable = |text: &str| detect(env(text)).resolver.cluster_spec();
    for text in [
        "RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=h\nMASTER_PORT=0",
        "HOSTNAME=t-0\nJOB_COMPLETION_INDEX=0\nJOB_COMPLETIONS=2\nJOB_SUBDOMAIN=s\nJOB_PORT_BASE=0",
    ] {
        let error = variable(text).unwrap_err().to_string();
        assert!(
            error.contains("_PORT") && error.contains("0 is no port"),
            "{error}"
        );
    }
    for text in [STEP, TORCHRUN] {
        let zero = Overrides {
            port_base: Some(0),
            ..Overrides::default()
        };
        let error = detect_with(env(text), zero).resolver.cluster_spec();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("--port"), "{error}");
    }
}

#[rstest]
#[case(r#"["a:1", "b:0"]"#, 0, "worker 1 has the address 'b:0': 0 is no port")]
#[case(r#"["a:1", "b"]"#, 0, "write it as host:port")]
#[case(r#"["a:1", "b:99999"]"#, 0, "'99999' is not a port")]
#[case(r#"["a:1", "http://b:1"]"#, 0, "leave out http://, write b:1")]
#[case(r#"["a:1", "grpc://b:1"]"#, 0, "leave out grpc://")]
#[case(r#"["a:1", " b:1"]"#, 0, "without spaces")]
#[case(r#"["a:1", "2001:db8::1:7"]"#, 0, "needs brackets")]
#[case(r#"["a:1", "[host]:7"]"#, 0, "in brackets stands an IPv6 address")]
#[case(
    r#"["a:1", "a:1"]"#,
    0,
    "worker 1 has the address 'a:1': worker 0 has it too"
)]
#[case(r#"["a:1", "0.0.0.0:1"]"#, 0, "others can connect to")]
#[case(r#"["a:1", "[::]:1"]"#, 0, "others can connect to")]
#[case(
    r#"["10.0.0.1:1", "127.0.0.1:1"]"#,
    0,
    "worker 1 has the address '127.0.0.1:1': only its own"
)]
#[case(
    r#"["localhost:1", "10.0.0.1:1"]"#,
    1,
    "worker 0 has the address 'localhost:1': only its own"
)]
fn addresses_that_cannot_be_are_named_before_anybody_waits(
    #[case] workers: &str,
    #[case] own: usize,
    #[case] why: &str,
) {
    let task = format!(r#""task": {{"type": "worker", "index": {own}}}"#);
    let text = format!(r#"TF_CONFIG={{"cluster": {{"worker": {workers}}}, {task}}}"#);
    let error = Cluster::resolve(&*detect(env(&text)).resolver).unwrap_err();
    assert!(matches!(error, ClusterError::Address { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.starts_with("TF_CONFIG: ") && text.contains(why),
        "{text}"
    );
    let given = Overrides {
        cluster_spec: ClusterSpec::parse(&format!(r#"{{"worker": {workers}}}"#)).ok(),
        task_type: Some("worker".to_string()),
        task_id: i64::try_from(own).ok(),
        ..Overrides::default()
    };
    let error = Cluster::resolve(&*detect_with(env(""), given).resolver).unwrap_err();
    assert!(error.to_string().contains("--cluster-spec"), "{error}");
}

/// A rank behind a forwarded port listens at all addresses, and a process alone is not dialled.
#[rstest]
#[case(r#"["0.0.0.0:1", "127.0.0.1:1"]"#)]
#[case(r#"["0.0.0.0:1", "far.example:1"]"#)]
#[case(r#"["127.0.0.1:1", "localhost:2"]"#)]
#[case(r#"["[2001:db8::1]:1", "[fe80::1%eth0]:1", "worker_2:3"]"#)]
#[case(r#"["nowhere:0"]"#)]
fn addresses_that_can_be_are_taken(#[case] workers: &str) {
    let task = r#""task": {"type": "worker", "index": 0}"#;
    let text = format!(r#"TF_CONFIG={{"cluster": {{"worker": {workers}}}, {task}}}"#);
    assert!(Cluster::resolve(&*detect(env(&text)).resolver).is_ok());
}
