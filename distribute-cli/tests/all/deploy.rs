//! The files in `deploy/`: they parse, name flags that exist, and describe the cluster they mean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::common;

mod trainer;

const FILES: [&str; 9] = [
    "Dockerfile",
    "README.md",
    "elastic-jobset.yaml",
    "elastic.sbatch",
    "jobset.yaml",
    "slurm.sbatch",
    "tfjob.yaml",
    "trainer-v2.yaml",
    "two-hosts.sh",
];
const SCRIPTS: [&str; 3] = ["elastic.sbatch", "slurm.sbatch", "two-hosts.sh"];
const PROGRAM: &str = "distribute-cli";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn text(file: &str) -> String {
    std::fs::read_to_string(deploy().join(file)).unwrap()
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&text(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The long flags that a command's help prints.
fn flags(command: &str) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let help = common::succeed(folder.path(), &format!("{command} --help"));
    let lines = help.lines().map(str::trim_start);
    let named = lines.filter(|line| line.starts_with('-'));
    let flags = named.flat_map(|line| line.split([' ', ',']).filter(|word| is_flag(word)));
    let flags: BTreeSet<String> = flags.map(str::to_string).collect();
    assert!(flags.contains("--verbose"), "{command}: {help}");
    flags
}

fn is_flag(word: &str) -> bool {
    word.len() > 2 && word.starts_with("--")
}

/// Checks the flags of a command line without the program's name, also of the one it starts; how
/// many flags there were.
fn check_flags(file: &str, arguments: &[String]) -> usize {
    let command = &arguments[0];
    let known = flags(command);
    let mut count = 0;
    for (place, argument) in arguments.iter().enumerate() {
        if argument == "--" {
            assert_eq!(command, "launch", "{file}: only launch starts a command");
            return count + check_flags(file, &arguments[place + 2..]);
        }
        let name = argument.split('=').next().unwrap();
        if is_flag(name) {
            assert!(
                known.contains(name),
                "{file}: {command} has no {name}; it has {known:?}"
            );
            count += 1;
        }
    }
    count
}

/// Checks that the program itself accepts the command line up to the point where it would train:
/// `--help` at its end is reached after everything before it was read.
fn check_accepted(file: &str, arguments: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let end = arguments.iter().position(|argument| argument == "--");
    let own = &arguments[..end.unwrap_or(arguments.len())];
    let output = common::program(folder.path())
        .args(own)
        .arg("--help")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{file}: {own:?}: {output:?}");
}

/// An executable script of this name.
fn stub(folder: &Path, name: &str, script: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs a script of `deploy/` in this folder with a program that only writes its arguments to the
/// file `arguments`, the token to the file `token`, and ends with `code`.
fn run_script(folder: &Path, file: &str, code: u8, variables: &[(&str, &str)]) -> Output {
    let record = format!(
        "printf '%s\\n' \"$@\" >arguments\nprintf %s \"$DISTRIBUTE_JOB_TOKEN\" >token\nexit {code}"
    );
    let program = stub(folder, PROGRAM, &record);
    // As on Debian, a node knows its own name as a loopback address first.
    let getent =
        "[ \"$2\" = node7 ] && echo '127.0.1.1 STREAM node7'; echo '192.0.2.7 STREAM node'";
    stub(folder, "getent", getent);
    // What comes before the program are srun's own flags.
    stub(
        folder,
        "srun",
        "while [ \"${1#--}\" != \"$1\" ]; do shift; done\nexec \"$@\"",
    );
    stub(
        folder,
        "scontrol",
        "printf '%s ' \"$@\" >scontrol-arguments",
    );
    let path = format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    Command::new("timeout")
        .args(["60", "bash"])
        // An absolute path stays as it is.
        .arg(deploy().join(file))
        .args(["--model", "mlp"])
        .current_dir(folder)
        .env_remove("DISTRIBUTE_JOB_TOKEN")
        .env("PATH", path)
        .env("PROGRAM", program)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn recorded(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("arguments")).unwrap();
    text.lines().map(str::to_string).collect()
}

fn after<'a>(arguments: &'a [String], flag: &str) -> &'a str {
    let place = arguments.iter().position(|argument| argument == flag);
    &arguments[place.unwrap_or_else(|| panic!("no {flag} in {arguments:?}")) + 1]
}

