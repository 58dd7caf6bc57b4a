//! Tokens and certificates: right ones, wrong ones and none.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rstest::rstest;

use super::*;
use distribute_net::security::{TlsIdentity, Token};

const TOKEN: &str = "0123456789 the right token";
const OTHER: &str = "9876543210 of another job";

fn with_tokens(tokens: [Option<&str>; 2]) -> Vec<Result<Member>> {
    join_all(2, |rank, options| {
        if let Some(secret) = tokens[rank] {
            options.security = Security::default().token(Token::new(secret).unwrap());
        }
        // What has not proven the token cannot end the join of rank 0 before.
        options.rendezvous_timeout = Duration::from_secs(3);
    })
}

#[test]
fn ranks_with_one_token_form_a_group() {
    within_limit(|| {
        let keys = || {
            let joined = with_tokens([Some(TOKEN); 2]);
            let members: Vec<_> = joined.into_iter().map(Result::unwrap).collect();
            [0, 1].map(|rank: usize| members[rank].plane.secret_with(1 - rank))
        };
        let (first, second) = (keys(), keys());
        assert!(is_same(&first[0], &first[1]));
        assert!(!is_same(&first[0], &second[0]), "each start has its own");
    });
}

#[rstest]
#[case::wrong([Some(TOKEN), Some(OTHER)])]
#[case::missing_at_rank_1([Some(TOKEN), None])]
#[case::missing_at_rank_0([None, Some(TOKEN)])]
fn a_wrong_or_missing_token_is_refused_by_both_and_never_shown(
    #[case] tokens: [Option<&'static str>; 2],
) {
    within_limit(move || {
        for result in with_tokens(tokens) {
            let error = error_of(result);
            let CollectiveError::Refused { reason, .. } = &error else {
                panic!("{error:?}");
            };
            assert!(reason.contains("token"), "{error}");
            let shown = format!("{error} {error:?}");
            for secret in [TOKEN, OTHER] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    });
}

/// The rank with the wrong token fails at once; the others, whose token it is not, at their
/// deadline. Their error names the token and all ranks that have not come.
#[test]
fn a_wrong_token_is_named_together_with_the_ranks_that_did_not_come() {
    within_limit(|| {
        let (mut sockets, addresses) = usual_listeners(3);
        let (_, second, first) = (sockets.pop(), sockets.pop().unwrap(), sockets.remove(0));
        let with = |rank, token, seconds| {
            let mut options = options(rank, &addresses);
            options.security = Security::default().token(Token::new(token).unwrap());
            options.rendezvous_timeout = Duration::from_secs(seconds);
            options
        };
        let zero = with(0, TOKEN, 8);
        let started = Instant::now();
        let zero = std::thread::spawn(move || error_of(join(zero, first)));
        assert!(refusal(join(with(1, OTHER, 30), second)).contains("token"));
        assert!(started.elapsed() < Duration::from_secs(25));
        let error = zero.join().unwrap();
        assert!(started.elapsed() >= Duration::from_secs(8), "{error}");
        assert!(matches!(error, CollectiveError::Refused { .. }), "{error}");
        let text = error.to_string();
        for part in ["token", &addresses[1], "rank 2 did not come"] {
            assert!(text.contains(part), "{text}");
        }
    });
}

#[test]
fn a_rank_with_a_wrong_token_does_not_keep_the_right_one_out() {
    within_limit(|| {
        let (mut sockets, addresses) = usual_listeners(2);
        let (second, first) = (sockets.pop().unwrap(), sockets.pop().unwrap());
        let spare = BoundListener::bind(1, "127.0.0.1:0", &Security::default()).unwrap();
        let with = |rank, token| {
            let mut options = options(rank, &addresses);
            options.security = Security::default().token(Token::new(token).unwrap());
            options
        };
        let zero = with(0, TOKEN);
        let zero = std::thread::spawn(move || join(zero, first).unwrap());
        assert!(refusal(join(with(1, OTHER), spare)).contains("token"));
        let one = join(with(1, TOKEN), second).unwrap();
        let zero = zero.join().unwrap();
        // And once more while the group runs.
        let spare = BoundListener::bind(1, "127.0.0.1:0", &Security::default()).unwrap();
        assert!(refusal(join(with(1, OTHER), spare)).contains("token"));
        assert_eq!(zero.status.failures(), []);
        assert_eq!(one.status.failures(), []);
    });
}

struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "test authority");
    let certificate = params.self_signed(&key).unwrap();
    Authority {
        certificate,
        issuer: Issuer::new(params, key),
    }
}

