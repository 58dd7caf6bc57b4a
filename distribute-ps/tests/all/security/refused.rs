//! Who is refused, what both sides say about it, and how soon.

use std::sync::Arc;
use std::time::Duration;

use distribute_core::collectives::control::security::{Security, Token};
use distribute_ps::{
    ClientOptions, ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, RunId,
    RunOptions, ServerOptions, StepRegistry, VariableClient, WorkerOptions, WorkerServer,
};

use super::certificates::{Authority, OTHER, TOKEN};
use crate::stopwatch::Stopwatch;
use crate::within_limit;

/// How long a process waits in these tests for one that comes with the right credentials.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(1);
/// How soon one with wrong credentials must know; it would go on dialling for longer.
const SOON: Duration = Duration::from_secs(8);
const DIALS: Duration = Duration::from_secs(20);

/// What the dialling and the listening side say, of a parameter server and of a worker.
fn meet(listening: &Security, dialling: &Security) -> [(PsError, PsError); 2] {
    [
        of_server(listening, dialling),
        of_worker(listening, dialling),
    ]
}

fn of_server(listening: &Security, dialling: &Security) -> (PsError, PsError) {
    let mut begun = Stopwatch::start();
    let mut options = ServerOptions::new(3, listening.clone());
    options.coordinator_timeout = COORDINATOR_TIMEOUT;
    let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
    let mut options = ClientOptions::default();
    options.security = dialling.clone();
    options.connect_timeout = DIALS;
    let addresses = [server.address().to_string()];
    begun.restart();
    let error = VariableClient::connect(&addresses, options).unwrap_err();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    (error, server.wait(Some(SOON)).unwrap_err())
}

fn of_worker(listening: &Security, dialling: &Security) -> (PsError, PsError) {
    let mut begun = Stopwatch::start();
    let registry = Arc::new(StepRegistry::new());
    let mut options = WorkerOptions::default();
    options.security = listening.clone();
    options.coordinator_timeout = COORDINATOR_TIMEOUT;
    let worker = WorkerServer::bind("127.0.0.1:0", registry.clone(), options).unwrap();
    let mut options = CoordinatorOptions::default();
    options.security = dialling.clone();
    options.connect_timeout = DIALS;
    let addresses = [worker.address().to_string()];
    let none: [&str; 0] = [];
    begun.restart();
    let error = ClusterCoordinator::connect(&addresses, &none, registry, options);
    let error = error.unwrap_err();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    (error, worker.serve().unwrap_err())
}

