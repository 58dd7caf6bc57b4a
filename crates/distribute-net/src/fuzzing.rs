//! What the fuzz target calls: any bytes as the messages of a handshake. A panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use crate::handshake::{Dialer, Hello, Listener, MESSAGE_BYTES_MAX, Purpose, Secret};

/// A name, and what it calls.
type Target = (&'static str, fn(&[u8]));

/// The target by its name.
pub const TARGETS: [Target; 1] = [("handshake", handshake)];

/// Lines that a stranger sends: each is taken for the first, the second and the last message. It
/// never proves anything, and what is said of it and to it is short.
pub fn handshake(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let secret = Secret::new("what no stranger knows");
    let own = || Hello::new(Purpose::Control, 1, "0.1.0");
    for line in text.lines() {
        if let Ok(listener) = Listener::receive(line) {
            assert!(line.len() <= MESSAGE_BYTES_MAX);
            let _details = listener.peer().read_details::<u64>();
            if let Ok((awaiting, answer)) = listener.answer(own(), &secret, b"binding") {
                assert!(answer.len() <= MESSAGE_BYTES_MAX);
                refused(awaiting.finish(line).err());
            }
        }
        let _peer = Dialer::peek(line);
        if let Ok((dialer, _)) = Dialer::start(own(), &secret) {
            refused(dialer.finish(line, b"binding").err());
        }
    }
}

fn refused(error: Option<impl std::fmt::Display>) {
    let said = error.map(|error| error.to_string().len());
    assert!(said.is_some_and(|length| length < 2 * MESSAGE_BYTES_MAX));
}

#[cfg(test)]
mod tests {
    use hostile::corpus::Seeds;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_corpus_has_the_seeds_and_the_target_fails_with_no_file_of_it() {
        hostile::corpus::check(TARGETS[0], &seeds());
    }

    fn seeds() -> Seeds {
        let hello = |change: fn(&mut Value)| {
            let mut hello = serde_json::to_value(Hello::new(Purpose::Control, 1, "0.1.0")).unwrap();
            (hello["nonce"], hello["has_secret"]) = (json!("0".repeat(64)), json!(true));
            change(&mut hello);
            hello.to_string().into_bytes()
        };
        let answer = [b"0".repeat(64), b" ".to_vec(), hello(|_| {})].concat();
        Seeds::from([
            ("hello", hello(|_| {})),
            ("answer", answer),
            (
                "purpose-unknown",
                hello(|it| it["purpose"] = json!("coffee")),
            ),
            (
                "handshake-other",
                hello(|it| it["handshake"] = json!(u32::MAX)),
            ),
            (
                "version-other",
                hello(|it| it["protocol_version"] = json!(u32::MAX)),
            ),
            ("no-secret", hello(|it| it["has_secret"] = json!(false))),
            ("no-nonce", hello(|it| it["nonce"] = json!(""))),
            (
                "nonce-of-others",
                hello(|it| it["nonce"] = json!("\u{1f600}".repeat(16))),
            ),
            ("task-giant", hello(|it| it["peer_task"] = json!(u64::MAX))),
            (
                "details",
                hello(|it| it["details"] = json!("[".repeat(1000))),
            ),
            (
                "too-long",
                hello(|it| it["build"] = json!("x".repeat(MESSAGE_BYTES_MAX))),
            ),
            ("deep", b"[".repeat(1000)),
        ])
    }
}
