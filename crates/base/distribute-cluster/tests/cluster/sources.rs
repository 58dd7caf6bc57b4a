//! Which of several sources counts, and where the ranks meet that one only numbers.

use distribute_cluster::{
    Cluster, ClusterError, ClusterKind, ClusterSpec, Overrides, detect, detect_with,
};
use rstest::rstest;

use crate::env;

/// Complete variables of each kind, about rank 1 of 2, in the order in which they are tried.
const SOURCES: [(ClusterKind, &str, &str); 8] = [
    (
        ClusterKind::TfConfig,
        r#"TF_CONFIG={"cluster":{"worker":["t:1","u:1"]},"task":{"type":"worker","index":1}}"#,
        "t:1",
    ),
    (
        ClusterKind::Torchrun,
        "RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=m\nMASTER_PORT=2",
        "m:2",
    ),
    (
        ClusterKind::OpenMpi,
        "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_SIZE=2",
        "127.0.0.1:8888",
    ),
    (
        ClusterKind::Mpi,
        "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALNRANKS=2\nMPI_LOCALRANKID=1",
        "127.0.0.1:8888",
    ),
    (
        ClusterKind::Slurm,
        "SLURM_JOB_ID=7\nSLURM_PROCID=1\nSLURM_STEP_NUM_TASKS=2\nSLURM_STEP_NODELIST=n[1-2]\n\
         SLURM_STEP_TASKS_PER_NODE=1(x2)",
        "n1:8888",
    ),
    (
        ClusterKind::Jax,
        "JAX_PROCESS_ID=1\nJAX_NUM_PROCESSES=2\nJAX_COORDINATOR_ADDRESS=j-node-0-0.j:29500",
        "j-node-0-0.j:29500",
    ),
    (
        ClusterKind::Trainer,
        "PET_NODE_RANK=1\nPET_NNODES=2\nPET_NPROC_PER_NODE=auto\nPET_MASTER_ADDR=p-node-0-0.p\n\
         PET_MASTER_PORT=29500",
        "p-node-0-0.p:29500",
    ),
    (
        ClusterKind::Kubernetes,
        "JOB_COMPLETION_INDEX=1\nHOSTNAME=k-1\nJOB_COMPLETIONS=2\nJOB_SUBDOMAIN=s",
        "k-0.s:8888",
    ),
];

/// Where rank 0 is by a source together with `MASTER_ADDR`, which is also torchrun's.
fn meeting(kind: ClusterKind, alone: &str, variables: &str) -> String {
    let is_mpi = matches!(kind, ClusterKind::OpenMpi | ClusterKind::Mpi);
    if variables.contains("\nMASTER_ADDR=m") && is_mpi {
        "m:2".to_string()
    } else {
        alone.to_string()
    }
}

#[test]
fn each_source_alone_says_rank_size_and_where_they_meet() {
    for (kind, variables, address) in SOURCES {
        let detected = detect(env(variables));
        assert_eq!(detected.kind, kind);
        assert_eq!(detected.passed_over, [], "{kind}");
        let cluster = Cluster::resolve(&*detected.resolver).unwrap().unwrap();
        assert_eq!((cluster.rank(), cluster.worker_count()), (Some(1), 2));
        assert_eq!(cluster.leader_address(), Some(address), "{kind}");
    }
}

