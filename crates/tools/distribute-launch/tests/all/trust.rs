//! Launchers of several hosts that are listened to, led astray, or shown the wrong certificate.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use distribute_launch::{Hosts, LaunchError, Outcome, Security, TlsIdentity};
use distribute_net::peers::{Connection, accept};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rstest::rstest;
use tokio_stream::StreamExt;

use crate::common::{Seen, script, security, see};
use crate::hosts::{meeting_point, see_jobs};

const HERE: &[&str] = &["127.0.0.1"];
/// What a relay has that listens at all addresses.
const EVERYWHERE: &[&str] = &["0.0.0.0", "127.0.0.1"];

/// A token and a certificate for each of these lists of addresses, all of one new authority.
fn certificates<const HOSTS: usize>(of_hosts: [&[&str]; HOSTS]) -> [Security; HOSTS] {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    of_hosts.map(|addresses| {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = addresses.iter().map(|&name| name.to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let own = params.signed_by(&key, &issuer).unwrap();
        let key = key.serialize_pem();
        security().tls(TlsIdentity::new(authority.clone(), own.pem(), key))
    })
}

/// Two hosts with these addresses of the relay, running `text`.
fn two_hosts(
    text: &str,
    addresses: [SocketAddr; 2],
    with: [Security; 2],
    seconds: u64,
) -> [Seen; 2] {
    see_hosts(text, addresses, with, |hosts| {
        hosts.join_timeout(Duration::from_secs(seconds))
    })
}

/// As [`two_hosts`], where the relay knows that it is dialled under another address.
fn two_hosts_apart(
    text: &str,
    addresses: [SocketAddr; 2],
    with: [Security; 2],
    seconds: u64,
) -> [Seen; 2] {
    see_hosts(text, addresses, with, |hosts| {
        hosts.join_timeout(Duration::from_secs(seconds)).forwarded()
    })
}

fn see_hosts(
    text: &str,
    addresses: [SocketAddr; 2],
    with: [Security; 2],
    adjust: impl Fn(Hosts) -> Hosts,
) -> [Seen; 2] {
    let hosts = addresses.into_iter().zip(with).enumerate();
    let jobs = hosts.map(|(index, (address, security))| {
        script(text).hosts(adjust(Hosts::new(address, 2, index, security)))
    });
    let seen = see_jobs(jobs.collect()).try_into();
    seen.unwrap_or_else(|_| panic!("two jobs"))
}

fn refusal(seen: &Seen) -> String {
    let error = seen.result.as_ref().unwrap_err();
    assert!(matches!(error, LaunchError::HostRefused { .. }), "{error}");
    error.to_string()
}

/// Passes on to this address what `change` makes of each piece of bytes from the launcher that
/// dials (true) and from the relay.
fn proxy(
    to: SocketAddr,
    change: impl Fn(bool, Vec<u8>) -> Vec<u8> + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            // The launcher that connects too early comes again.
            let Ok(far) = TcpStream::connect(to) else {
                continue;
            };
            for is_dialler in [true, false] {
                let ends = [near.try_clone().unwrap(), far.try_clone().unwrap()];
                let [mut from, mut to] = ends;
                if !is_dialler {
                    std::mem::swap(&mut from, &mut to);
                }
                let change = change.clone();
                thread::spawn(move || {
                    let mut bytes = [0; 1 << 16];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        let changed = change(is_dialler, bytes[..count].to_vec());
                        if to.write_all(&changed).is_err() {
                            break;
                        }
                    }
                    let _ended = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    address
}

/// A proxy that keeps what it passes on.
fn tap(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let seen = Arc::<Mutex<Vec<u8>>>::default();
    let kept = Arc::clone(&seen);
    let address = proxy(to, move |_, bytes| {
        kept.lock().unwrap().extend(&bytes);
        bytes
    });
    (address, seen)
}

/// These bytes with `to` in place of `from`, which is as long.
fn replaced(mut bytes: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let found = bytes
        .windows(from.len())
        .position(|part| part == from.as_bytes());
    if let Some(at) = found {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

#[test]
fn launchers_on_a_network_need_certificates_or_are_told_to_be_insecure() {
    let anywhere = SocketAddr::from(([192, 0, 2, 1], 7));
    let error = |index, security| {
        let hosts = Hosts::new(anywhere, 2, index, security).join_timeout(Duration::ZERO);
        see(script("true").hosts(hosts)).result.unwrap_err()
    };
    let [tls] = certificates([&["192.0.2.1"]]);
    for index in [0, 1] {
        let refused = error(index, security());
        assert!(matches!(refused, LaunchError::NotEncrypted { .. }));
        let text = refused.to_string();
        assert!(text.contains("give all of them certificates"), "{text}");
    }
    // The address is of no host.
    for allowed in [security().insecure(), tls] {
        let error = error(0, allowed);
        assert!(matches!(error, LaunchError::Rendezvous { .. }), "{error}");
    }
}

#[rstest]
#[case::certificates(true, certificates([EVERYWHERE, HERE]))]
#[case::no_certificates(false, [security().insecure(), security().insecure()])]
fn who_reads_along_learns_nothing_from_launchers_with_certificates(
    #[case] is_encrypted: bool,
    #[case] with: [Security; 2],
) {
    let (address, _ports) = meeting_point();
    let (tapped, seen) = tap(address);
    // The last lines of a process that fails are told to all launchers.
    let text = "echo $DISTRIBUTE_JOB_TOKEN; if [ $i = 1 ]; then echo a known line >&2; exit 3; fi
        exec sleep 100";
    let ended = two_hosts_apart(text, [address, tapped], with, 30);
    for one in &ended {
        let Outcome::Failed { cause, .. } = one.outcome() else {
            panic!("{}", one.stderr);
        };
        assert_eq!(cause.last_lines, ["a known line"]);
    }
    let seen = String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
    let parts = [
        "nonce",
        "restarts_max",
        "Ready",
        "127.0.0.1:",
        "a known line",
    ];
    for part in parts {
        assert_eq!(seen.contains(part), !is_encrypted, "{part} in {seen}");
    }
    let token = String::from_utf8_lossy(&ended[0].stdout);
    assert!(token.trim().len() == 64 && !seen.contains(token.trim()));
}

/// Of an authority of its own.
fn certificate() -> Security {
    let [own] = certificates([HERE]);
    own
}

#[rstest]
#[case::of_another_host(
    certificates([HERE, &["192.0.2.7"]]),
    "the certificate of host 1 is not for its address 127.0.0.1"
)]
#[case::of_another_authority([certificate(), certificate()], "not issued by the CA")]
#[case::none_at_host_1(
    [certificate(), security()],
    "it uses TLS, this process does not: give both a certificate"
)]
#[case::none_at_host_0(
    [security(), certificate()],
    "it does not use TLS, this process does: give both a certificate"
)]
fn a_launcher_whose_certificate_does_not_fit_is_refused(
    #[case] with: [Security; 2],
    #[case] why: &str,
) {
    let (address, _ports) = meeting_point();
    let [first, second] = two_hosts("true", [address; 2], with, 3);
    let said = refusal(&second);
    assert!(said.contains(why), "{said}");
    assert!(first.result.is_err());
}