/// A rank's certificate by one authority, which accepts another authority's certificates.
fn identity(issuer: &Authority, accepts: &Authority, host: &str, expired: bool) -> TlsIdentity {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![host.to_string()]).unwrap();
    if expired {
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
    }
    let certificate = params.signed_by(&key, &issuer.issuer).unwrap();
    TlsIdentity::new(
        accepts.certificate.pem(),
        certificate.pem(),
        key.serialize_pem(),
    )
}

/// The outcome when rank 0 and rank 1 have these identities.
fn with_identities(identities: [TlsIdentity; 2]) -> Vec<Result<Member>> {
    join_all(2, |rank, options| {
        options.rendezvous_timeout = Duration::from_secs(3);
        options.security = Security::default()
            .token(Token::new(TOKEN).unwrap())
            .tls(identities[rank].clone());
    })
}

/// Why the only rank that is missing has not come.
#[track_caller]
fn missing_reason(result: Result<Member>, rank: usize) -> String {
    match error_of(result) {
        CollectiveError::Rendezvous { mut missing, .. } => {
            let ranks: Vec<_> = missing.iter().map(|missing| missing.rank).collect();
            assert_eq!(ranks, [rank]);
            missing.remove(0).reason
        }
        other => panic!("{other:?}"),
    }
}

/// Rank 1 chose whom it connected to and refuses; to rank 0 it is a connection like any other,
/// and the rank that did not come is named with what was wrong about that connection.
#[track_caller]
fn refused_for(mut results: Vec<Result<Member>>, of_zero: &str, of_one: &str) {
    let one = refusal(results.pop().unwrap());
    let zero = missing_reason(results.pop().unwrap(), 1);
    assert!(zero.contains(of_zero), "{zero}");
    assert!(one.contains(of_one), "{one}");
}

#[test]
fn ranks_with_certificates_of_one_authority_form_a_group() {
    within_limit(|| {
        let ca = authority();
        let good = || identity(&ca, &ca, "127.0.0.1", false);
        let joined = with_identities([good(), good()]);
        let members: Vec<_> = joined.into_iter().map(Result::unwrap).collect();
        gather_once(&[&members[0], &members[1]]);
        let security = Security::default().tls(good());
        let tls = security.tls_settings().unwrap().unwrap();
        assert_eq!(tls.client.alpn_protocols, [b"h2"]);
        assert_eq!(tls.server.alpn_protocols, [b"h2"]);
    });
}

/// A certificate that one rank shows while the other one has a good one.
#[derive(Clone, Copy)]
enum Bad {
    OfAnotherAuthority,
    Expired,
    OfAnotherHost,
}

