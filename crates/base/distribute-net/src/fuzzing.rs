//! The fuzz targets: they read any bytes as the messages of a handshake, or as a certificate. A
//! panic is a finding.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use crate::calendar::shown;
use crate::certificate::Certificate;
use crate::handshake::{Dialer, Hello, Listener, MESSAGE_BYTES_MAX, Purpose, Secret};

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 2] = [("handshake", handshake), ("certificate", certificate)];

/// A certificate in DER: the text about it has no terminal control characters.
pub fn certificate(bytes: &[u8]) {
    let Some(found) = Certificate::of_der(bytes) else {
        return;
    };
    let names = found.names.iter().chain(&found.subject);
    let mut names = names.flat_map(|name| name.chars());
    assert!(!names.any(char::is_control));
    for time in [found.from, found.until] {
        assert!(shown(time).ends_with(" UTC"));
        let _standing = found.standing(time);
    }
}

/// Lines from an unauthenticated peer: each is read as the first, the second and the last
/// message. It never authenticates, and the errors and answers are short.
pub fn handshake(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let secret = Secret::new("what only members know");
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
        hostile::corpus::check(TARGETS[1], &certificates());
    }

    /// A value of ASN.1: its tag, its length in the long form, its content.
    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &length[..], &content].concat()
    }

    /// The content of a certificate with these dates and alternative names, without a signature.
    fn unsigned(times: &[&[u8]], names: &[&[u8]]) -> Vec<u8> {
        let any = der(0x30, &[]);
        let common = der(
            0x30,
            &[&der(0x06, &[&[0x55, 4, 3]]), &der(0x0c, &[b"node1\x1b"])],
        );
        let subject = der(0x30, &[&der(0x31, &[&common])]);
        let extension = [
            der(0x06, &[&[0x55, 0x1d, 0x11]]),
            der(0x01, &[&[0xff]]),
            der(0x04, &[&der(0x30, names)]),
        ];
        let extensions = der(0xa3, &[&der(0x30, &[&der(0x30, &[&extension.concat()])])]);
        let fields = [
            &der(0xa0, &[&[2, 1, 2]])[..],
            &der(0x02, &[&[1]]),
            &any,
            &any,
            &der(0x30, times),
            &subject,
            &any,
            &extensions,
        ];
        der(0x30, &[&der(0x30, &fields)])
    }

    fn certificates() -> Seeds {
        let utc = |text: &[u8]| der(0x17, &[text]);
        let (from, until) = (utc(b"261128163900Z"), der(0x18, &[b"20991231235959Z"]));
        let names: [&[u8]; 4] = [
            &der(0x82, &[b"node1.example"]),
            &der(0x87, &[&[192, 0, 2, 1]]),
            &der(0x87, &[&[0xfd; 16]]),
            &der(0x87, &[&[1]]),
        ];
        let dates: [&[u8]; 2] = [&from, &until];
        let whole = unsigned(&dates, &names);
        let found = Certificate::of_der(&whole).unwrap();
        assert_eq!(found.names.len(), 3, "{found:?}");
        Seeds::from([
            ("whole", whole.clone()),
            ("half", whole[..whole.len() / 2].to_vec()),
            ("no-names", unsigned(&dates, &[])),
            ("no-dates", unsigned(&[], &names)),
            (
                "month-13",
                unsigned(&[&utc(b"261328163900Z"), &until], &names),
            ),
            (
                "year-0",
                unsigned(&[&der(0x18, &[b"00000101000000Z"]), &until], &names),
            ),
            ("giant-length", vec![0x30, 0x84, 0xff, 0xff, 0xff, 0xff]),
            ("deep", [0x30, 0x80].repeat(1000)),
        ])
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
