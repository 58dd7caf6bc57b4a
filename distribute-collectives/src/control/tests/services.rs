//! What a port serves behind the proof, and what a peer without it must not be able to do.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use distribute_net::exchange::{self, receive_text, send_text};
use distribute_net::handshake::{Dialer, Hello, Identity, MESSAGE_BYTES_MAX, Purpose, Secret};
use distribute_net::peers::Connection;
use distribute_net::security::Token;
use serde_json::json;

use super::*;
use crate::control::SERVICE_NAME;
use crate::control::client::{self, call_join};
use crate::control::generated::envelope::Message;
use crate::control::generated::{Heartbeat, Refusal};
use crate::control::handshake::PROTOCOL_VERSION;
use crate::control::membership::envelope;

const OTHER_VERSION: u32 = PROTOCOL_VERSION + 1;

/// Runs a client's part.
pub(super) fn run<R>(part: impl Future<Output = R>) -> R {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(part)
}

/// A connection to the control port of rank 0 of two whose peer has proven to be rank 1.
async fn proven(address: &str) -> Connection {
    let mut connection = Connection::open(address, None).await.unwrap();
    let none = Secret::default();
    let dialled = exchange::dial(&mut connection, hello_of_one(), &none).await;
    dialled.unwrap();
    connection
}

async fn channel(address: &str) -> Channel {
    let channel = client::channel(address, proven(address).await).await;
    channel.unwrap()
}

async fn health(channel: Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.to_string(),
    };
    let response = HealthClient::new(channel).check(request).await.unwrap();
    response.into_inner().status()
}

#[test]
fn health_says_whether_the_group_is_up_to_peers_that_have_proven_themselves() {
    within_limit(|| {
        let members = group(2);
        run(async {
            let address = members[0].plane.shared.addresses.shown(0);
            let channel = channel(&address).await;
            for service in ["", SERVICE_NAME] {
                let status = health(channel.clone(), service).await;
                assert_eq!(status, ServingStatus::Serving);
            }
            let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
            let request = HealthCheckRequest::default();
            let unproven = match endpoint.connect().await {
                Ok(unproven) => HealthClient::new(unproven).check(request).await.ok(),
                Err(_) => None,
            };
            assert!(unproven.is_none(), "{unproven:?}");
            members[1].abort("over");
            failure_of(&members[0].status);
            let mut status = ServingStatus::Serving;
            while status == ServingStatus::Serving {
                status = health(channel.clone(), SERVICE_NAME).await;
            }
            assert_eq!(status, ServingStatus::NotServing);
        });
    });
}

/// A peer that speaks by hand.
struct Speaker(Connection);

impl Speaker {
    async fn new(address: &str) -> Speaker {
        Speaker(Connection::open(address, None).await.unwrap())
    }

    async fn text(&mut self, text: &str) {
        // The other end may have closed the connection already.
        let _ = send_text(&mut self.0, text).await;
    }

    /// The answer to a Hello.
    async fn answer(&mut self) -> String {
        let answer = receive_text(&mut self.0, MESSAGE_BYTES_MAX).await;
        answer.unwrap()
    }

    /// The whole handshake, which fails.
    async fn refused(&mut self, hello: Hello, secret: &Secret) -> String {
        let dialled = exchange::dial(&mut self.0, hello, secret).await;
        dialled.err().unwrap().to_string()
    }

    /// Waits until the other end closes the connection.
    async fn end(&mut self) {
        let _ = self.0.shutdown().await;
        let _ = self.0.read_to_end(&mut Vec::new()).await;
    }
}

fn hello_of_one() -> Hello {
    let mut hello = Hello::new(
        Purpose::Control,
        PROTOCOL_VERSION,
        env!("CARGO_PKG_VERSION"),
    );
    hello.identity = Identity {
        group: "test".to_string(),
        task: 1,
        run: "one".to_string(),
        generation: 0,
    };
    hello.peer_task = Some(0);
    hello.details = json!({"world_size": 2, "options": "transport grpc"}).to_string();
    hello
}

/// Rank 0 of two waits; `part` plays rank 1 at its address.
fn against_rank_0<F: Future<Output = ()>>(
    token: Option<&str>,
    part: impl FnOnce(String) -> F,
) -> Result<Member> {
    let (mut sockets, addresses) = listeners(2);
    let (listener, mut options) = (sockets.remove(0), options(0, &addresses));
    options.rendezvous_timeout = Duration::from_secs(2);
    if let Some(secret) = token {
        options.security = Security::default().token(Token::new(secret).unwrap());
    }
    let zero = std::thread::spawn(move || join(options, listener));
    run(part(addresses[0].clone()));
    zero.join().unwrap()
}