#[rstest]
#[case::of_another_authority_at_rank_1(
    Bad::OfAnotherAuthority,
    1,
    "was not issued by the CA",
    "does not accept the certificate of this rank"
)]
#[case::of_another_authority_at_rank_0(
    Bad::OfAnotherAuthority,
    0,
    "does not accept the certificate of this rank",
    "was not issued by the CA"
)]
#[case::expired_at_rank_1(Bad::Expired, 1, "has expired", "it has expired")]
#[case::expired_at_rank_0(Bad::Expired, 0, "it has expired", "has expired")]
#[case::of_another_host_at_rank_0(
    Bad::OfAnotherHost,
    0,
    "does not accept the certificate of this rank",
    "not for the host of its address"
)]
fn a_bad_certificate_is_refused_by_both(
    #[case] bad: Bad,
    #[case] shown_by: usize,
    #[case] of_zero: &'static str,
    #[case] of_one: &'static str,
) {
    within_limit(move || {
        let ca = authority();
        let bad = match bad {
            Bad::OfAnotherAuthority => identity(&authority(), &ca, "127.0.0.1", false),
            Bad::Expired => identity(&ca, &ca, "127.0.0.1", true),
            Bad::OfAnotherHost => identity(&ca, &ca, "192.0.2.1", false),
        };
        let mut identities = [bad, identity(&ca, &ca, "127.0.0.1", false)];
        identities.rotate_right(shown_by);
        refused_for(with_identities(identities), of_zero, of_one);
    });
}

/// With the job's token, and with a certificate of the job that was made for another host.
#[test]
fn a_rank_that_claims_another_place_than_its_certificate_is_refused_by_both() {
    within_limit(|| {
        let ca = authority();
        let of_host = |host| identity(&ca, &ca, host, false);
        let joined = with_identities(["127.0.0.1", "192.0.2.1"].map(of_host));
        for result in joined {
            let reason = refusal(result);
            assert!(
                reason.contains("its certificate is not for 127.0.0.1"),
                "{reason}"
            );
        }
    });
}

#[test]
fn a_client_without_a_certificate_gets_nowhere() {
    within_limit(|| {
        let ca = authority();
        let tls = |identity| {
            Security::default()
                .tls(identity)
                .tls_settings()
                .unwrap()
                .unwrap()
        };
        let good = identity(&ca, &ca, "127.0.0.1", false);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut bare = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        bare.alpn_protocols = tls(good.clone()).client.alpn_protocols.clone();
        let (mut sockets, addresses) = usual_listeners(4);
        let (listener, mut options) = (sockets.remove(0), options(0, &addresses));
        options.rendezvous_timeout = Duration::from_secs(2);
        options.security = Security::default().tls(good);
        let started = Instant::now();
        let zero = std::thread::spawn(move || join(options, listener));
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(bare), name).unwrap();
        let socket = std::net::TcpStream::connect(&addresses[0]).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, socket);
        let mut answer = Vec::new();
        let error = std::io::Read::read_to_end(&mut stream, &mut answer).unwrap_err();
        assert!(error.to_string().contains("CertificateRequired"), "{error}");
        assert!(answer.is_empty());
        let error = error_of(zero.join().unwrap());
        assert!(started.elapsed() >= Duration::from_secs(2), "{error}");
        let CollectiveError::Rendezvous { missing, .. } = &error else {
            panic!("{error:?}");
        };
        let named: Vec<_> = missing.iter().map(|m| (m.rank, &m.address)).collect();
        let expected: Vec<_> = [1, 2, 3].map(|rank| (rank, &addresses[rank])).into();
        assert_eq!(named, expected);
        let told = missing
            .iter()
            .map(|m| m.reason.contains("it shows no certificate"));
        assert_eq!(told.collect::<Vec<_>>(), [true; 3], "{error}");
    });
}

#[test]
fn a_rank_with_tls_and_one_without_do_not_meet_and_say_why() {
    within_limit(|| {
        let ca = authority();
        let identity = identity(&ca, &ca, "127.0.0.1", false);
        for with_tls in [0, 1] {
            let joined = join_all(2, |rank, options| {
                options.rendezvous_timeout = Duration::from_secs(1);
                if rank == with_tls {
                    options.security = Security::default().tls(identity.clone());
                }
            });
            for (rank, one) in joined.into_iter().enumerate() {
                let said = error_of(one).to_string();
                let expected = if rank == with_tls {
                    "does not use TLS, this"
                } else {
                    "uses TLS"
                };
                assert!(
                    said.contains(expected),
                    "rank {rank}, {with_tls} has TLS: {said}"
                );
            }
        }
    });
}