/// Of two sources that fit each other the one that is tried first counts, and the other is named;
/// each of them counts when it is asked for.
#[test]
fn of_each_two_sources_the_first_counts_or_the_one_that_was_asked_for() {
    for (place, (kind, first, address)) in SOURCES.into_iter().enumerate() {
        for (other, second, other_address) in SOURCES.into_iter().skip(place + 1) {
            let both = format!("{first}\n{second}");
            let detected = detect(env(&both));
            // PMI says what srun says here: then SLURM counts, which has all addresses.
            let is_srun = (kind, other) == (ClusterKind::Mpi, ClusterKind::Slurm);
            let (wanted, alone) = if is_srun {
                (other, other_address)
            } else {
                (kind, address)
            };
            assert_eq!(detected.kind, wanted, "{both}");
            let passed: Vec<_> = detected.passed_over.iter().map(|it| it.kind).collect();
            let left = if is_srun { kind } else { other };
            assert_eq!(passed, [left], "{both}");
            let cluster = Cluster::resolve(&*detected.resolver).unwrap().unwrap();
            let wanted = meeting(wanted, alone, &both);
            assert_eq!(cluster.leader_address(), Some(wanted.as_str()), "{both}");

            let asked = Overrides {
                kind: Some(other),
                ..Overrides::default()
            };
            let detected = detect_with(env(&both), asked);
            let cluster = Cluster::resolve(&*detected.resolver).unwrap().unwrap();
            let wanted = meeting(other, other_address, &both);
            assert_eq!(cluster.leader_address(), Some(wanted.as_str()), "{both}");
        }
    }
}

const TORCHRUN_OF_4: &str = "RANK=3\nWORLD_SIZE=4\nLOCAL_RANK=1\nMASTER_ADDR=m";
const OMPI: &str = "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2";
const PMI: &str = "PMI_RANK=1\nPMI_SIZE=2";

/// mpirun starts an agent on each host, which starts the processes: the numbers of processes fit.
#[rstest]
#[case::the_same_numbers(&["RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=m", OMPI])]
#[case::two_per_agent(&[TORCHRUN_OF_4, OMPI])]
#[case::two_per_agent_of_hydra(&[TORCHRUN_OF_4, PMI])]
#[case::one_agent(&[TORCHRUN_OF_4, "PMI_RANK=0\nPMI_SIZE=1"])]
// torchrun gives ranks in another order, and hosts may start unequal numbers.
#[case::other_order(&["RANK=0\nWORLD_SIZE=2\nMASTER_ADDR=m\nTORCHELASTIC_RUN_ID=x\n\
                      GROUP_WORLD_SIZE=2", OMPI])]
#[case::unequal_hosts(&["RANK=2\nWORLD_SIZE=3\nMASTER_ADDR=m\nTORCHELASTIC_RUN_ID=x\n\
                        GROUP_WORLD_SIZE=2", OMPI])]
fn launchers_that_start_each_other_are_no_contradiction(#[case] variables: &[&str]) {
    let detected = detect(env(&variables.join("\n")));
    assert_eq!(detected.kind, ClusterKind::Torchrun);
    Cluster::resolve(&*detected.resolver).unwrap().unwrap();
}

/// Each of these processes would otherwise have the rank of another one, or train alone.
#[rstest]
#[case::mpirun_in_a_torchrun_of_one(
    &["RANK=0\nWORLD_SIZE=1\nMASTER_ADDR=m", OMPI],
    ["RANK=0 and WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2",
     "`--cluster torchrun` or `--cluster open-mpi`"]
)]
#[case::hydra_in_a_torchrun_of_one(
    &["RANK=0\nWORLD_SIZE=1\nMASTER_ADDR=m", PMI],
    ["RANK=0 and WORLD_SIZE=1", "PMI_RANK=1 and PMI_SIZE=2", "--cluster mpi"]
)]
#[case::other_ranks(
    &["RANK=0\nWORLD_SIZE=2\nMASTER_ADDR=m", OMPI],
    ["RANK=0", "OMPI_COMM_WORLD_RANK=1", "contradict each other"]
)]
#[case::no_multiple(
    &["RANK=0\nWORLD_SIZE=3\nMASTER_ADDR=m", OMPI],
    ["WORLD_SIZE=3", "OMPI_COMM_WORLD_SIZE=2", "contradict each other"]
)]
#[case::hydra_in_an_open_mpi(
    &[OMPI, "PMI_RANK=2\nPMI_SIZE=4"],
    ["OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=4", "`--cluster open-mpi` or `--cluster mpi`"]
)]
fn launchers_that_contradict_each_other_are_an_error(
    #[case] variables: &[&str],
    #[case] parts: [&str; 3],
) {
    for order in [
        variables.to_vec(),
        variables.iter().rev().copied().collect(),
    ] {
        let variables = order.join("\n");
        let detected = detect(env(&variables));
        let error = Cluster::resolve(&*detected.resolver).unwrap_err();
        let is_that = matches!(error, ClusterError::ContradictingLaunchers { .. });
        assert!(is_that, "{error}");
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Whoever says which ones count is believed.
        for kind in [
            ClusterKind::Torchrun,
            ClusterKind::OpenMpi,
            ClusterKind::Mpi,
        ] {
            let asked = Overrides {
                kind: Some(kind),
                rendezvous: Some("h:1".to_string()),
                ..Overrides::default()
            };
            let cluster = Cluster::resolve(&*detect_with(env(&variables), asked).resolver);
            let is_other = matches!(cluster, Err(ClusterError::MissingVariable { .. }));
            assert!(cluster.is_ok() || is_other, "{kind}: {cluster:?}");
        }
    }
}

