//! Attacks by a man in the middle, field by field; and differences between honest processes.

use super::*;

const BINDING: &[u8] = b"the exporter";

fn secret() -> Secret {
    Secret::new("0123456789abcdef")
}

fn hello(task: u32) -> Hello {
    let mut hello = Hello::new(Purpose::Data, 3, "0.1.0");
    hello.address = "127.0.0.1:80".to_string();
    hello.identity = Identity {
        group: "job".to_string(),
        task,
        run: format!("run {task}"),
        generation: 4,
    };
    hello.peer_task = Some(1 - task);
    hello.details = "lane 0 of 2".to_string();
    hello
}

/// The message that a man in the middle changes.
#[derive(Clone, Copy)]
enum Changed {
    First,
    Answer,
    Proof,
}

type Outcome = (Result<(), HandshakeError>, Result<(), HandshakeError>);

/// The outcomes of the dialer and of the listener when messages are changed on the way. The
/// listener gets the proof of a dialer that ignores errors.
fn outcome(change: impl Fn(Changed, String) -> String, bindings: [&[u8]; 2]) -> Outcome {
    let (dialer, first) = Dialer::start(hello(1), &secret()).unwrap();
    let text = first.clone();
    let first = change(Changed::First, first);
    let listener = match Listener::receive(&first) {
        Ok(listener) => listener,
        Err(error) => return (Err(error.clone()), Err(error)),
    };
    let (waiting, answer) = listener.answer(hello(0), &secret(), bindings[1]).unwrap();
    let answer = change(Changed::Answer, answer);
    let careless = Transcript {
        secret: secret(),
        binding: bindings[0].to_vec(),
        dialer: text,
        listener: answer.split_once(' ').unwrap().1.to_string(),
    };
    let proof = change(Changed::Proof, careless.proof_of_dialer());
    let judged = |proven: Verified| proven.check_compatible().map(|_| ());
    (
        dialer
            .finish(&answer, bindings[0])
            .and_then(|(_, proven)| judged(proven)),
        waiting.finish(&proof).and_then(judged),
    )
}

#[test]
fn two_processes_with_one_secret_know_who_they_talk_to_and_share_a_key() {
    assert_eq!(outcome(|_, text| text, [BINDING; 2]), (Ok(()), Ok(())));
    let meet = || {
        let (dialer, first) = Dialer::start(hello(1), &secret()).unwrap();
        let listener = Listener::receive(&first).unwrap();
        let (waiting, answer) = listener.answer(hello(0), &secret(), BINDING).unwrap();
        assert_eq!(waiting.peer().identity, hello(1).identity);
        let (proof, proven) = dialer.finish(&answer, BINDING).unwrap();
        let one = proven.check_compatible().unwrap();
        let zero = waiting.finish(&proof).unwrap().check_compatible().unwrap();
        assert_eq!(one.peer.identity, hello(0).identity);
        assert_eq!(zero.peer.details, hello(1).details);
        assert_eq!(one.session_key, zero.session_key);
        one.session_key
    };
    assert_ne!(meet(), meet());
}

