//! Ways into a job: what `doctor` says of each, and what is refused before anybody waits. That the
//! ways work between two hosts is tried by `.ci/ways`.

use std::process::Output;
use std::time::Instant;

use crate::common;
use crate::job::{self, Member};

/// Runs the program with these variables.
fn run(variables: &[(&str, &str)], arguments: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = common::program(folder.path());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["SLURM", "PMI", "OMPI_", "JOB_", "PET_", "JAX_"]
            .iter()
            .any(|it| name.starts_with(it))
        {
            command.env_remove(name);
        }
    }
    for name in [
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "LOCAL_RANK",
    ] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command.args(arguments.split_whitespace()).output().unwrap()
}

/// What `doctor` says, in one line.
fn doctor(variables: &[(&str, &str)]) -> String {
    let output = run(variables, "doctor");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

const CLUSTER: &str = r#""cluster":{"worker":["a:1","b:1"],"ps":["c:1"],"evaluator":["d:1"]}"#;

fn task(task_type: &str, index: usize) -> String {
    format!(r#"{{{CLUSTER},"task":{{"type":"{task_type}","index":{index}}}}}"#)
}

#[test]
fn doctor_says_what_this_process_is_and_why() {
    let worker = doctor(&[("TF_CONFIG", &task("worker", 1)), ("RANK", "1")]);
    for part in [
        "this process is worker 1, rank 1 of 2; it listens at b:1; the workers meet at a:1",
        "from tf-config (TF_CONFIG is set)",
        "not from torchrun: RANK set, but not WORLD_SIZE and MASTER_ADDR",
    ] {
        assert!(worker.contains(part), "{part}: {worker}");
    }
    let evaluator = doctor(&[("TF_CONFIG", &task("evaluator", 0))]);
    assert!(
        evaluator.contains("this process is evaluator 0; it does not train"),
        "{evaluator}"
    );
    assert!(
        !evaluator.contains("chief") && !evaluator.contains("rank"),
        "{evaluator}"
    );
    let server = doctor(&[("TF_CONFIG", &task("ps", 0))]);
    assert!(
        server.contains("this process is ps 0; it does not train"),
        "{server}"
    );
    let torchrun = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "host-0"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
    ];
    let text = doctor(&torchrun);
    for part in [
        "this process is worker 3, rank 3 of 4; it listens on a free port and sends it to rank 0",
        "the workers meet at host-0:29501",
        "not from open-mpi: started by Open MPI's mpirun, but torchrun comes first",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let alone = doctor(&[("TF_CONFIG", "{}")]);
    assert!(
        alone.contains("this process is on its own: it trains alone, on all data"),
        "{alone}"
    );
    assert!(
        alone.contains("not from tf-config: TF_CONFIG names no cluster"),
        "{alone}"
    );
    let unclear = doctor(&[("PMIX_RANK", "1")]);
    assert!(
        unclear.contains("cannot be used: PMIX_RANK is set"),
        "{unclear}"
    );
}

#[test]
fn doctor_knows_a_pod_of_kubeflow_trainer() {
    let trainer = [
        ("PET_NODE_RANK", "2"),
        ("PET_NNODES", "3"),
        ("PET_NPROC_PER_NODE", "4"),
        ("PET_MASTER_ADDR", "distribute-node-0-0.distribute"),
        ("PET_MASTER_PORT", "29500"),
        ("JOB_COMPLETION_INDEX", "2"),
    ];
    let text = doctor(&trainer);
    for part in [
        "this process is worker 2, rank 2 of 3; it listens on a free port and sends it to rank 0",
        "the workers meet at distribute-node-0-0.distribute:29500",
        "not from kubernetes: in a pod of an Indexed Job, but trainer comes first",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn doctor_says_the_same_as_json() {
    let output = run(
        &[("TF_CONFIG", &task("evaluator", 0))],
        "doctor --output json",
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let place = &report["place"];
    assert_eq!(place["task"], "evaluator 0");
    assert!(place["rank"].is_null());
    assert_eq!(place["is_chief"], false);
    assert_eq!(place["workers"], 2);
    assert!(
        place["purpose"]
            .as_str()
            .unwrap()
            .contains("measures the checkpoints")
    );
    assert!(
        place["reasons"][0]
            .as_str()
            .unwrap()
            .contains("TF_CONFIG is set")
    );
}

/// Each of these would train alone on all data, or wait in vain and blame others.
#[test]
fn a_process_that_cannot_find_the_others_says_so_at_once() {
    let train = "train --strategy multi-worker --insecure --model mlp --steps 2";
    let torchrun = |address, port| {
        vec![
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", address),
            ("MASTER_PORT", port),
        ]
    };
    let zero = r#"{"cluster":{"worker":["h:0","i:1"]},"task":{"type":"worker","index":1}}"#;
    for (variables, parts) in [
        (vec![("PMIX_RANK", "1")], ["PMIX_RANK", "--cluster none"]),
        (
            vec![("PMI_RANK", "1"), ("PMI_SIZE", "2")],
            ["MASTER_ADDR", "--rendezvous HOST:PORT"],
        ),
        (
            vec![
                ("RANK", "0"),
                ("WORLD_SIZE", "1"),
                ("MASTER_ADDR", "host"),
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
            ],
            ["contradict each other", "--cluster open-mpi"],
        ),
        (
            torchrun("127.0.0.1:29500", "1"),
            ["MASTER_ADDR", "MASTER_PORT=29500"],
        ),
        (torchrun("host", "0"), ["MASTER_PORT=0", "no port"]),
        (
            vec![("TF_CONFIG", zero)],
            ["TF_CONFIG: worker 0", "no port"],
        ),
    ] {
        let begun = Instant::now();
        let output = run(&variables, train);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(begun.elapsed() < common::LIMIT / 3, "{said}");
    }
    let alone = run(&[("PMIX_RANK", "1")], &format!("{train} --cluster none"));
    assert!(alone.status.success(), "{alone:?}");
}

/// The flag takes effect, or is an error that says why not.
#[test]
fn a_place_to_meet_at_is_refused_where_nothing_is_met() {
    let train = "train --strategy multi-worker --model mlp --steps 2";
    let list = ("TF_CONFIG", &*task("worker", 1));
    let numbers = vec![("RANK", "1"), ("WORLD_SIZE", "2")];
    for (variables, place, part) in [
        (
            vec![list],
            "h:9000",
            " h:9000: tf-config lists the address of every task",
        ),
        (vec![], "h:9000", " h:9000: nothing numbers the processes"),
        (numbers, "h", "=h: write it as HOST:PORT"),
    ] {
        let output = run(&variables, &format!("{train} --rendezvous {place}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{place}: {said}");
        assert!(
            said.contains(&format!("--rendezvous{part}")),
            "{place}: {said}"
        );
    }
}

/// Flags about the place of a process take effect, or are an error.
#[test]
fn what_would_say_nothing_in_this_cluster_is_refused() {
    let train = "train --strategy multi-worker --model mlp --steps 2";
    let list = ("TF_CONFIG", &*task("worker", 1));
    let spec = r#"--cluster-spec {"worker":["127.0.0.1:9"]} --task-type worker --task-id 0"#;
    let alone = "is about this process among others, and no cluster is described";
    for (variables, flags, part) in [
        (vec![list], "--port 7000", "--port is for SLURM"),
        (vec![list], "--port 7000 --dry-run", "--port is for SLURM"),
        (vec![], &format!("{spec} --port 7000"), "write it there"),
        (vec![], "--port 7000", alone),
        (vec![], "--task-type worker", alone),
        (vec![], "--task-id 0", alone),
        (
            vec![("PMIX_RANK", "1")],
            "--cluster none --port 7000",
            alone,
        ),
        (
            vec![],
            "--flight-records /proc/none",
            "--flight-records: /proc/none",
        ),
        (
            vec![],
            "--flight-records /proc/version",
            "/proc/version cannot be written",
        ),
        (
            vec![],
            "--flight-records /proc/version --dry-run",
            "cannot be written",
        ),
    ] {
        let output = run(&variables, &format!("{train} {flags}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags}: {said}");
        assert!(said.contains(part), "{flags}: {said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("new/records");
    let flags = format!("--flight-records {}", records.display());
    let output = run(&[], &format!("{train} {flags}"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        folder.path().read_dir().unwrap().count(),
        0,
        "nothing is left"
    );
    // Outputs that come last are checked first too.
    for output in [
        "predict --predictions /proc/none",
        "evaluate --picture /proc/version/x",
    ] {
        let output = run(&[], &format!("{output} --checkpoint-dir nowhere"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("cannot write /proc/"), "{said}");
    }
}

#[test]
fn ports_and_addresses_of_flags_are_checked_where_they_are_given() {
    let train = "train --strategy multi-worker --model mlp --steps 2";
    for (flags, part) in [
        ("--port 0", "--port"),
        ("--address host:1", "--address"),
        ("--address 0.0.0.0", "--address"),
        ("--address node1", "--address is for torchrun"),
    ] {
        let output = run(&[], &format!("{train} {flags}"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags}: {said}");
        assert!(said.contains(part), "{said}");
    }
    let launch = "launch --workers 1 --ports";
    for ports in ["0..3", "9..3", "x", "9000..70000"] {
        let output = run(&[], &format!("{launch} {ports} -- true"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--ports"), "{said}");
    }
    let token = [("DISTRIBUTE_JOB_TOKEN", "0123456789abcdef0123456789abcdef")];
    let meet = |at: &str| format!("launch --workers 1 --hosts 2 --host 0 --insecure {at} -- true");
    for (at, part) in [
        ("--rendezvous 127.0.0.1:0", "0 is no port"),
        ("--rendezvous 0.0.0.0:9000", "--host-address"),
        (
            "--rendezvous 192.0.2.1:9000 --host-address 127.0.0.1",
            "--host-address",
        ),
    ] {
        let output = run(&token, &meet(at));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part), "{said}");
    }
    let none = run(&[], "launch --workers 0 --ps 1 -- true");
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

/// Workers that know their numbers and one address meet and train what those with a list train,
/// whoever comes first, and two of them on each of two addresses.
#[test]
fn workers_with_one_place_to_meet_at_train_what_workers_with_a_list_train() {
    let folder = tempfile::tempdir().unwrap();
    let multi = format!("{} --steps 12", job::MULTI);
    let (_, listed) = job::succeed(folder.path(), 4, &multi);
    let [place] = &job::addresses(1)[..] else {
        panic!("one address was asked for");
    };
    let arguments = format!("{multi} --rendezvous {place} --address 127.0.0.1");
    let numbers = ["0", "1", "2", "3"];
    let start = |rank: &str| {
        let variables = [("PMI_RANK", rank), ("PMI_SIZE", "4")];
        Member::start(folder.path(), &arguments, &variables)
    };
    let mut workers: Vec<_> = numbers.iter().rev().map(|rank| start(rank)).collect();
    workers.reverse();
    let ended = job::finish(workers);
    for worker in &ended {
        assert_eq!(worker.code, Some(0), "{}", worker.stderr);
    }
    assert_eq!(job::hash(&ended[0].stdout), listed);
}