/// The label by which Kueue starts the pods of a job together.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// The JobSets that files describe, from `spec` on.
fn jobsets() -> [(&'static str, Value); 3] {
    let [runtime, _] = trainer::documents();
    [
        ("jobset.yaml", yaml("jobset.yaml")),
        ("elastic-jobset.yaml", yaml("elastic-jobset.yaml")),
        ("trainer-v2.yaml", runtime["spec"]["template"].clone()),
    ]
}

/// What a JobSet does when a pod of its Job ends with this code, by the rules of JobSet and Job:
/// the first that matches counts.
fn jobset_action(set: &Value, code: u8) -> Option<String> {
    let job = &set["spec"]["replicatedJobs"][0]["template"]["spec"];
    let pod_rules = job["podFailurePolicy"]["rules"].as_array().unwrap();
    let matches = |rule: &&Value| {
        let values = rule["onExitCodes"]["values"].as_array();
        values.is_some_and(|values| values.contains(&json!(code)))
    };
    let place = pod_rules.iter().position(|rule| matches(&rule));
    let action = place.map(|place| pod_rules[place]["action"].as_str().unwrap());
    let (reason, message) = match (place, action) {
        (Some(place), Some("FailJob")) => (
            "PodFailurePolicy",
            format!(
                "Container distribute for pod default/it-0 failed with exit code {code} matching \
                 FailJob rule at index {place}"
            ),
        ),
        (_, Some("Ignore")) => return None,
        _ => (
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit".to_owned(),
        ),
    };
    let rules = set["spec"]["failurePolicy"]["rules"].as_array().unwrap();
    let holds = |rule: &&Value| {
        let reasons = rule["onJobFailureReasons"].as_array().unwrap();
        let patterns = rule["onJobFailureMessagePatterns"].as_array();
        // All that these patterns use is an end.
        let fits = |pattern: &Value| {
            let text = pattern.as_str().unwrap().strip_suffix('$').unwrap();
            message.ends_with(text)
        };
        reasons.contains(&json!(reason)) && patterns.is_none_or(|all| all.iter().any(fits))
    };
    let rule = rules.iter().find(holds);
    let action = rule.map_or("RestartJobSet", |rule| rule["action"].as_str().unwrap());
    Some(action.to_owned())
}

#[test]
fn a_jobset_starts_nothing_again_that_would_end_in_the_same_way() {
    for (file, set) in jobsets() {
        for code in [2, 43] {
            let action = jobset_action(&set, code);
            assert_eq!(action.as_deref(), Some("FailJobSet"), "{file}");
        }
        for code in [1, 137, 143] {
            let action = jobset_action(&set, code);
            assert_eq!(action.as_deref(), Some("RestartJobSet"), "{file}");
        }
        // The Job of the elastic JobSet starts that pod again by itself.
        let saved = (file != "elastic-jobset.yaml").then_some("RestartJobSetAndIgnoreMaxRestarts");
        assert_eq!(jobset_action(&set, 42).as_deref(), saved, "{file}");
    }
}

/// What workers share is in memory files, which count against the limit of their pod.
#[test]
fn pods_mount_no_memory_for_what_is_shared() {
    for (file, set) in jobsets() {
        let pod = &set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"];
        assert!(pod["containers"][0]["resources"]["limits"]["memory"].is_string());
        assert!(!pod.to_string().contains("/dev/shm"), "{file}");
        assert!(!pod["volumes"].to_string().contains("emptyDir"), "{file}");
    }
}

#[test]
fn the_directory_holds_these_files() {
    let entries = std::fs::read_dir(deploy()).unwrap();
    let names: BTreeSet<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let known: BTreeSet<String> = FILES.map(str::to_string).into();
    assert_eq!(names, known, "a new file needs a test here");
}

#[test]
fn the_scripts_are_valid_bash() {
    for file in SCRIPTS {
        let output = Command::new("bash")
            .arg("-n")
            .arg(deploy().join(file))
            .output()
            .unwrap();
        assert!(output.status.success(), "{file}: {output:?}");
    }
}

/// What people copy: the commands of the page, and those in comments.
#[test]
fn commands_in_text_name_existing_flags() {
    let commands = ["train", "launch", "certs", "doctor", "evaluate", "predict"];
    let mut flags = 0;
    let mut found = BTreeSet::new();
    for file in FILES {
        let text = text(file).replace("\\\n", " ");
        for line in text.lines() {
            let Some((_, rest)) = line.split_once(&format!("{PROGRAM} ")) else {
                continue;
            };
            let words = rest.split([' ', '`']).filter(|word| !word.is_empty());
            let arguments: Vec<String> = words
                .take_while(|word| *word != "#")
                .map(str::to_string)
                .collect();
            if commands.contains(&arguments[0].as_str()) {
                flags += check_flags(file, &arguments);
                found.insert(format!("{file} {}", arguments[0]));
            }
        }
    }
    for wanted in ["README.md certs", "README.md doctor", "two-hosts.sh certs"] {
        assert!(found.contains(wanted), "{wanted} is not among {found:?}");
    }
    assert!(flags >= 8, "only {flags} flags were found");
}

/// What a script starts, for each way in which the training ends; the job goes back into the queue
/// after those that a later start may mend.
fn requeued(script: &str, more: &[(&str, &str)], check: impl Fn(&[String])) {
    for (code, restarts, again) in [
        (0, "0", false),
        (1, "0", true),
        (1, "3", false),
        (2, "0", false),
        (43, "0", false),
        (42, "9", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut variables = vec![
            ("SLURM_JOB_ID", "351"),
            ("SLURM_RESTART_COUNT", restarts),
            ("SLURMD_NODENAME", "node7"),
        ];
        variables.extend(more);
        let output = run_script(folder.path(), script, code, &variables);
        assert_eq!(output.status.code(), Some(i32::from(code)), "{output:?}");
        let asked = std::fs::read_to_string(folder.path().join("scontrol-arguments"));
        let wanted = again.then(|| "requeue 351 ".to_string());
        assert_eq!(asked.ok(), wanted, "exit code {code}, restart {restarts}");
        let arguments = recorded(folder.path());
        check(&arguments);
        assert_eq!(after(&arguments, "--model"), "mlp");
        assert!(arguments.contains(&"--restartable".to_string()));
    }
}

/// The script asks SLURM for these.
fn asks_for(script: &str, options: &[&str]) {
    let text = text(script);
    for option in options {
        assert!(text.contains(&format!("\n#SBATCH {option}\n")), "{option}");
    }
}

#[test]
fn slurm_trains_and_goes_back_into_the_queue_when_it_is_told_to_stop() {
    let script = "slurm.sbatch";
    requeued(script, &[], |arguments| {
        assert!(check_flags(script, arguments) >= 7, "{arguments:?}");
        check_accepted(script, arguments);
        assert_eq!(after(arguments, "--certs"), "certs/node7");
        assert_eq!(after(arguments, "--port"), "13264");
    });
    let options = ["--requeue", "--signal=TERM@120", "--open-mode=append"];
    asks_for(script, &options);
}

/// The range of workers of `launch`, and what it starts, which the program accepts too.
fn check_elastic(file: &str, arguments: &[String]) -> (usize, usize) {
    assert!(check_flags(file, arguments) >= 12, "{arguments:?}");
    check_accepted(file, arguments);
    let inner = arguments.iter().position(|word| word == "--").unwrap() + 2;
    check_accepted(file, &arguments[inner..]);
    let total: usize = after(arguments, "--total-replicas").parse().unwrap();
    let (least, most) = after(arguments, "--workers").split_once("..").unwrap();
    let range = (least.parse().unwrap(), most.parse().unwrap());
    assert_eq!(after(arguments, "--hosts"), most, "a worker on each host");
    assert!(range.0 < range.1 && total >= range.1, "{range:?} {total}");
    range
}

#[test]
fn slurm_goes_on_without_lost_nodes_and_goes_back_into_the_queue() {
    let script = "elastic.sbatch";
    let place = [("SLURM_NNODES", "5"), ("SLURM_NODEID", "3")];
    requeued(script, &place, |arguments| {
        assert_eq!(check_elastic(script, arguments), (2, 5));
        assert_eq!(after(arguments, "--rendezvous"), "192.0.2.7:13264");
        assert_eq!(after(arguments, "--host"), "3");
        assert_eq!(after(arguments, "--certs"), "certs/192.0.2.7");
    });
    asks_for(script, &["--requeue", "--no-kill", "--signal=TERM@120"]);
}

#[test]
fn the_elastic_jobset_starts_a_launcher_in_each_pod() {
    let file = "elastic-jobset.yaml";
    let set = yaml(file);
    assert_eq!(set["apiVersion"], "jobset.x-k8s.io/v1alpha2");
    let name = set["metadata"]["name"].as_str().unwrap();
    let job = &set["spec"]["replicatedJobs"][0];
    let spec = &job["template"]["spec"];
    assert_eq!(spec["completionMode"], "Indexed");
    assert_eq!(spec["completions"], spec["parallelism"]);
    let rules = &spec["podFailurePolicy"]["rules"];
    assert_eq!(rules[0]["onExitCodes"]["values"], json!([42]));
    assert_eq!(rules[1]["onPodConditions"][0]["type"], "DisruptionTarget");
    let pod = &spec["template"];
    assert_eq!(pod["spec"]["restartPolicy"], "Never", "the job starts pods");
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    assert!(grace >= Some(60), "a checkpoint needs time");
    mounted_certificates(file, pod);
    let container = &pod["spec"]["containers"][0];
    assert_eq!(rules[0]["onExitCodes"]["containerName"], container["name"]);
    assert_eq!(container["command"], json!(["sh", "-c"]));
    let script = container["args"][0].as_str().unwrap();
    let first = format!("{name}-{}-0-0.{name}", job["name"].as_str().unwrap());
    assert!(
        script.contains(&format!("getent ahostsv4 {first})")),
        "{first}"
    );
    for (index, address) in [("0", "192.0.2.9:9000"), ("3", "192.0.2.7:9000")] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.sh");
        std::fs::write(&path, script).unwrap();
        let variables = [("JOB_COMPLETION_INDEX", index), ("POD_IP", "192.0.2.9")];
        let output = run_script(folder.path(), path.to_str().unwrap(), 0, &variables);
        assert!(output.status.success(), "{output:?}");
        let arguments = recorded(folder.path());
        let (least, most) = check_elastic(file, &arguments);
        assert_eq!(
            (least, Some(most as u64)),
            (2, spec["completions"].as_u64())
        );
        assert_eq!(after(&arguments, "--rendezvous"), address);
        assert_eq!(after(&arguments, "--host"), index);
        assert_eq!(after(&arguments, "--host-address"), "192.0.2.9");
    }
}

#[test]
fn slurm_without_certificates_has_to_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("SLURM_JOB_ID", "1"), ("INSECURE", "1")];
    let output = run_script(folder.path(), "slurm.sbatch", 0, &variables);
    assert!(output.status.success(), "{output:?}");
    let arguments = recorded(folder.path());
    check_accepted("slurm.sbatch", &arguments);
    assert!(arguments.contains(&"--insecure".to_string()));
    assert!(!arguments.contains(&"--certs".to_string()));
}

