//! Connections that a process on their way forwards to another process of the job, as they are or
//! with other words.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use distribute_core::collectives::control::security::{Security, Token};
use distribute_ps::{
    ClientOptions, ClusterCoordinator, CoordinatorOptions, ParameterServer, PsError, ServerOptions,
    VariableClient, WorkerOptions, WorkerServer,
};

use super::certificates::{Authority, TOKEN};
use crate::within_limit;

const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(1);
const DIALS: Duration = Duration::from_secs(20);

/// Forwards connections byte by byte; where it listens.
fn relay(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(target).unwrap());
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                std::thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    address
}

/// Passes on one text of a handshake, with one word in place of another.
fn pass_on(from: &mut TcpStream, to: &mut TcpStream, word: &str, other: &str) -> io::Result<()> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut text = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut text)?;
    let text = String::from_utf8(text).unwrap().replace(word, other);
    to.write_all(&(text.len() as u32).to_be_bytes())?;
    to.write_all(text.as_bytes())
}

/// Stands between a process that wants a worker and a parameter server, and tells each that the
/// other one is what it expects.
fn interpreter(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (worker, server) = (r#""worker""#, r#""parameter-server""#);
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let mut near = near.unwrap();
            let mut far = TcpStream::connect(target).unwrap();
            // Who sees through it ends the connection.
            let _ = pass_on(&mut near, &mut far, worker, server)
                .and_then(|()| pass_on(&mut far, &mut near, server, worker))
                .and_then(|()| pass_on(&mut near, &mut far, worker, server));
        }
    });
    address
}

/// Both sides say which address was dialled, and which one answered.
#[track_caller]
fn refused(dialled: &PsError, listened: &PsError, addresses: [SocketAddr; 2]) {
    assert!(matches!(dialled, PsError::Refused { .. }), "{dialled}");
    assert!(
        matches!(listened, PsError::NoCoordinator { .. }),
        "{listened}"
    );
    for text in [dialled.to_string(), listened.to_string()] {
        for address in addresses {
            assert!(text.contains(&address.to_string()), "{text}");
        }
    }
}

#[test]
fn a_connection_that_is_forwarded_to_another_process_is_refused_by_both() {
    within_limit(|| {
        let ca = Authority::new();
        let token = Security::default().token(Token::new(TOKEN).unwrap());
        for security in [token, ca.security()] {
            let mut options = ServerOptions::new(0, security.clone());
            options.coordinator_timeout = COORDINATOR_TIMEOUT;
            let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
            let dialled = relay(server.address());
            let mut options = ClientOptions::default();
            options.security = security.clone();
            options.connect_timeout = DIALS;
            let error = VariableClient::connect(&[dialled.to_string()], options).unwrap_err();
            let listened = server.wait(Some(DIALS)).unwrap_err();
            refused(&error, &listened, [dialled, server.address()]);

            let mut options = WorkerOptions::default();
            options.security = security.clone();
            options.coordinator_timeout = COORDINATOR_TIMEOUT;
            let worker = WorkerServer::bind("127.0.0.1:0", Arc::default(), options).unwrap();
            let address = worker.address();
            let dialled = relay(address);
            let mut options = CoordinatorOptions::default();
            options.security = security;
            options.connect_timeout = DIALS;
            let none: [&str; 0] = [];
            let workers = [dialled.to_string()];
            let error = ClusterCoordinator::connect(&workers, &none, Arc::default(), options);
            let listened = worker.serve().unwrap_err();
            refused(&error.unwrap_err(), &listened, [dialled, address]);
        }
    });
}

#[test]
fn a_hello_that_was_rewritten_on_the_way_is_refused_by_both() {
    within_limit(|| {
        let security = Security::default().token(Token::new(TOKEN).unwrap());
        let mut options = ServerOptions::new(0, security.clone());
        options.coordinator_timeout = COORDINATOR_TIMEOUT;
        let server = ParameterServer::bind("127.0.0.1:0", options).unwrap();
        let mut options = CoordinatorOptions::default();
        options.security = security;
        options.connect_timeout = DIALS;
        let none: [&str; 0] = [];
        let workers = [interpreter(server.address()).to_string()];
        let dialled = ClusterCoordinator::connect(&workers, &none, Arc::default(), options);
        let dialled = dialled.unwrap_err();
        let listened = server.wait(Some(DIALS)).unwrap_err();
        assert!(matches!(dialled, PsError::Refused { .. }), "{dialled}");
        for text in [dialled.to_string(), listened.to_string()] {
            assert!(text.contains("its token is another one"), "{text}");
        }
    });
}