fn at(rendezvous: &str) -> Overrides {
    Overrides {
        rendezvous: Some(rendezvous.to_string()),
        ..Overrides::default()
    }
}

/// Rank and size are enough, wherever they come from; what the launcher says of rank 0 gives way.
#[rstest]
#[case::by_hand("RANK=1\nWORLD_SIZE=3", ClusterKind::Torchrun)]
#[case::torchrun(
    "RANK=1\nWORLD_SIZE=3\nMASTER_ADDR=m\nMASTER_PORT=2\nTORCHELASTIC_USE_AGENT_STORE=True",
    ClusterKind::Torchrun
)]
#[case::open_mpi("OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=3", ClusterKind::OpenMpi)]
#[case::hydra("PMI_RANK=1\nPMI_SIZE=3\nMPI_LOCALNRANKS=1", ClusterKind::Mpi)]
#[case::jsm("JSM_NAMESPACE_RANK=1\nJSM_NAMESPACE_SIZE=3", ClusterKind::Mpi)]
#[case::jax("JAX_PROCESS_ID=1\nJAX_NUM_PROCESSES=3", ClusterKind::Jax)]
#[case::trainer("PET_NODE_RANK=1\nPET_NNODES=3", ClusterKind::Trainer)]
fn a_place_to_meet_at_replaces_the_list(#[case] variables: &str, #[case] kind: ClusterKind) {
    let detected = detect_with(env(variables), at("[2001:db8::1]:9000"));
    assert_eq!(detected.kind, kind);
    let cluster = Cluster::resolve(&*detected.resolver).unwrap().unwrap();
    let workers = [Some("[2001:db8::1]:9000"), None, None];
    assert_eq!(
        (cluster.workers(), cluster.rank()),
        (workers.to_vec(), Some(1))
    );
    let said = detected.to_string();
    assert!(
        said.contains("given: rendezvous=[2001:db8::1]:9000"),
        "{said}"
    );
    // The first port is that of the other ranks of a host.
    let ports = Overrides {
        port_base: Some(7000),
        ..at("h:9000")
    };
    let cluster = Cluster::resolve(&*detect_with(env(variables), ports).resolver);
    let cluster = cluster.unwrap().unwrap();
    assert_eq!(
        (cluster.leader_address(), cluster.own_port()),
        (Some("h:9000"), Some(7000))
    );
}

