//! What any gRPC client can ask, and what a client of this service must not be able to do.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use distribute_net::handshake::{Dialer, Hello, Identity, Purpose, Secret};
use distribute_net::security::Token;
use serde_json::json;

use super::*;
use crate::control::client::call_join;
use crate::control::generated::envelope::Message;
use crate::control::generated::{Envelope, Handshake, Heartbeat, Refusal};
use crate::control::handshake::PROTOCOL_VERSION;
use crate::control::membership::envelope;

const OTHER_VERSION: u32 = PROTOCOL_VERSION + 1;

/// Runs a client's part.
pub(super) fn client<R>(part: impl Future<Output = R>) -> R {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(part)
}

pub(super) async fn channel(member: &Member) -> Channel {
    let address = &member
        .plane
        .shared
        .addresses
        .shown(member.plane.shared.rank);
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}

async fn health(channel: Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.to_string(),
    };
    let response = HealthClient::new(channel).check(request).await.unwrap();
    response.into_inner().status()
}

#[test]
fn health_says_whether_the_group_is_up() {
    within_limit(|| {
        let members = group(2);
        client(async {
            for member in &members {
                let channel = channel(member).await;
                assert_eq!(health(channel.clone(), "").await, ServingStatus::Serving);
                let control = "distribute.v1.Control";
                assert_eq!(
                    health(channel.clone(), control).await,
                    ServingStatus::Serving
                );
            }
            let channel = channel(&members[0]).await;
            members[1].abort("over");
            failure_of(&members[0].status);
            let mut status = ServingStatus::Serving;
            while status == ServingStatus::Serving {
                status = health(channel.clone(), "distribute.v1.Control").await;
            }
            assert_eq!(status, ServingStatus::NotServing);
        });
    });
}

/// A client that speaks the protocol by hand.
struct Speaker {
    sender: mpsc::Sender<Envelope>,
    inbound: Streaming<Envelope>,
}

impl Speaker {
    async fn new(member_address: &str) -> Speaker {
        let (sender, receiver) = mpsc::channel(8);
        let endpoint = format!("http://{member_address}");
        let channel = Channel::from_shared(endpoint).unwrap().connect().await;
        let inbound = call_join(channel.unwrap(), ReceiverStream::new(receiver)).await;
        Speaker {
            sender,
            inbound: inbound.unwrap(),
        }
    }

    async fn say(&self, message: Message) {
        // The other end may have closed the stream already.
        let _ = self.sender.send(envelope(message)).await;
    }

    async fn text(&self, text: String) {
        self.say(handshake(text)).await;
    }

    /// The answer to a Hello.
    async fn answer(&mut self) -> String {
        match self.inbound.message().await.unwrap().unwrap().message {
            Some(Message::Handshake(handshake)) => handshake.text,
            other => panic!("{other:?}"),
        }
    }

    /// The whole handshake, with a secret or without.
    async fn shake(&mut self, hello: Hello, secret: &Secret) {
        let (dialer, first) = Dialer::start(hello, secret).unwrap();
        self.text(first).await;
        let answer = self.answer().await;
        let proof = dialer.finish(&answer, b"").map(|(proof, _)| proof);
        self.text(proof.unwrap_or_default()).await;
    }

    /// The status that the stream ends with.
    async fn end(&mut self) -> Status {
        loop {
            match self.inbound.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a status"),
                Err(status) => return status,
            }
        }
    }
}

fn handshake(text: String) -> Message {
    Message::Handshake(Handshake { text })
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
    client(part(addresses[0].clone()));
    zero.join().unwrap()
}

#[test]
fn another_version_is_refused_by_both() {
    within_limit(|| {
        let zero = against_rank_0(None, |address| async move {
            let mut speaker = Speaker::new(&address).await;
            let mut hello = hello_of_one();
            hello.protocol_version = OTHER_VERSION;
            speaker.shake(hello, &Secret::default()).await;
            let status = speaker.end().await;
            assert_eq!(status.code(), Code::InvalidArgument);
            let text = status.message();
            let expected = format!(
                "version {OTHER_VERSION} of the protocol, this rank version {PROTOCOL_VERSION}"
            );
            assert!(text.contains(&expected), "{text}");
        });
        let reason = refusal(zero);
        assert!(
            reason.contains(&format!(
                "it speaks version {OTHER_VERSION} of the protocol"
            )),
            "{reason}"
        );
        let zero = against_rank_0(None, |address| async move {
            let mut speaker = Speaker::new(&address).await;
            let mut hello = hello_of_one();
            hello.build = "9.9.9".to_string();
            speaker.shake(hello, &Secret::default()).await;
            assert_eq!(speaker.end().await.code(), Code::InvalidArgument);
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
            speaker.text(first).await;
            speaker.text("0".repeat(64)).await;
            assert_ne!(speaker.end().await.code(), Code::Ok);
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
        client(tries_of_an_unauthenticated_peer(&addresses[0]));
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
            speaker.shake(hello, &Secret::new("another secret")).await;
            let status = speaker.end().await;
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains(other));
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
            speaker.shake(hello, &secret.secret()).await;
            let status = speaker.end().await;
            assert_eq!(status.code(), Code::InvalidArgument);
            let text = status.message();
            assert!(
                text.contains("for a worker, this one for a control plane"),
                "{text}"
            );
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
            first.text(own.clone()).await;
            let theirs = first.answer().await;
            let (proof, _) = dialer.finish(&theirs, b"").unwrap();
            drop(first);
            for proof in [proof, String::new(), "0".repeat(64)] {
                let mut replayed = Speaker::new(&address).await;
                replayed.text(own.clone()).await;
                assert_ne!(replayed.answer().await, theirs);
                replayed.text(proof).await;
                let status = replayed.end().await;
                assert_eq!(status.code(), Code::Unauthenticated);
                assert!(status.message().contains("token"), "{status:?}");
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
        client(async {
            let address = &members[0].plane.shared.addresses.shown(0);
            for message in [
                Message::Heartbeat(Heartbeat::default()),
                handshake("0".repeat(1 << 20)),
                handshake(String::new()),
                handshake(Dialer::start(hello_of_one(), &Secret::default()).unwrap().1),
            ] {
                let mut speaker = Speaker::new(address).await;
                speaker.say(message).await;
                speaker.text(String::new()).await;
                let code = speaker.end().await.code();
                assert_ne!(code, Code::Ok);
            }
        });
        for member in &members {
            assert_eq!(member.status.failures(), []);
        }
    });
}
