//! What servers and clients refuse, and how they say so.

use distribute_core::TensorData;
use distribute_core::collectives::control::security::{Security, Token};
use distribute_ps::{
    ClientOptions, Gradient, NonFinite, ParameterServer, PsError, RunId, RunOptions, ServerOptions,
    VariableClient, VariableSpec,
};

use super::common::{Cluster, addresses, floats, sgd, values};
use crate::within_limit;

#[test]
fn nan_is_refused_as_a_whole_or_applied_by_choice() {
    within_limit(|| {
        for bad in [f32::NAN, f32::INFINITY] {
            for servers in [1, 3] {
                let mut cluster = Cluster::new(servers);
                let first = cluster.variable("first", 1, floats(&[2], |_| 1.0), sgd(1.0));
                let second = cluster.variable("second", 2, floats(&[4], |_| 1.0), sgd(1.0));
                let gradients = || {
                    let fine = Gradient::Dense(floats(&[2], |_| 1.0));
                    let broken = Gradient::Dense(floats(&[4], |i| if i == 3 { bad } else { 1.0 }));
                    vec![(first.clone(), fine), (second.clone(), broken)]
                };
                let error = cluster
                    .client
                    .push(cluster.id(0), gradients(), &[])
                    .unwrap_err();
                assert!(matches!(&error, PsError::NonFinite { name } if name == "second"));
                assert_eq!(values(&cluster.client.read("first").unwrap()), [1.0; 2]);
                assert_eq!(values(&cluster.client.read("second").unwrap()), [1.0; 4]);
            }
        }
        let mut rules = RunOptions::default();
        rules.non_finite = NonFinite::Apply;
        let mut cluster = Cluster::with(2, rules);
        let weights = cluster.variable("w", 2, floats(&[2], |_| 1.0), sgd(1.0));
        let gradient = Gradient::Dense(floats(&[2], |_| f32::NAN));
        cluster
            .client
            .push(cluster.id(0), vec![(weights, gradient)], &[])
            .unwrap();
        let found = values(&cluster.client.read("w").unwrap());
        assert!(found.iter().all(|value| value.is_nan()));
    });
}

#[test]
fn wrong_shapes_types_rows_and_names_are_named() {
    within_limit(|| {
        let mut cluster = Cluster::new(2);
        let client = cluster.client.clone();
        let w = cluster.variable("w", 2, floats(&[4, 2], |_| 0.0), sgd(1.0));
        let push = |gradient| client.push(cluster.id(0), vec![(w.clone(), gradient)], &[]);
        let error = push(Gradient::Dense(floats(&[8], |_| 0.0))).unwrap_err();
        assert!(
            matches!(&error, PsError::Shape { expected, found, .. }
                if expected == &[4, 2] && found == &[8]),
            "{error}"
        );
        let integers = TensorData::new(vec![1_i64; 8], [4, 2]);
        let error = push(Gradient::Dense(integers)).unwrap_err();
        assert!(matches!(error, PsError::DType { .. }), "{error}");
        let rows = |ids: Vec<u64>, shape: &[usize]| Gradient::Sparse {
            ids,
            rows: floats(shape, |_| 1.0),
        };
        let error = push(rows(vec![1, 4], &[2, 2])).unwrap_err();
        assert!(
            matches!(
                error,
                PsError::Row {
                    row: 4,
                    rows: 4,
                    ..
                }
            ),
            "{error}"
        );
        let error = push(rows(vec![1], &[2, 2])).unwrap_err();
        assert!(matches!(error, PsError::Shape { .. }), "{error}");
        let error = client.pull_rows(&w, &[0, 9]).unwrap_err();
        assert!(matches!(error, PsError::Row { row: 9, .. }), "{error}");
        let error = client.read("unknown").unwrap_err();
        assert!(matches!(&error, PsError::UnknownVariable { name } if name == "unknown"));
        let placement = cluster.place(&[2], 1);
        let spec = VariableSpec {
            name: "w".to_string(),
            shape: vec![2],
            dtype: w.dtype(),
            optimizer: None,
        };
        let error = client.create(&spec, &placement).unwrap_err();
        assert!(matches!(error, PsError::VariableExists { .. }), "{error}");
        let fresh = VariableSpec {
            name: "fresh".to_string(),
            ..spec.clone()
        };
        client.create(&fresh, &placement).unwrap();
        let error = client.read("fresh").unwrap_err();
        assert!(matches!(error, PsError::Uninitialized { .. }), "{error}");
        // Nothing of all this changed anything.
        assert_eq!(values(&client.read("w").unwrap()), [0.0; 8]);
    });
}

#[test]
fn optimizers_that_the_servers_do_not_know_are_refused() {
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        let placement = cluster.place(&[2], 1);
        let mut spec = VariableSpec {
            name: "w".to_string(),
            shape: vec![2],
            dtype: floats(&[1], |_| 0.0).dtype(),
            optimizer: sgd(0.1),
        };
        let known = spec.optimizer.as_mut().unwrap();
        known.name = "lioness".to_string();
        let error = cluster
            .client
            .create(&spec, &placement)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("lioness") && error.contains("rmsprop, sgd;"),
            "{error}"
        );
        let known = spec.optimizer.as_mut().unwrap();
        known.name = "sgd".to_string();
        known.config = serde_json::json!({"learning_rate": "high"});
        let error = cluster
            .client
            .create(&spec, &placement)
            .unwrap_err()
            .to_string();
        assert!(error.contains("learning_rate"), "{error}");
    });
}