/// Host 0 dials its own relay first; it ends before the other one has found it, or after.
#[test]
fn a_relay_whose_certificate_is_for_another_host_is_refused() {
    let [elsewhere, second] = certificates([&["192.0.2.7"], HERE]);
    let (address, _ports) = meeting_point();
    let [first, second] = two_hosts("true", [address; 2], [elsewhere, second], 3);
    let said = refusal(&first);
    let why = "its certificate is not for the host of its address";
    assert!(said.contains(why), "{said}");
    assert!(second.result.is_err());
}

#[rstest]
#[case::of_another_host(true, r#""task":1"#, r#""task":0"#, "its token is another one")]
#[case::of_another_job(
    true,
    r#""restarts_max\":0"#,
    r#""restarts_max\":9"#,
    "its token is another one"
)]
#[case::for_something_else(
    false,
    r#""launcher""#,
    r#""worker"  "#,
    "its connection is for a worker"
)]
#[case::of_another_relay(false, r#""task":0"#, r#""task":1"#, "its token is another one")]
fn a_word_that_is_changed_on_the_way_is_refused(
    #[case] by_dialler: bool,
    #[case] from: &'static str,
    #[case] to: &'static str,
    #[case] why: &str,
) {
    let (address, _ports) = meeting_point();
    let between = proxy(address, move |is_dialler, bytes| {
        if is_dialler == by_dialler {
            replaced(bytes, from, to)
        } else {
            bytes
        }
    });
    let with = [security().insecure(), security().insecure()];
    let [first, second] = two_hosts_apart("true", [address, between], with, 3);
    let said = refusal(&second);
    assert!(said.contains(why), "{said}");
    let error = first.result.unwrap_err();
    assert!(matches!(error, LaunchError::HostsMissing { .. }), "{error}");
}