#[test]
fn two_hosts_keeps_the_token_out_of_the_arguments() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("certs/token");
    std::fs::create_dir_all(folder.path().join("certs/192.0.2.11")).unwrap();
    std::fs::write(&token, SECRET).unwrap();
    let variables = [
        ("HOST", "1"),
        ("RENDEZVOUS", "192.0.2.10:9000"),
        ("CERTS", "certs/192.0.2.11"),
    ];
    let run = |mode| {
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(mode)).unwrap();
        run_script(folder.path(), "two-hosts.sh", 0, &variables)
    };
    let refused = run(0o644);
    assert_eq!(refused.status.code(), Some(2), "others can read the token");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("chmod 600"), "{said}");
    let output = run(0o600);
    assert!(output.status.success(), "{output:?}");
    let arguments = recorded(folder.path());
    assert!(
        check_flags("two-hosts.sh", &arguments) >= 10,
        "{arguments:?}"
    );
    check_accepted("two-hosts.sh", &arguments);
    let inner = arguments.iter().position(|word| word == "--").unwrap() + 2;
    check_accepted("two-hosts.sh", &arguments[inner..]);
    assert_eq!(after(&arguments, "--host"), "1");
    assert_eq!(after(&arguments, "--rendezvous"), "192.0.2.10:9000");
    for part in [&arguments[..inner], &arguments[inner..]] {
        assert_eq!(after(part, "--certs"), "certs/192.0.2.11", "{part:?}");
    }
    assert!(!arguments.iter().any(|argument| argument.contains(SECRET)));
    let seen = std::fs::read_to_string(folder.path().join("token")).unwrap();
    assert_eq!(seen, SECRET, "it is handed on in the environment");
}

