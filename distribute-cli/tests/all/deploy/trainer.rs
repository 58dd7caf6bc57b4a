//! `deploy/trainer-v2.yaml`: the runtime and the job of Kubeflow Trainer v2.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{QUEUE, after, check_pod, container_variables, doctor, text};

const FILE: &str = "trainer-v2.yaml";

/// The runtime and the job.
pub(super) fn documents() -> [Value; 2] {
    let found: Vec<Value> = serde_saphyr::from_multiple(&text(FILE)).unwrap();
    found.try_into().unwrap()
}

/// What Trainer's plugin for `mlPolicy.torch`, or for `mlPolicy.jax`, gives the container of a pod.
fn given(policy: &str, job: &Value, index: u64) -> Vec<(String, String)> {
    let name = job["metadata"]["name"].as_str().unwrap();
    let nodes = job["spec"]["trainer"]["numNodes"].to_string();
    let (first, port) = (format!("{name}-node-0-0.{name}"), "29500");
    let variables = match policy {
        "torch" => vec![
            ("PET_NNODES", nodes),
            // From the CPUs that a pod asks for.
            ("PET_NPROC_PER_NODE", "4".to_string()),
            ("PET_NODE_RANK", index.to_string()),
            ("PET_MASTER_ADDR", first),
            ("PET_MASTER_PORT", port.to_string()),
        ],
        _ => vec![
            ("JAX_NUM_PROCESSES", nodes),
            ("JAX_PROCESS_ID", index.to_string()),
            ("JAX_COORDINATOR_ADDRESS", format!("{first}:{port}")),
        ],
    };
    let all = variables.into_iter();
    all.map(|(name, value)| (name.to_string(), value)).collect()
}

/// What Trainer's webhook asks for, and what its plugins and JobSet look for.
#[test]
fn the_runtime_has_what_trainer_looks_for() {
    let [runtime, job] = documents();
    for document in [&runtime, &job] {
        assert_eq!(document["apiVersion"], "trainer.kubeflow.org/v1alpha1");
    }
    assert_eq!(runtime["kind"], "ClusterTrainingRuntime");
    assert_eq!(job["kind"], "TrainJob");
    let set = &runtime["spec"]["template"]["spec"];
    assert_eq!(set["network"]["enableDNSHostnames"], true);
    let jobs = set["replicatedJobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 1);
    let node = &jobs[0];
    assert_eq!(
        (&node["name"], &node["replicas"]),
        (&json!("node"), &json!(1))
    );
    let labels = &node["template"]["metadata"]["labels"];
    assert_eq!(
        labels["trainer.kubeflow.org/trainjob-ancestor-step"],
        "trainer"
    );
    let spec = &node["template"]["spec"];
    assert_eq!(spec["backoffLimit"], 0);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Never", "podFailurePolicy needs it");
    assert_eq!(pod["containers"][0]["name"], "node");
    for rule in spec["podFailurePolicy"]["rules"].as_array().unwrap() {
        assert_eq!(rule["onExitCodes"]["containerName"], "node");
    }
    // Trainer sets these, and refuses or overwrites the ones of a file.
    assert!(spec["completions"].is_null() && spec["parallelism"].is_null());
    let variables = pod["containers"][0]["env"].to_string();
    assert!(!variables.contains("PET_"), "{variables}");
    let reference = json!({
        "apiGroup": "trainer.kubeflow.org",
        "kind": runtime["kind"],
        "name": runtime["metadata"]["name"],
    });
    assert_eq!(job["spec"]["runtimeRef"], reference);
    let nodes = &job["spec"]["trainer"]["numNodes"];
    assert_eq!(nodes, &runtime["spec"]["mlPolicy"]["numNodes"]);
    assert!(job["metadata"]["labels"][QUEUE].is_string());
    assert_eq!(job["spec"]["suspend"], true, "until Kueue has room");
}

#[test]
fn the_pods_of_trainer_are_the_cluster_that_the_resolver_finds() {
    let [runtime, job] = documents();
    let policies = runtime["spec"]["mlPolicy"].as_object().unwrap();
    assert!(policies.contains_key("torch"), "{policies:?}");
    let name = job["metadata"]["name"].as_str().unwrap();
    let node = &runtime["spec"]["template"]["spec"]["replicatedJobs"][0];
    let pod = &node["template"]["spec"]["template"];
    let nodes = job["spec"]["trainer"]["numNodes"].as_u64().unwrap();
    assert!(nodes > 1);
    let annotation = |name: &str| format!("metadata.annotations['jobset.sigs.k8s.io/{name}']");
    let fields = [("jobset-name", name), ("restart-attempt", "2")];
    let fields = fields.map(|(name, value)| (annotation(name), value.to_string()));
    for index in 0..nodes {
        let mut variables = container_variables(pod, &BTreeMap::from(fields.clone()));
        variables.push(("JOB_COMPLETION_INDEX".into(), index.to_string()));
        variables.push(("HOSTNAME".into(), format!("{name}-node-0-{index}")));
        for (policy, kind) in [("torch", "trainer"), ("jax", "jax")] {
            let mut variables = variables.clone();
            variables.extend(given(policy, &job, index));
            let arguments = check_pod(FILE, pod, &variables);
            assert_eq!(after(&arguments, "--cluster"), "trainer");
            let own = format!("{name}-node-0-{index}.{name}");
            assert_eq!(after(&arguments, "--address"), own);
            let said = doctor(&variables);
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            for wanted in [
                format!("this process is worker {index}, rank {index} of {nodes}"),
                format!("the workers meet at {name}-node-0-0.{name}:29500"),
                format!("from {kind} "),
            ] {
                assert!(said.contains(&wanted), "{wanted}: {said}");
            }
        }
    }
}
