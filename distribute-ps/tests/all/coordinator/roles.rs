//! What a program says about its cluster and its registrations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use distribute_core::cluster::TfConfigResolver;
use distribute_ps::{Program, PsError, Result, WorkerContext};

/// The error of a program in this cluster, as this task.
fn run_as(program: Program, cluster: &str, role: &str) -> Result<()> {
    let config = format!(r#"{{"cluster": {cluster}, "task": {{"type": "{role}", "index": 0}}}}"#);
    let env = BTreeMap::from([("TF_CONFIG".to_string(), config)]);
    program.run_in(&TfConfigResolver::new(env), |_| Ok(()))
}

const A: &str = r#"["127.0.0.1:1"]"#;

#[test]
fn a_cluster_without_ps_worker_or_chief_is_refused_in_every_role() {
    for (missing, present) in [
        ("ps", ["chief", "worker"]),
        ("worker", ["chief", "ps"]),
        ("chief", ["worker", "ps"]),
    ] {
        let [first, second] = present;
        let cluster = format!(r#"{{"{first}": {A}, "{second}": {A}}}"#);
        for role in present {
            let error = run_as(Program::new(), &cluster, role).unwrap_err();
            assert!(matches!(error, PsError::Role { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(&format!("no job `{missing}`")), "{text}");
            assert!(text.contains("TF_CONFIG"), "{text}");
        }
    }
}

#[test]
fn no_cluster_and_a_task_that_it_does_not_have() {
    let env = BTreeMap::<String, String>::new();
    let error = Program::new().run_in(&TfConfigResolver::new(env), |_| Ok(()));
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("set TF_CONFIG") && text.contains("launch --ps"),
        "{text}"
    );
    let cluster = format!(r#"{{"chief": {A}, "worker": {A}, "ps": {A}}}"#);
    let error = run_as(Program::new(), &cluster, "evaluator").unwrap_err();
    assert!(error.to_string().contains("evaluator"), "{error}");
}

#[test]
fn what_was_registered_wrongly_is_the_error_of_run() {
    let cluster = format!(r#"{{"chief": {A}, "worker": {A}, "ps": {A}}}"#);
    let mut program = Program::new();
    program.step("a", |_: &WorkerContext, (): ()| Ok(()));
    program.step("a", |_: &WorkerContext, (): ()| Ok(()));
    program.resource("", |_: &WorkerContext| Ok(()));
    let error = run_as(program, &cluster, "chief").unwrap_err();
    let PsError::AlreadyRegistered { kind, name } = &error else {
        panic!("{error}");
    };
    assert_eq!((*kind, name.as_str()), ("step", "a"));
}

#[test]
fn an_evaluator_calls_what_it_was_given() {
    let cluster = format!(r#"{{"chief": {A}, "worker": {A}, "ps": {A}, "evaluator": {A}}}"#);
    let error = run_as(Program::new(), &cluster, "evaluator").unwrap_err();
    assert!(error.to_string().contains("Program::evaluator"), "{error}");
    let called = Arc::new(AtomicBool::new(false));
    let seen = called.clone();
    let mut program = Program::new();
    program.evaluator(move |cluster| {
        assert_eq!(cluster.parameter_servers(), [Some("127.0.0.1:1")]);
        seen.store(true, Ordering::Relaxed);
        Ok(())
    });
    run_as(program, &cluster, "evaluator").unwrap();
    assert!(called.load(Ordering::Relaxed));
}