/// The command line of a pod's only container, without the program's name and with the variables
/// that Kubernetes puts in.
fn container_arguments(file: &str, pod: &Value, variables: &[(String, String)]) -> Vec<String> {
    let containers = pod["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "{file}");
    assert_eq!(containers[0]["command"], json!([PROGRAM]), "{file}");
    let arguments = containers[0]["args"].as_array().unwrap();
    arguments
        .iter()
        .map(|argument| {
            let mut argument = argument.as_str().expect("quote numbers").to_string();
            for (name, value) in variables {
                argument = argument.replace(&format!("$({name})"), value);
            }
            assert!(!argument.contains("$("), "{file}: {argument} is not set");
            argument
        })
        .collect()
}

/// The variables of a pod's container; `fields` is what Kubernetes knows of the pod.
fn container_variables(pod: &Value, fields: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let list = pod["spec"]["containers"][0]["env"].as_array();
    let variable = |entry: &Value| {
        let value = match entry["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some(path) => fields[path].clone(),
            None => entry["value"].as_str().expect("quote numbers").to_string(),
        };
        (entry["name"].as_str().unwrap().to_string(), value)
    };
    list.into_iter().flatten().map(variable).collect()
}

/// The paths of a pod's certificates, and that all volumes are there.
fn mounted_certificates(file: &str, pod: &Value) -> BTreeSet<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let names = |list: Vec<Value>| -> BTreeSet<String> {
        let name = |entry: &Value| entry["name"].as_str().unwrap().to_string();
        list.iter().map(name).collect()
    };
    let volumes = list(&pod["spec"]["volumes"]);
    let mounts = list(&pod["spec"]["containers"][0]["volumeMounts"]);
    assert_eq!(names(mounts), names(volumes.clone()), "{file}");
    let items = volumes
        .iter()
        .flat_map(|volume| list(&volume["secret"]["items"]));
    items
        .map(|item| format!("/certs/{}", item["path"].as_str().unwrap()))
        .collect()
}