#[test]
fn another_version_is_refused_by_both() {
    within_limit(|| {
        let zero = against_rank_0(None, |address| async move {
            let mut hello = hello_of_one();
            hello.protocol_version = OTHER_VERSION;
            let mut speaker = Speaker::new(&address).await;
            let said = speaker.refused(hello, &Secret::default()).await;
            let expected = format!("it speaks version {PROTOCOL_VERSION} of the protocol");
            assert!(said.contains(&expected), "{said}");
        });
        let reason = refusal(zero);
        assert!(
            reason.contains(&format!(
                "it speaks version {OTHER_VERSION} of the protocol"
            )),
            "{reason}"
        );
        let zero = against_rank_0(None, |address| async move {
            let mut hello = hello_of_one();
            hello.build = "9.9.9".to_string();
            let mut speaker = Speaker::new(&address).await;
            let said = speaker.refused(hello, &Secret::default()).await;
            assert!(said.contains("this process 9.9.9"), "{said}");
        });
        assert!(refusal(zero).contains("it has version 9.9.9 of distribute-collectives"));
    });
}

const SECRET: &str = "0123456789abcdef";

fn rank_of_two(rank: usize, addresses: &[String]) -> JoinOptions {
    let mut options = options(rank, addresses);
    options.security = Security::default().token(Token::new(SECRET).unwrap());
    options
}

/// What someone without the token may try before the right rank comes.
async fn tries_of_an_unauthenticated_peer(address: &str) {
    let changes: [fn(&mut Hello); 6] = [
        |hello| hello.protocol_version = OTHER_VERSION,
        |hello| hello.build = "9.9.9".to_string(),
        |hello| hello.details = json!({"world_size": 7, "options": ""}).to_string(),
        |hello| hello.identity.generation = 9,
        |hello| hello.identity.task = 77,
        |hello| hello.purpose = Purpose::Data,
    ];
    for secret in [Secret::new("another secret"), Secret::default()] {
        for change in changes {
            let mut hello = hello_of_one();
            change(&mut hello);
            let mut speaker = Speaker::new(address).await;
            let (_, first) = Dialer::start(hello, &secret).unwrap();
            speaker.text(&first).await;
            speaker.text(&"0".repeat(64)).await;
            speaker.end().await;
        }
    }
}

#[test]
fn an_unauthenticated_peer_without_the_token_cannot_end_a_rendezvous() {
    within_limit(|| {
        let (mut sockets, addresses) = listeners(2);
        let (second, first) = (sockets.pop().unwrap(), sockets.pop().unwrap());
        let zero = rank_of_two(0, &addresses);
        let (joined, zero_joined) = std::sync::mpsc::channel();
        std::thread::spawn(move || joined.send(join(zero, first)));
        run(tries_of_an_unauthenticated_peer(&addresses[0]));
        // Longer than the patience with a claimed rank where there is no token.
        if let Ok(result) = zero_joined.recv_timeout(Duration::from_millis(5500)) {
            panic!("it ended before its time: {}", error_of(result));
        }
        let one = join(rank_of_two(1, &addresses), second).unwrap();
        let zero = zero_joined.recv().unwrap().unwrap();
        gather_once(&[&zero, &one]);
    });
}

