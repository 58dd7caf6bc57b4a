//! A cluster that is too large for an environment variable is in a file.

use std::fs;
use std::path::Path;

use distribute_cluster::{
    CLUSTER_FILE_VARIABLE, Cluster, ClusterError, ClusterKind, Environment, ProcessEnvironment,
    TfConfigResolver, detect,
};
use rstest::rstest;

use super::Env;

/// Variables as given, and the files of this machine.
struct Files(Env);

impl Environment for Files {
    fn var(&self, name: &str) -> Result<Option<String>, ClusterError> {
        self.0.var(name)
    }

    fn file(&self, path: &str, bytes_max: usize) -> Result<String, ClusterError> {
        ProcessEnvironment.file(path, bytes_max)
    }
}

/// `TF_CONFIG`, and the path of the file.
fn with_file(tf_config: &str, path: &Path) -> Files {
    let file = path.display().to_string();
    let variables = [("TF_CONFIG", tf_config), (CLUSTER_FILE_VARIABLE, &file)];
    Files(
        variables
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .into(),
    )
}

fn resolve(env: impl Environment + 'static) -> Result<Option<Cluster>, ClusterError> {
    Cluster::resolve(&*detect(env).resolver)
}

const WORKER_1: &str = r#"{"task": {"type": "worker", "index": 1}}"#;
const TWO: &str = r#"{"cluster": {"worker": ["h1:2222", "h2:2222"]}}"#;

#[rstest]
#[case::without_a_cluster(WORKER_1)]
#[case::with_a_remark(r#"{"cluster": "in the file", "task": {"type": "worker", "index": 1}}"#)]
#[case::with_nothing(r#"{"cluster": null, "task": {"type": "worker", "index": 1}}"#)]
fn the_file_has_the_cluster_and_tf_config_the_task(#[case] tf_config: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.json");
    fs::write(&path, TWO).unwrap();
    let detected = detect(with_file(tf_config, &path));
    assert_eq!(detected.kind, ClusterKind::TfConfig);
    let named = format!("{CLUSTER_FILE_VARIABLE}={}", path.display());
    assert!(detected.to_string().contains(&named), "{detected}");
    let cluster = Cluster::resolve(&*detected.resolver).unwrap().unwrap();
    assert_eq!(cluster.address(), Some("h2:2222"));
    assert_eq!((cluster.rank(), cluster.worker_count()), (Some(1), 2));
}

/// A variable of an outer launcher does no harm.
#[test]
fn a_cluster_in_tf_config_comes_first() {
    let tf_config = r#"{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}"#;
    let env = with_file(tf_config, Path::new("/no/such/file"));
    let resolver = TfConfigResolver::new(env);
    let cluster = Cluster::resolve(&resolver).unwrap().unwrap();
    assert_eq!(cluster.address(), Some("a:1"));
}

/// Names of the greatest length that DNS allows, 253 bytes: 2.6 MB, where a variable may have
/// 128 KiB.
#[test]
fn ten_thousand_tasks_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.json");
    let label = "x".repeat(60);
    let domain = [label.as_str(); 4].join(".");
    let address = |index: usize| format!("\"host-{index:04}.{domain}:{}\"", 20_000 + index % 100);
    let workers: Vec<String> = (0..10_000).map(address).collect();
    let text = format!("{{\"cluster\":{{\"worker\":[{}]}}}}", workers.join(","));
    assert!(text.len() > 19 * (128 << 10));
    fs::write(&path, text).unwrap();
    let tf_config = r#"{"task": {"type": "worker", "index": 9999}}"#;
    let cluster = resolve(with_file(tf_config, &path)).unwrap().unwrap();
    assert_eq!(
        (cluster.rank(), cluster.worker_count()),
        (Some(9999), 10_000)
    );
    let own = format!("host-9999.{domain}:20099");
    assert_eq!(cluster.address(), Some(own.as_str()));
    assert!(cluster.leader_address().unwrap().starts_with("host-0000."));
}

#[rstest]
#[case::no_json("{", "the file is not valid JSON")]
#[case::no_object("3", "must be a JSON object")]
#[case::no_cluster("{}", "a cluster must map job names")]
#[case::odd_cluster(r#"{"cluster": [1]}"#, "a cluster must map job names")]
#[case::odd_job(r#"{"cluster": {"worker": 7}}"#, "the tasks of job 'worker'")]
#[case::odd_address(r#"{"cluster": {"worker": ["a:1", "a"]}}"#, "write it as host:port")]
#[case::twice(r#"{"cluster": {"worker": ["a:1", "a:1"]}}"#, "worker 0 has it too")]
fn what_is_wrong_in_the_file_is_said_with_its_name(#[case] text: &str, #[case] why: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.json");
    fs::write(&path, text).unwrap();
    let error = resolve(with_file(WORKER_1, &path)).unwrap_err().to_string();
    let named = format!("{} (named by {CLUSTER_FILE_VARIABLE})", path.display());
    assert!(error.contains(&named) && error.contains(why), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_no_single_process() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("absent.json");
    let long = folder.path().join("long.json");
    let endless = Path::new("/dev/zero");
    fs::File::create(&long).unwrap().set_len(1 << 30).unwrap();
    for (path, why) in [
        (&*absent, "No such file"),
        (folder.path(), "no regular file"),
        (endless, "no regular file"),
        (&*long, "more than"),
    ] {
        let error = resolve(with_file(WORKER_1, path)).unwrap_err();
        assert!(
            matches!(error, ClusterError::UnreadableFile { .. }),
            "{error}"
        );
        let error = error.to_string();
        let named = path.display().to_string();
        assert!(error.contains(&named) && error.contains(why), "{error}");
        assert!(error.contains(CLUSTER_FILE_VARIABLE), "{error}");
    }
    // A map in a test has no files.
    let Files(map) = with_file(WORKER_1, &absent);
    let error = resolve(map).unwrap_err().to_string();
    assert!(error.contains("has no files"), "{error}");
}

#[test]
fn one_of_the_two_variables_is_not_enough() {
    let remark = format!(
        r#"{{"cluster": "see {CLUSTER_FILE_VARIABLE}", "task": {{"type": "worker", "index": 1}}}}"#
    );
    let alone = Env::from([("TF_CONFIG".to_string(), remark)]);
    let error = resolve(alone).unwrap_err();
    assert_eq!(error, ClusterError::NoClusterFile);
    let alone = Env::from([(CLUSTER_FILE_VARIABLE.to_string(), "file".to_string())]);
    let error = resolve(alone).unwrap_err().to_string();
    let said = format!("{CLUSTER_FILE_VARIABLE} set, but not TF_CONFIG");
    assert!(error.starts_with(&said), "{error}");
}