/// Without TLS a byte that was changed on the way looks as if the two did not fit.
#[rstest]
#[case::in_the_first_words(true, r#""task":1"#, r#""task":0"#)]
#[case::in_the_answer(false, r#""launcher""#, r#""worker"  "#)]
fn a_word_that_is_changed_once_is_tried_again(
    #[case] by_dialler: bool,
    #[case] from: &'static str,
    #[case] to: &'static str,
) {
    let (address, _ports) = meeting_point();
    let is_changed = Arc::new(AtomicBool::new(false));
    let changed = Arc::clone(&is_changed);
    let between = proxy(address, move |is_dialler, bytes| {
        if is_dialler == by_dialler && !changed.load(Ordering::Relaxed) {
            let new = replaced(bytes.clone(), from, to);
            changed.fetch_or(new != bytes, Ordering::Relaxed);
            new
        } else {
            bytes
        }
    });
    let with = [security().insecure(), security().insecure()];
    for one in two_hosts_apart("true", [address, between], with, 20) {
        assert_eq!(*one.outcome(), Outcome::Succeeded { restarts: 0 });
    }
    assert!(is_changed.load(Ordering::Relaxed));
}

#[test]
fn a_relay_that_is_dialled_under_another_address_is_none() {
    let (address, _ports) = meeting_point();
    let (forwarded, _) = tap(address);
    let [_, second] = two_hosts("true", [address, forwarded], [security(), security()], 3);
    let said = refusal(&second);
    assert!(said.contains("was dialled, and"), "{said}");
}

/// Who has a certificate of the job, but not its token, carries the proofs of two connections from
/// one to the other.
#[test]
fn a_proof_that_is_relayed_between_two_tls_connections_is_refused() {
    let [first, second, between] = certificates([EVERYWHERE, HERE, HERE]);
    let (address, _ports) = meeting_point();
    let tls = between.tls_settings().unwrap().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let mut connections = accept(listener, Some(tls.clone()), |_, _| {}).unwrap();
            while let Some(Ok(mut near)) = connections.next().await {
                if let Ok(mut far) = Connection::open(&address.to_string(), Some(&tls)).await {
                    let _ended = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            }
        });
    });
    let [_, second] = two_hosts_apart("true", [address, dialled], [first, second], 3);
    let said = refusal(&second);
    assert!(said.contains("its token is another one"), "{said}");
}

#[test]
fn two_launchers_with_certificates_make_one_job() {
    let (address, _ports) = meeting_point();
    let with = certificates([HERE, HERE]);
    let text = "if [ $DISTRIBUTE_RESTART = 0 ]; then exit 3; fi; exec true";
    let hosts = with.into_iter().enumerate().map(|(index, security)| {
        let hosts = Hosts::new(address, 2, index, security);
        script(text).max_restarts(1).hosts(hosts)
    });
    for one in see_jobs(hosts.collect()) {
        let expected = Outcome::Succeeded { restarts: 1 };
        assert_eq!(*one.outcome(), expected, "{}", one.stderr);
    }
}

/// Each launcher but the last has one other connected to it, which checks its certificate too.
#[test]
fn a_chain_of_launchers_is_encrypted_all_along() {
    let (address, _ports) = meeting_point();
    let with = certificates([HERE; 4]).into_iter().enumerate();
    let jobs = with.map(|(index, security)| {
        let hosts = Hosts::new(address, 4, index, security).arity(1);
        script("echo $i").hosts(hosts.join_timeout(Duration::from_secs(30)))
    });
    for seen in see_jobs(jobs.collect()) {
        let ended = Outcome::Succeeded { restarts: 0 };
        assert_eq!(*seen.outcome(), ended, "{}", seen.stderr);
    }
}