/// Every word of both Hellos is proven: both sides notice a change on the way.
#[test]
fn every_field_that_is_changed_on_the_way_fails_the_proof_on_both_sides() {
    let fields = [
        (r#""protocol_version":3"#, r#""protocol_version":4"#),
        (r#""build":"0.1.0""#, r#""build":"0.2.0""#),
        (r#""purpose":"data""#, r#""purpose":"control""#),
        (r#""address":"127.0.0.1:80""#, r#""address":"127.0.0.1:81""#),
        (r#""group":"job""#, r#""group":"boj""#),
        (r#""task":"#, r#""task":1"#),
        (r#""run":"run "#, r#""run":"ran "#),
        (r#""generation":4"#, r#""generation":5"#),
        (r#""peer_task":"#, r#""peer_task":1"#),
        (r#""details":"lane 0"#, r#""details":"lane 1"#),
        (r#""nonce":""#, r#""nonce":"0"#),
        (r#""has_secret":true"#, r#""has_secret":false"#),
        (r#"{"#, r#"{ "#),
    ];
    for (field, changed) in fields {
        for which in [Changed::First, Changed::Answer] {
            let change = |now: Changed, text: String| {
                let is_it = std::mem::discriminant(&now) == std::mem::discriminant(&which);
                let text = if is_it {
                    assert!(text.contains(field), "{text}");
                    text.replacen(field, changed, 1)
                } else {
                    text
                };
                // A nonce keeps its length.
                if field.contains("nonce") && is_it {
                    let at = text.find(r#""nonce":""#).unwrap() + 9 + 64;
                    format!("{}{}", &text[..at], &text[at + 1..])
                } else {
                    text
                }
            };
            let (dialer, listener) = outcome(change, [BINDING; 2]);
            for (side, result) in [("dialer", dialer), ("listener", listener)] {
                let error = result.expect_err(&format!("{field} at the {side}"));
                let said = !matches!(error, HandshakeError::Malformed { .. });
                assert!(said, "{field} at the {side}: {error}");
            }
        }
    }
}

#[test]
fn a_proof_is_worth_nothing_on_another_channel_or_with_another_secret() {
    let (dialer, listener) = outcome(|_, text| text, [BINDING, b"another exporter"]);
    assert_eq!(dialer, Err(HandshakeError::WrongProof));
    assert_eq!(listener, Err(HandshakeError::WrongProof));
    let (dialer, first) = Dialer::start(hello(1), &Secret::new("another secret")).unwrap();
    let listener = Listener::receive(&first).unwrap();
    let (waiting, answer) = listener.answer(hello(0), &secret(), BINDING).unwrap();
    // The dialer stops here: it has proven nothing.
    let failed = dialer.finish(&answer, BINDING).unwrap_err();
    assert_eq!(failed, HandshakeError::WrongProof);
    assert_eq!(waiting.finish("").unwrap_err(), HandshakeError::WrongProof);
}

#[test]
fn a_proof_that_is_sent_back_is_worth_nothing() {
    // The dialer's own words as the listener's, and the listener's proof as the dialer's.
    let (dialer, first) = Dialer::start(hello(1), &secret()).unwrap();
    let listener = Listener::receive(&first).unwrap();
    let (waiting, answer) = listener.answer(hello(0), &secret(), BINDING).unwrap();
    let (proof, text) = answer.split_once(' ').unwrap();
    assert_eq!(
        waiting.finish(proof).unwrap_err(),
        HandshakeError::WrongProof
    );
    for (proof, text) in [(proof, &*first), ("", &*first), ("", text)] {
        let (dialer, _) = Dialer::start(hello(1), &secret()).unwrap();
        assert!(dialer.finish(&format!("{proof} {text}"), BINDING).is_err());
    }
    let mirrored = format!("{proof} {first}");
    assert!(dialer.finish(&mirrored, BINDING).is_err());
}

#[test]
fn what_was_recorded_is_worth_nothing_in_another_session() {
    let (dialer, first) = Dialer::start(hello(1), &secret()).unwrap();
    let listener = Listener::receive(&first).unwrap();
    let (_, answer) = listener.answer(hello(0), &secret(), BINDING).unwrap();
    let (proof, _) = dialer.finish(&answer, BINDING).unwrap();
    // To the listener, all of it; to another dialer, the answer.
    let listener = Listener::receive(&first).unwrap();
    let (waiting, _) = listener.answer(hello(0), &secret(), BINDING).unwrap();
    assert_eq!(
        waiting.finish(&proof).unwrap_err(),
        HandshakeError::WrongProof
    );
    let (dialer, _) = Dialer::start(hello(1), &secret()).unwrap();
    let failed = dialer.finish(&answer, BINDING).unwrap_err();
    assert_eq!(failed, HandshakeError::WrongProof);
}

/// The outcome of both sides when the listener's Hello is another one, and the secrets these.
fn between(listener: Hello, secrets: [&Secret; 2]) -> Outcome {
    let (dialer, first) = Dialer::start(hello(1), secrets[0]).unwrap();
    let received = Listener::receive(&first).unwrap();
    let (waiting, answer) = received.answer(listener, secrets[1], BINDING).unwrap();
    let judged = |proven: Verified| proven.check_compatible().map(|_| ());
    match dialer.finish(&answer, BINDING) {
        Ok((proof, proven)) => (judged(proven), waiting.finish(&proof).and_then(judged)),
        Err(error) => (Err(error), waiting.finish("").and_then(judged)),
    }
}

/// A relay of the whole conversation to another port is noticed by the dialled address.
#[test]
fn a_connection_that_is_carried_to_another_port_or_purpose_is_refused_by_both() {
    let other_port = Hello {
        address: "127.0.0.1:81".to_string(),
        ..hello(0)
    };
    let expected = HandshakeError::OtherAddress {
        dialled: "127.0.0.1:80".to_string(),
        address: "127.0.0.1:81".to_string(),
    };
    let both = between(other_port, [&secret(), &secret()]);
    assert_eq!(both, (Err(expected.clone()), Err(expected)));
    // A listener that does not know under which address others know it.
    let unknown = Hello {
        address: String::new(),
        ..hello(0)
    };
    assert_eq!(between(unknown, [&secret(), &secret()]), (Ok(()), Ok(())));
    let other_purpose = Hello {
        purpose: Purpose::Worker,
        ..hello(0)
    };
    let (dialer, listener) = between(other_purpose, [&secret(), &secret()]);
    let text = dialer.unwrap_err().to_string();
    assert!(
        text.contains("for a worker, this one for a data connection"),
        "{text}"
    );
    let text = listener.unwrap_err().to_string();
    assert!(
        text.contains("for a data connection, this one for a worker"),
        "{text}"
    );
}

#[test]
fn another_version_is_named_by_both_with_the_right_secret_and_with_a_wrong_one() {
    let (right, wrong) = (secret(), Secret::new("another secret"));
    let newer = || Hello {
        protocol_version: 4,
        ..hello(0)
    };
    for secrets in [[&right, &right], [&right, &wrong]] {
        let (dialer, listener) = between(newer(), secrets);
        let text = dialer.unwrap_err().to_string();
        assert!(
            text.contains("version 4 of the protocol (0.1.0), this process version 3"),
            "{text}"
        );
        let text = listener.unwrap_err().to_string();
        assert!(
            text.contains("version 3 of the protocol (0.1.0), this process version 4"),
            "{text}"
        );
    }
    let build = Hello {
        build: "0.2.0".to_string(),
        ..hello(0)
    };
    let (dialer, listener) = between(build, [&right, &right]);
    assert!(matches!(dialer, Err(HandshakeError::OtherBuild { .. })));
    assert!(matches!(listener, Err(HandshakeError::OtherBuild { .. })));
    // Another handshake altogether: the rest may be anything.
    let error = Listener::receive(r#"{"handshake":2,"purpose":7}"#).unwrap_err();
    let expected = HandshakeError::OtherHandshake { theirs: 2, ours: 1 };
    assert_eq!(error, expected);
    let (dialer, _) = Dialer::start(hello(1), &right).unwrap();
    let error = dialer.finish(r#" {"handshake":2,"purpose":7}"#, b"");
    assert_eq!(error.unwrap_err(), expected);
}

/// An old start of the group may have another token and another build.
#[test]
fn another_generation_is_said_by_both_before_all_else() {
    let mut old = hello(1);
    old.identity.generation = 3;
    old.build = "0.0.1".to_string();
    for theirs in ["another secret of the job", "", "0123456789abcdef"] {
        let secrets = [theirs, "0123456789abcdef"].map(Secret::new);
        let (dialer, listener) = between(old.clone(), [&secrets[0], &secrets[1]]);
        for (side, theirs, ours) in [(dialer, 3, 4), (listener, 4, 3)] {
            assert_eq!(side, Err(HandshakeError::OtherGeneration { theirs, ours }));
        }
    }
}

#[test]
fn a_secret_that_only_one_side_has_is_said_by_both() {
    let none = Secret::default();
    assert_eq!(between(hello(0), [&none, &none]), (Ok(()), Ok(())));
    for (secrets, dialer_is_told) in [([&secret(), &none], false), ([&none, &secret()], true)] {
        let told = |peer_has_one| Err(HandshakeError::SecretOfOneSide { peer_has_one });
        let both = between(hello(0), secrets);
        assert_eq!(both, (told(dialer_is_told), told(!dialer_is_told)));
    }
}

#[test]
fn nonsense_is_refused() {
    let long = "x".repeat(MESSAGE_BYTES_MAX + 1);
    let short_nonce = serde_json::to_string(&hello(1)).unwrap();
    for text in ["", "{}", "[1]", "\u{0}", &long, &short_nonce] {
        let error = Listener::receive(text).unwrap_err();
        assert!(matches!(error, HandshakeError::Malformed { .. }), "{text}");
        for answer in [text.to_string(), format!(" {text}")] {
            let (dialer, _) = Dialer::start(hello(1), &secret()).unwrap();
            let error = dialer.finish(&answer, BINDING).unwrap_err();
            assert!(matches!(error, HandshakeError::Malformed { .. }), "{text}");
        }
    }
    let huge = Hello {
        details: long,
        ..hello(1)
    };
    assert!(Dialer::start(huge, &secret()).is_err());
}