#[test]
fn limits_are_typed_errors_that_name_the_option() {
    within_limit(|| {
        let mut options = ServerOptions::default();
        options.max_shard_bytes = 64;
        options.max_request_bytes = 100;
        options.max_memory_bytes = 200;
        options.max_variables = 3;
        let rules = RunOptions::default();
        let mut cluster = Cluster::start(1, rules, options, ClientOptions::default());
        let client = cluster.client.clone();
        let dtype = floats(&[1], |_| 0.0).dtype();
        let spec = |name: &str, rows: usize| VariableSpec {
            name: name.to_string(),
            shape: vec![rows],
            dtype,
            optimizer: None,
        };
        let whole = cluster.place(&[20], 1);
        let error = client.create(&spec("large", 20), &whole).unwrap_err();
        assert!(
            matches!(&error, PsError::TooLarge { bytes: 80, limit: 64, option, .. }
                if *option == "max_shard_bytes"),
            "{error}"
        );
        assert!(error.to_string().contains("partitioner"), "{error}");
        let a = cluster.variable("a", 1, floats(&[15], |_| 0.0), None);
        let b = cluster.variable("b", 1, floats(&[15], |_| 0.0), None);
        let shape = cluster.place(&[15], 1);
        client.create(&spec("c", 15), &shape).unwrap();
        let error = client
            .create(&spec("d", 1), &cluster.place(&[1], 1))
            .unwrap_err();
        assert!(matches!(error, PsError::Full { .. }), "{error}");
        let gradients = [a, b].map(|variable| (variable, Gradient::Dense(floats(&[15], |_| 1.0))));
        let error = client
            .push(cluster.id(0), gradients.into(), &[])
            .unwrap_err();
        assert!(
            matches!(&error, PsError::TooLarge { bytes: 120, limit: 100, option, .. }
                if *option == "max_request_bytes"),
            "{error}"
        );
    });
}

#[test]
fn other_tokens_and_other_kinds_of_processes_are_refused() {
    within_limit(|| {
        let security = |token: &str| Security::default().token(Token::new(token).unwrap());
        let options = ServerOptions::new(0, security("0123456789abcdef"));
        let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
        let connect = |security: Security| {
            let mut options = ClientOptions::default();
            options.security = security;
            VariableClient::connect(&[server.address().to_string()], options)
        };
        for wrong in [security("another-token-16"), Security::default()] {
            let error = connect(wrong).unwrap_err();
            assert!(matches!(error, PsError::Refused { .. }), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("token") && !text.contains("0123456789abcdef"),
                "{text}"
            );
        }
        let client = connect(security("0123456789abcdef")).unwrap();
        client
            .attach(RunId::random().unwrap(), RunOptions::default())
            .unwrap();
    });
}

#[test]
fn a_run_is_told_from_others() {
    within_limit(|| {
        let mut cluster = Cluster::new(1);
        let w = cluster.variable("w", 1, floats(&[2], |_| 0.0), sgd(1.0));
        let other = RunId::random().unwrap();
        let second =
            VariableClient::connect(&addresses(&cluster.servers), ClientOptions::default())
                .unwrap();
        // A coordinator that is there keeps its servers.
        let error = second.attach(other, RunOptions::default()).unwrap_err();
        assert!(matches!(error, PsError::OtherRun { .. }), "{error}");
        let error = second.join(other).unwrap_err();
        assert!(matches!(error, PsError::OtherRun { .. }), "{error}");
        let worker = cluster.worker();
        let update = cluster.id(0);
        let servers = std::mem::take(&mut cluster.servers);
        drop(cluster);
        // The coordinator has gone: a new one begins anew.
        let mut attached = second.attach(other, RunOptions::default());
        for _ in 0..200 {
            if attached.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            attached = second.attach(other, RunOptions::default());
        }
        attached.unwrap();
        assert!(second.variables().unwrap().is_empty());
        // An update of the old run is not applied.
        let gradient = Gradient::Dense(floats(&[2], |_| 1.0));
        let error = worker.push(update, vec![(w, gradient)], &[]).unwrap_err();
        assert!(matches!(error, PsError::OtherRun { .. }), "{error}");
        drop(servers);
    });
}

#[test]
fn calls_outside_of_a_run_say_so() {
    within_limit(|| {
        let server = ParameterServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let address = [server.address().to_string()];
        let client = VariableClient::connect(&address, ClientOptions::default()).unwrap();
        let error = client.variables().unwrap_err();
        assert!(error.to_string().contains("attach"), "{error}");
        let error = client.join(RunId::random().unwrap()).unwrap_err();
        assert!(matches!(error, PsError::OtherRun { .. }), "{error}");
        let none: [&str; 0] = [];
        let error = VariableClient::connect(&none, ClientOptions::default()).unwrap_err();
        assert!(error.to_string().contains("`ps`"), "{error}");
    });
}