/// Both sides refuse with these words, and show no token.
#[track_caller]
fn refused(listening: &Security, dialling: &Security, words: [&str; 2]) {
    let [of_dialling, of_listening] = words;
    for (dialled, listened) in meet(listening, dialling) {
        assert!(matches!(dialled, PsError::Refused { .. }), "{dialled}");
        assert!(dialled.to_string().contains(of_dialling), "{dialled}");
        assert!(
            matches!(listened, PsError::NoCoordinator { .. }),
            "{listened}"
        );
        assert!(listened.to_string().contains(of_listening), "{listened}");
        let shown = format!("{dialled} {dialled:?} {listened} {listened:?}");
        for secret in [TOKEN, OTHER] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

fn token(token: &str) -> Security {
    Security::default().token(Token::new(token).unwrap())
}

#[test]
fn wrong_and_missing_tokens_are_refused_by_both() {
    within_limit(|| {
        let ca = Authority::new();
        let words = ["its token is another one"; 2];
        refused(&token(TOKEN), &token(OTHER), words);
        refused(&ca.security(), &ca.with(OTHER), words);
        let words = ["it has a token, this process has none", "it has no token"];
        refused(&token(TOKEN), &Security::default(), words);
        let words = ["it has no token, this process has one", "it has a token"];
        refused(&Security::default(), &token(TOKEN), words);
    });
}

#[test]
fn certificates_of_others_are_refused_by_both() {
    within_limit(|| {
        let (ca, other) = (Authority::new(), Authority::new());
        refused(
            &ca.security(),
            &other.security(),
            [
                "was not issued by the CA",
                "does not accept the certificate",
            ],
        );
        let expired = token(TOKEN).tls(ca.signs("127.0.0.1", true));
        refused(&ca.security(), &expired, ["has expired", "has expired"]);
        refused(&expired, &ca.security(), ["has expired", "has expired"]);
        let elsewhere = token(TOKEN).tls(ca.signs("192.0.2.1", false));
        refused(
            &elsewhere,
            &ca.security(),
            [
                "not for the host of its address",
                "does not accept the certificate",
            ],
        );
    });
}

#[test]
fn processes_with_and_without_tls_do_not_meet_and_say_why() {
    within_limit(|| {
        let ca = Authority::new();
        let words = [
            "it uses TLS, this process does not",
            "it does not use TLS, this process does",
        ];
        refused(&ca.security(), &token(TOKEN), words);
        let words = ["it does not use TLS, this process does", "it uses TLS"];
        refused(&token(TOKEN), &ca.security(), words);
    });
}

#[test]
fn who_was_refused_does_not_keep_the_right_one_out() {
    within_limit(|| {
        let (ca, other) = (Authority::new(), Authority::new());
        let server =
            ParameterServer::bind("127.0.0.1:0", ServerOptions::new(0, ca.security())).unwrap();
        let connect = |security: Security| {
            let mut options = ClientOptions::default();
            options.security = security;
            options.connect_timeout = DIALS;
            VariableClient::connect(&[server.address().to_string()], options)
        };
        for wrong in [ca.with(OTHER), other.security(), token(TOKEN)] {
            connect(wrong).unwrap_err();
        }
        let right = connect(ca.security()).unwrap();
        let run = RunId::random().unwrap();
        right.attach(run, RunOptions::default()).unwrap();
        for wrong in [ca.with(OTHER), other.security(), token(TOKEN)] {
            connect(wrong).unwrap_err();
        }
        assert!(right.variables().unwrap().is_empty());
    });
}

/// Beyond loopback both a token and TLS are demanded, or the word `insecure`.
#[test]
fn a_server_on_an_open_network_needs_a_token_or_tls() {
    within_limit(|| {
        let ca = Authority::new();
        let only_tls = Security::default().tls(ca.signs("127.0.0.1", false));
        for (security, missing) in [
            (Security::default(), "token and TLS"),
            (token(TOKEN), "TLS"),
            (only_tls, "token"),
        ] {
            let options = ServerOptions::new(0, security.clone());
            let of_server = ParameterServer::bind("0.0.0.0:0", options).err();
            let mut options = WorkerOptions::default();
            options.security = security;
            let of_worker = WorkerServer::bind("0.0.0.0:0", Arc::default(), options).err();
            for error in [of_server, of_worker].map(Option::unwrap) {
                assert!(matches!(error, PsError::InvalidArgument { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains("0.0.0.0") && text.contains(missing), "{text}");
            }
        }
        for allowed in [ca.security(), Security::default().insecure()] {
            let options = ServerOptions::new(0, allowed.clone());
            assert!(ParameterServer::bind("0.0.0.0:0", options).is_ok());
            let mut options = WorkerOptions::default();
            options.security = allowed;
            assert!(WorkerServer::bind("0.0.0.0:0", Arc::default(), options).is_ok());
        }
    });
}

/// Variables are divided over the servers by their numbers, and work is handed to workers by
/// theirs: a list in another order would look for both in the wrong places.
#[test]
fn processes_in_another_order_are_refused_with_their_numbers() {
    within_limit(|| {
        let server = |number| {
            let options = ServerOptions::new(number, Security::default());
            ParameterServer::bind("127.0.0.1:0", options).unwrap()
        };
        let servers = [server(0), server(1)].map(|server| (server.address().to_string(), server));
        let swapped = [&servers[1].0, &servers[0].0];
        let of_client = VariableClient::connect(&swapped, ClientOptions::default());
        let worker = |number| {
            let mut options = WorkerOptions::default();
            options.worker = Some(number);
            WorkerServer::bind("127.0.0.1:0", Arc::default(), options).unwrap()
        };
        let workers = [worker(0), worker(1)].map(|worker| (worker.address().to_string(), worker));
        let swapped = [&workers[1].0, &workers[0].0];
        let none: [&str; 0] = [];
        let options = CoordinatorOptions::default();
        let of_coordinator =
            ClusterCoordinator::connect(&swapped, &none, Arc::default(), options).err();
        for error in [of_client.err(), of_coordinator] {
            let error = error.unwrap();
            assert!(matches!(error, PsError::Refused { .. }), "{error}");
            let text = error.to_string();
            let says = |wanted, found| {
                text.contains(&format!(
                    "number {wanted} was dialled, and number {found} answers"
                ))
            };
            assert!(says(1, 0) || says(0, 1), "{text}");
            assert!(text.contains("in the same order"), "{text}");
        }
        let in_order = [&servers[0].0, &servers[1].0];
        VariableClient::connect(&in_order, ClientOptions::default()).unwrap();
    });
}
