//! Many members of one address that come to one port at once.
//!
//! `CROWD=1000 THINK_MS=300 cargo test -p distribute-net --features tokio --test crowd --
//! --nocapture` prints how long that many take, on a machine where each of them needs this long
//! until it answers.
#![cfg(feature = "tokio")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distribute_net::exchange::{self, receive_text, send_text};
use distribute_net::handshake::{Dialer, Hello, MESSAGE_BYTES_MAX, Purpose, Secret};
use distribute_net::peers::{Connection, PeerListener};
use distribute_net::security::{Security, TlsIdentity};
use distribute_net::shortage::make_room;
use distribute_net::tls::TlsSettings;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rstest::rstest;
use tokio::sync::Barrier;
use tokio::time::timeout;
use tokio_stream::StreamExt;

const SECRET: &str = "0123456789abcdef";
/// When an attempt is given up: later than by members, for a machine with other load.
const STEP: Duration = Duration::from_secs(20);
/// When the test has failed.
const LIMIT: Duration = Duration::from_secs(100);

fn hello(task: u32) -> Hello {
    let mut hello = Hello::new(Purpose::Worker, 1, "0.1.0");
    hello.identity.task = task;
    hello
}

fn with_certificates() -> Security {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_string()]).unwrap();
    let own = params.signed_by(&key, &issuer).unwrap();
    let identity = TlsIdentity::new(ca.pem(), own.pem(), key.serialize_pem());
    Security::default().tls(identity)
}

/// A port on a thread of its own, as that of a rank, which says "in" to its members and keeps them.
fn port(security: &Security) -> SocketAddr {
    let listener = PeerListener::bind(0, "127.0.0.1:0", security).unwrap();
    let address = listener.local_addr();
    let serve = async move {
        let mut incoming = listener.incoming().unwrap();
        while let Some(Ok(mut connection)) = incoming.next().await {
            tokio::spawn(async move {
                let secret = Secret::new(SECRET);
                let listened = exchange::listen(&mut connection, hello(0), &secret).await;
                if listened.is_ok() && send_text(&mut connection, "in").await.is_ok() {
                    std::future::pending::<()>().await;
                }
            });
        }
    };
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(serve);
    });
    address
}

/// One attempt of a member, which thinks before it proves who it is.
async fn attempt(
    address: SocketAddr,
    tls: Option<&TlsSettings>,
    task: u32,
    think: impl Future,
) -> Result<Connection, String> {
    let late = |_| "late".to_string();
    let name = address.to_string();
    let opening = Connection::open(&name, tls);
    let opened = timeout(STEP, opening).await.map_err(late)?;
    let mut connection = opened.map_err(|(reason, _)| reason)?;
    let (dialer, first) = Dialer::start(hello(task), &Secret::new(SECRET)).unwrap();
    let text = |error: std::io::Error| error.to_string();
    send_text(&mut connection, &first).await.map_err(text)?;
    let answering = receive_text(&mut connection, MESSAGE_BYTES_MAX);
    let answer = timeout(STEP, answering)
        .await
        .map_err(late)?
        .map_err(text)?;
    think.await;
    let binding = connection.guard().channel().binding.clone();
    let finished = dialer.finish(&answer, &binding);
    let (proof, _) = finished.map_err(|error| error.to_string())?;
    send_text(&mut connection, &proof).await.map_err(text)?;
    let accepting = receive_text(&mut connection, MESSAGE_BYTES_MAX);
    let accepted = timeout(STEP, accepting)
        .await
        .map_err(late)?
        .map_err(text)?;
    assert_eq!(accepted, "in");
    Ok(connection)
}

/// Dials until it is through, with the pauses of a member; how often it has tried.
async fn dial(
    address: SocketAddr,
    tls: Option<Arc<TlsSettings>>,
    task: u32,
    think: Duration,
) -> (Connection, usize) {
    let mut pause = Duration::from_millis(10);
    for tries in 1.. {
        let thinks = tokio::time::sleep(think);
        if let Ok(connection) = attempt(address, tls.as_deref(), task, thinks).await {
            return (connection, tries);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3 / 2).min(Duration::from_millis(250));
    }
    unreachable!("it tries again")
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async { timeout(LIMIT, test).await.expect("they are not through") })
}

/// This many members, or as many as this process may have connections for: pending ones of a port
/// have an eighth of the descriptors, and each test has both ends of all.
fn members(wanted: u64) -> u64 {
    wanted.min(make_room(16 * wanted) / 10)
}

fn setting(name: &str, or: u64) -> u64 {
    std::env::var(name).map_or(or, |value| value.parse().unwrap())
}

/// However long each of them takes: all are in the middle of their handshakes at one time, and the
/// port keeps every connection.
#[test]
fn a_crowd_of_one_address_gets_through_at_the_first_attempt() {
    let count = members(500) as usize;
    let address = port(&Security::default());
    let all = block_on(async {
        let barrier = Arc::new(Barrier::new(count));
        let mut dialing = Vec::new();
        for task in 0..count as u32 {
            let barrier = barrier.clone();
            dialing.push(tokio::spawn(async move {
                attempt(address, None, task, barrier.wait()).await
            }));
        }
        let mut all = Vec::new();
        for one in dialing {
            all.push(one.await.unwrap());
        }
        all
    });
    let failed: Vec<_> = all.iter().filter_map(|one| one.as_ref().err()).collect();
    assert!(
        failed.is_empty(),
        "{} failed: {:?}",
        failed.len(),
        failed[0]
    );
}

#[rstest]
#[case::in_clear(Security::default())]
#[case::with_certificates(with_certificates())]
fn a_crowd_of_one_address_is_soon_through(#[case] security: Security) {
    let (count, think) = (members(setting("CROWD", 500)), setting("THINK_MS", 100));
    let address = port(&security);
    let tls = security.tls_settings().unwrap().map(Arc::new);
    let begun = Instant::now();
    let think = Duration::from_millis(think);
    let tries = block_on(async {
        let dial = |task| tokio::spawn(dial(address, tls.clone(), task as u32, think));
        let dialing: Vec<_> = (0..count).map(dial).collect();
        let mut kept = Vec::new();
        for one in dialing {
            kept.push(one.await.unwrap());
        }
        kept.iter().map(|(_, tries)| *tries).collect::<Vec<_>>()
    });
    let (all, most): (usize, _) = (tries.iter().sum(), tries.iter().max());
    println!(
        "{count} members that think for {think:?}, {}: through in {:.2?}, {all} attempts, the most \
         of one {}",
        if tls.is_some() { "TLS" } else { "clear" },
        begun.elapsed(),
        most.unwrap()
    );
}