#[test]
fn ranks_of_one_host_listen_one_after_the_other_from_the_place_to_meet_at() {
    let variables = "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALNRANKS=2";
    let workers = |given| {
        let resolver = detect_with(env(variables), given).resolver;
        let cluster = Cluster::resolve(&*resolver).unwrap().unwrap();
        cluster
            .workers()
            .into_iter()
            .map(|it| it.unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        workers(at("127.0.0.1:9000")),
        ["127.0.0.1:9000", "127.0.0.1:9001"]
    );
    let ports = Overrides {
        port_base: Some(7000),
        ..at("127.0.0.1:9000")
    };
    assert_eq!(workers(ports), ["127.0.0.1:9000", "127.0.0.1:7001"]);
}

/// Nothing that was asked for is left undone silently.
#[test]
fn a_place_to_meet_at_that_has_no_effect_is_an_error() {
    let listed = SOURCES
        .into_iter()
        .filter(|(kind, ..)| !kind.says_only_where_to_meet());
    let mut cases: Vec<(&str, &str)> = listed
        .map(|(_, variables, _)| (variables, "lists the address of every task"))
        .collect();
    assert_eq!(cases.len(), 3);
    cases.push(("", "set RANK and WORLD_SIZE"));
    for (variables, why) in cases {
        let error = Cluster::resolve(&*detect_with(env(variables), at("h:1")).resolver);
        let error = error.unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, ClusterError::RendezvousUnused { .. }),
            "{text}"
        );
        assert!(
            text.starts_with("--rendezvous h:1: ") && text.contains(why),
            "{text}"
        );
    }
    let given = Overrides {
        cluster_spec: ClusterSpec::parse(r#"{"worker": ["a:1", "b:1"]}"#).ok(),
        ..at("h:1")
    };
    let error = Cluster::resolve(&*detect_with(env("RANK=0\nWORLD_SIZE=2"), given).resolver);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("--cluster-spec"), "{text}");
}

#[rstest]
#[case("h", "HOST:PORT")]
#[case("h:", "HOST:PORT")]
#[case("h:x", "HOST:PORT")]
#[case("h:65536", "HOST:PORT")]
#[case(":9", "there is no host")]
#[case("", "HOST:PORT")]
#[case("h:0", "0 is no port")]
#[case("tcp://h:9", "leave out tcp://")]
#[case("::1:9", "[2001:db8::1]:9000")]
#[case("[h]:9", "neither a name nor an IP address")]
#[case("0.0.0.0:9", "others can connect to")]
#[case("[::]:9", "others can connect to")]
#[case("my host:9", "without spaces")]
fn an_address_that_cannot_be_is_refused(#[case] address: &str, #[case] why: &str) {
    let given = detect_with(env("PMI_RANK=1\nPMI_SIZE=2"), at(address))
        .resolver
        .cluster_spec();
    let text = given.unwrap_err().to_string();
    assert!(
        text.starts_with("--rendezvous=") && text.contains(why),
        "{text}"
    );
    let variables =
        format!("JAX_PROCESS_ID=1\nJAX_NUM_PROCESSES=2\nJAX_COORDINATOR_ADDRESS={address}");
    let text = detect(env(&variables))
        .resolver
        .cluster_spec()
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("JAX_COORDINATOR_ADDRESS=") && text.contains(why),
        "{text}"
    );
}

/// Variables of Trainer that leave something out, and what users export for other programs.
#[rstest]
#[case(
    "PET_NNODES=2",
    Some("PET_NNODES set, but not PET_NODE_RANK and PET_MASTER_ADDR")
)]
#[case("PET_NODE_RANK=1\nPET_NNODES=2", Some("but not PET_MASTER_ADDR"))]
#[case(
    "JAX_PROCESS_ID=0\nJAX_NUM_PROCESSES=2",
    Some("but not JAX_COORDINATOR_ADDRESS")
)]
#[case("JAX_COORDINATOR_ADDRESS=h:1", None)]
#[case("PET_MASTER_ADDR=h", None)]
#[case("PET_NNODES=1\nPET_NODE_RANK=0", None)]
#[case("PET_NNODES=1:1\nPET_NODE_RANK=0", None)]
#[case(
    "PET_NNODES=1:3\nPET_RDZV_BACKEND=c10d\nPET_RDZV_ENDPOINT=h:1",
    Some("PET_NNODES (a range, of which only torchrun makes a number) set, but not PET_NODE_RANK")
)]
#[case("PET_NPROC_PER_NODE=4", None)]
fn incomplete_variables_of_trainer(#[case] variables: &str, #[case] seen: Option<&str>) {
    let cluster = Cluster::resolve(&*detect(env(variables)).resolver);
    match seen {
        None => assert_eq!(cluster, Ok(None)),
        Some(seen) => {
            let text = cluster.unwrap_err().to_string();
            assert!(text.contains(seen), "{text}");
        }
    }
}
