//! Who can reach a rank, with which certificate, and what of its token can be seen.

use std::net::SocketAddr;
use std::path::Path;

use hostile::listening::listening;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rstest::rstest;

use super::harness::{Rank, bind, group, join, leave, start};

/// A firewall has to pass no other: nothing random is opened, whatever carries the data.
#[rstest]
fn a_rank_listens_at_its_listed_address_and_nowhere_else(
    #[values("shm", "grpc", "auto")] transport: &str,
) {
    let mut ranks = start(2);
    let addresses = bind(&mut ranks, 0, transport, "");
    let check = |ranks: &[Rank]| {
        for (rank, address) in ranks.iter().zip(&addresses.0) {
            let listed: SocketAddr = address.parse().expect("an address");
            assert_eq!(listening(rank.pid()), [listed]);
        }
    };
    check(&ranks);
    join(&mut ranks, &addresses);
    check(&ranks);
    leave(&mut ranks);
    assert_eq!(listening(ranks[0].pid()), []);
}

const VARIABLE: &str = "DISTRIBUTE_TEST_TOKEN";

#[test]
fn listening_beyond_loopback_needs_a_token_and_certificates() {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = Authority::new();
    let tls = ca.identity(&ca, directory.path(), "good", false);
    let token = format!("token_env={VARIABLE}");
    let bind = |settings: &str| {
        let mut rank = Rank::start_with(0, &[(VARIABLE, TOKEN)], None);
        rank.tell(&format!("bind 0 grpc 1 listen=0.0.0.0:0 {settings}"));
        rank
    };
    for (settings, missing) in [("", "a token and TLS"), (&token, "TLS"), (&tls, "a token")] {
        let mut rank = bind(settings);
        let answer = rank.answer("error");
        assert!(answer.contains(missing), "{settings}: {answer}");
        assert!(listening(rank.pid()).is_empty());
    }
    for settings in [format!("{token} {tls}"), "insecure=1".to_string()] {
        let mut rank = bind(&settings);
        rank.answer("bound");
        let found = listening(rank.pid());
        assert!(found.iter().any(|it| it.ip().is_unspecified()), "{found:?}");
    }
}

const TOKEN: &str = "aWvKq3-the-secret-of-the-job-91ZcX";
const OTHER: &str = "Zu7Lp0-the-secret-of-another-55TyQ";

/// The token in every form in which it may be written: text, hex, bytes as numbers.
fn forms(token: &str) -> Vec<String> {
    let join = |separator: &str, each: &dyn Fn(u8) -> String| {
        let all: Vec<String> = token.bytes().map(each).collect();
        all.join(separator)
    };
    vec![
        token.to_string(),
        token[4..20].to_string(),
        hex::encode(token),
        hex::encode_upper(token),
        join(", ", &|byte| byte.to_string()),
    ]
}

#[test]
fn no_output_and_no_argument_shows_the_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let file = directory.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("a file");
    let with = |number, token| Rank::start_with(number, &[(VARIABLE, token)], Some(&log));
    let by_variable = format!("token_env={VARIABLE}");
    let by_file = format!("token_file={}", file.display());

    let mut ranks = vec![with(0, TOKEN), with(1, TOKEN)];
    let mut arguments = String::new();
    for rank in &ranks {
        let path = format!("/proc/{}/cmdline", rank.pid());
        arguments += &std::fs::read_to_string(path).expect("the process exists");
    }
    for (rank, source) in ranks.iter_mut().zip([&by_variable, &by_file]) {
        rank.tell(&format!("bind 0 grpc 2 {source}"));
    }
    let bound: Vec<_> = ranks.iter_mut().map(|rank| rank.answer("bound")).collect();
    for rank in &mut ranks {
        rank.tell(&format!("join {}", bound.join(" ")));
    }
    for rank in &mut ranks {
        rank.answer("joined");
        rank.tell("call all_reduce 1000");
    }
    for rank in &mut ranks {
        rank.answer("called");
    }
    // A process with another token, in place of rank 1, while the group runs.
    let mut outsider = with(1, OTHER);
    outsider.tell(&format!("bind 0 grpc 2 {by_variable} rendezvous_ms=3000"));
    let own = outsider.answer("bound");
    outsider.tell(&format!("join {} {own}", bound[0]));
    assert!(outsider.answer("error").contains("token"));
    leave(&mut ranks);
    let mut zero = ranks.swap_remove(0);
    zero.tell("panic");
    zero.wait();
    drop((zero, ranks, outsider));

    let shown = arguments + &std::fs::read_to_string(&log).expect("a log");
    for part in [
        "trace distribute_collectives",
        "trace h2",
        "panicked",
        "Token(..)",
    ] {
        assert!(shown.contains(part), "no {part} in {} bytes", shown.len());
    }
    for token in [TOKEN, OTHER] {
        for form in forms(token) {
            assert!(!shown.contains(&form), "the token is shown as {form}");
        }
    }
}

/// The setting of ranks that have a certificate and accept it, in a directory.
pub fn certificate(directory: &Path) -> String {
    let ca = Authority::new();
    ca.identity(&ca, directory, "good", false)
}

struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        let issuer = Issuer::new(params, key);
        Authority {
            certificate,
            issuer,
        }
    }

    /// Writes a certificate of this authority for 127.0.0.1, whose owner accepts certificates of
    /// `accepts`; returns the setting.
    fn identity(&self, accepts: &Authority, at: &Path, name: &str, expired: bool) -> String {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_string()]).expect("a name");
        if expired {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let directory = at.join(name);
        std::fs::create_dir(&directory).expect("a directory");
        let write = |name: &str, text: String| {
            std::fs::write(directory.join(name), text).expect("a file");
        };
        write("ca.pem", accepts.certificate.pem());
        write("certificate.pem", certificate.pem());
        write("key.pem", key.serialize_pem());
        format!("tls={}", directory.display())
    }
}

#[rstest]
fn a_group_with_token_and_certificates_works(#[values("grpc", "auto")] transport: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    std::fs::write(&file, TOKEN).expect("a file");
    let ca = Authority::new();
    let tls = ca.identity(&ca, directory.path(), "good", false);
    let mut ranks = group(
        3,
        transport,
        &format!("token_file={} {tls} lanes=2", file.display()),
    );
    for call in [
        "all_reduce 300000",
        "barrier",
        "all_gather 1000",
        "broadcast 1 70000",
    ] {
        for rank in &mut ranks {
            rank.tell(&format!("call {call}"));
        }
        for rank in &mut ranks {
            rank.answer("called");
        }
    }
    leave(&mut ranks);
}

#[test]
fn wrong_certificates_keep_a_group_from_forming() {
    let directory = tempfile::tempdir().expect("a directory");
    let (ca, other) = (Authority::new(), Authority::new());
    let at = directory.path();
    let good = ca.identity(&ca, at, "good", false);
    let foreign = other.identity(&ca, at, "foreign", false);
    let expired = ca.identity(&ca, at, "expired", true);
    for (bad, reason) in [(&foreign, "certificate"), (&expired, "expired")] {
        let mut ranks = start(2);
        for (rank, tls) in ranks.iter_mut().zip([&good, bad]) {
            rank.tell(&format!("bind 0 grpc 2 {tls} rendezvous_ms=4000"));
        }
        let bound: Vec<_> = ranks.iter_mut().map(|rank| rank.answer("bound")).collect();
        let line = format!("join {}", bound.join(" "));
        for rank in &mut ranks {
            rank.tell(&line);
        }
        for rank in &mut ranks {
            let answer = rank.answer("error");
            assert!(answer.contains(reason), "rank {}: {answer}", rank.number);
        }
    }
}