#[test]
fn an_unauthenticated_peer_that_claims_any_rank_fills_no_memory() {
    let shared = simulation::membership(0);
    let claims = (0..10_000).chain(0..10).chain([usize::MAX]);
    let new = claims.filter(|rank| shared.state().note_unproven(*rank, Refusal::default()));
    assert_eq!(new.collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert_eq!(shared.state().unproven_claims.len(), 8);
}

/// It knows the token: here the difference in the version is worth ending the join at once.
#[test]
fn a_member_of_another_version_is_refused_by_both_at_once() {
    within_limit(|| {
        let (sockets, addresses) = listeners(2);
        let started = Instant::now();
        let joined = on_threads(sockets.into_iter().enumerate(), |(rank, listener)| {
            let options = rank_of_two(rank, &addresses);
            let mut hello = crate::control::plane::hello(&options).unwrap();
            hello.protocol_version += rank as u32;
            let plane = ControlPlane::join_with_hello(hello, options, listener, Arc::default());
            plane.map(|_| ()).unwrap_err()
        });
        for (rank, error) in joined.into_iter().enumerate() {
            let version = |rank| PROTOCOL_VERSION + rank as u32;
            let (theirs, ours) = (version(1 - rank), version(rank));
            let text =
                format!("it speaks version {theirs} of the protocol, this rank version {ours}");
            assert!(matches!(error, CollectiveError::Refused { .. }), "{error}");
            assert!(error.to_string().contains(&text), "{error}");
        }
        assert!(started.elapsed() < Duration::from_secs(10));
    });
}

/// The one that connects has been told the address: it need not wait. Who only claims to be a
/// rank with another version is named when the time is over.
#[test]
fn a_peer_of_another_version_that_proves_nothing_is_named_at_the_deadline() {
    within_limit(|| {
        let text = format!("version {OTHER_VERSION} of the protocol");
        let other = text.as_str();
        let started = Instant::now();
        let zero = against_rank_0(Some(SECRET), |address| async move {
            let mut hello = hello_of_one();
            hello.protocol_version = OTHER_VERSION;
            let mut speaker = Speaker::new(&address).await;
            let secret = Secret::new("another secret");
            let said = speaker.refused(hello, &secret).await;
            assert!(said.contains("of the protocol"), "{said}");
        });
        assert!(started.elapsed() >= Duration::from_secs(2));
        let error = error_of(zero);
        let CollectiveError::Rendezvous { missing, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(missing[0].rank, 1);
        assert!(missing[0].reason.contains(other), "{error}");
    });
}

/// A relay that is allowed to know the job's token: its connection was made for something else.
#[test]
fn a_proof_for_another_purpose_is_no_proof_for_this_one() {
    within_limit(|| {
        let zero = against_rank_0(Some(SECRET), |address| async move {
            let secret = Security::default().token(Token::new(SECRET).unwrap());
            let mut hello = hello_of_one();
            hello.purpose = Purpose::Worker;
            let mut speaker = Speaker::new(&address).await;
            let said = speaker.refused(hello, &secret.secret()).await;
            let expected = "for a control plane, this one for a worker";
            assert!(said.contains(expected), "{said}");
        });
        assert!(refusal(zero).contains("for a worker"));
    });
}

#[test]
fn a_recorded_proof_is_worth_nothing_in_another_session() {
    within_limit(|| {
        let zero = against_rank_0(Some(SECRET), |address| async move {
            // The stream that is recorded: made with the right token.
            let secret = Security::default().token(Token::new(SECRET).unwrap());
            let (dialer, own) = Dialer::start(hello_of_one(), &secret.secret()).unwrap();
            let mut first = Speaker::new(&address).await;
            first.text(&own).await;
            let theirs = first.answer().await;
            let (proof, _) = dialer.finish(&theirs, b"").unwrap();
            drop(first);
            for proof in [proof, String::new(), "0".repeat(64)] {
                let mut replayed = Speaker::new(&address).await;
                replayed.text(&own).await;
                assert_ne!(replayed.answer().await, theirs);
                replayed.text(&proof).await;
                replayed.end().await;
            }
        });
        let reason = refusal(zero);
        assert!(
            reason.contains("token") && !reason.contains(SECRET),
            "{reason}"
        );
    });
}

#[test]
fn messages_of_any_kind_and_size_do_not_disturb_a_group() {
    within_limit(|| {
        let members = group(2);
        run(async {
            let address = &members[0].plane.shared.addresses.shown(0);
            let hello = Dialer::start(hello_of_one(), &Secret::default()).unwrap().1;
            for text in ["", "{}", &"0".repeat(1 << 20), &hello] {
                let mut speaker = Speaker::new(address).await;
                speaker.text(text).await;
                speaker.text("").await;
                speaker.end().await;
            }
            // Behind the proof: no HTTP/2; and a message that a rank sends later, if at all.
            let mut speaker = Speaker(proven(address).await);
            speaker.text(&"0".repeat(1 << 20)).await;
            speaker.end().await;
            let beat = envelope(Message::Heartbeat(Heartbeat::default()));
            let channel = channel(address).await;
            let mut inbound = call_join(channel, tokio_stream::iter([beat]))
                .await
                .unwrap();
            let status = inbound.message().await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        });
        for member in &members {
            assert_eq!(member.status.failures(), []);
        }
    });
}