/// Checks a pod's command line, and that the secret holds the certificates it names.
fn check_pod(file: &str, pod: &Value, variables: &[(String, String)]) -> Vec<String> {
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    assert!(grace >= Some(60), "{file}: a checkpoint needs time");
    let arguments = container_arguments(file, pod, variables);
    assert!(check_flags(file, &arguments) >= 4, "{arguments:?}");
    check_accepted(file, &arguments);
    let mounted = mounted_certificates(file, pod);
    if let Some(place) = arguments.iter().position(|word| word == "--certs") {
        let directory = &arguments[place + 1];
        for name in ["certificate.pem", "key.pem", "../ca.pem", "../token"] {
            let path = match name.strip_prefix("../") {
                Some(name) => format!("/certs/{name}"),
                None => format!("{directory}/{name}"),
            };
            assert!(mounted.contains(&path), "{file}: no {path} in {mounted:?}");
        }
    }
    arguments
}

/// What `doctor` says with these variables.
fn doctor(variables: &[(String, String)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = common::program(folder.path())
        .arg("doctor")
        .envs(variables.iter().cloned())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_jobset_is_the_cluster_that_the_resolver_finds() {
    let file = "jobset.yaml";
    let set = yaml(file);
    assert_eq!(set["apiVersion"], "jobset.x-k8s.io/v1alpha2");
    assert_eq!(set["kind"], "JobSet");
    assert!(set["metadata"]["labels"][QUEUE].is_string());
    let name = set["metadata"]["name"].as_str().unwrap();
    let jobs = set["spec"]["replicatedJobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 1);
    let (job, spec) = (&jobs[0], &jobs[0]["template"]["spec"]);
    assert_eq!(job["replicas"], 1);
    assert_eq!(spec["completionMode"], "Indexed");
    assert_eq!(spec["completions"], spec["parallelism"]);
    assert_eq!(spec["backoffLimit"], 0);
    let pod = &spec["template"];
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    let rule = &spec["podFailurePolicy"]["rules"][0];
    assert_eq!(rule["onExitCodes"]["values"], json!([42]));
    let container = &pod["spec"]["containers"][0]["name"];
    assert_eq!(rule["onExitCodes"]["containerName"], *container);

    let pods = spec["completions"].as_u64().unwrap();
    assert!(pods > 1);
    let annotation = |name: &str| format!("metadata.annotations['jobset.sigs.k8s.io/{name}']");
    let job = job["name"].as_str().unwrap();
    for index in 0..pods {
        let fields = [
            ("jobset-name", name),
            ("replicatedjob-name", job),
            ("job-index", "0"),
            ("restart-attempt", "2"),
        ];
        let fields = fields.map(|(name, value)| (annotation(name), value.to_string()));
        let mut variables = container_variables(pod, &fields.into());
        variables.push(("JOB_COMPLETION_INDEX".into(), index.to_string()));
        variables.push(("HOSTNAME".into(), format!("{name}-{job}-0-{index}")));
        let arguments = check_pod(file, pod, &variables);
        assert_eq!(after(&arguments, "--cluster"), "kubernetes");
        let said = doctor(&variables);
        let wanted = format!("this process is worker {index}, rank {index} of {pods}");
        assert!(said.contains(&wanted), "{said}");
        let port = pod["spec"]["containers"][0]["ports"][0]["containerPort"].to_string();
        assert!(variables.contains(&("JOB_PORT_BASE".into(), port)));
    }
}

#[test]
fn the_tfjob_is_the_cluster_that_the_operator_describes() {
    let file = "tfjob.yaml";
    let job = yaml(file);
    assert_eq!(job["apiVersion"], "kubeflow.org/v1");
    assert_eq!(job["kind"], "TFJob");
    let name = job["metadata"]["name"].as_str().unwrap();
    let specs = job["spec"]["tfReplicaSpecs"].as_object().unwrap();
    let types: BTreeSet<&str> = specs.keys().map(String::as_str).collect();
    assert_eq!(types, BTreeSet::from(["Chief", "Evaluator", "Worker"]));
    // As the operator does it: evaluators are not in the cluster.
    let mut cluster = BTreeMap::new();
    for role in ["Chief", "Worker"] {
        let kind = role.to_lowercase();
        let port = &specs[role]["template"]["spec"]["containers"][0]["ports"][0];
        assert_eq!(port["name"], "tfjob-port", "{role}");
        let port = &port["containerPort"];
        let address = |index| format!("{name}-{kind}-{index}.default.svc:{port}");
        let replicas = specs[role]["replicas"].as_u64().unwrap();
        let addresses: Vec<String> = (0..replicas).map(address).collect();
        cluster.insert(kind, addresses);
    }
    assert_eq!(cluster["chief"].len(), 1);
    let size: usize = cluster.values().map(Vec::len).sum();
    for (role, spec) in specs {
        assert_eq!(spec["restartPolicy"], "OnFailure", "{role}");
        let pod = &spec["template"];
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["name"], "tensorflow", "the operator wants this");
        let kind = role.to_lowercase();
        for index in 0..spec["replicas"].as_u64().unwrap() {
            let label = "metadata.labels['training.kubeflow.org/replica-index']";
            let fields = BTreeMap::from([(label.to_string(), index.to_string())]);
            let mut variables = container_variables(pod, &fields);
            let task = json!({"type": kind, "index": index});
            let config = json!({"cluster": cluster, "task": task, "environment": "cloud"});
            variables.push(("TF_CONFIG".into(), config.to_string()));
            let arguments = check_pod(file, pod, &variables);
            assert_eq!(after(&arguments, "--cluster"), "tf-config");
            let said = doctor(&variables);
            let wanted = match role.as_str() {
                "Chief" => format!("this process is chief 0, rank 0 of {size}"),
                "Worker" => format!("worker {index}, rank {} of {size}", index + 1),
                _ => format!("this process is evaluator {index}"),
            };
            assert!(said.contains(&wanted), "{wanted}: {said}");
        }
    }
}
