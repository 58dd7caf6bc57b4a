//! What a fuzz target calls: any bytes as messages. A panic is a find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::messages::{Answer, Opening, Order, Reply};

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The target by its name.
pub const TARGETS: [Target; 1] = [("peers_messages", peers_messages)];

/// Reads the bytes as each kind of message, and what was read from its own text again.
pub fn peers_messages(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    round_trip::<Opening>(text);
    round_trip::<Reply>(text);
    round_trip::<Order>(text);
    round_trip::<Answer>(text);
}

#[expect(clippy::expect_used, reason = "a fuzz target fails by a panic")]
fn round_trip<T: DeserializeOwned + Serialize>(text: &str) {
    let Ok(message) = serde_json::from_str::<T>(text) else {
        return;
    };
    let written = serde_json::to_string(&message).expect("it came from text");
    let again: T = serde_json::from_str(&written).expect("it is a message");
    let twice = serde_json::to_string(&again).expect("it came from text");
    assert_eq!(twice, written);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::attempt::{Attempt, Outcome};
    use crate::facts::Facts;
    use crate::interfaces::Interface;
    use crate::measure::Figures;
    use crate::messages::{Card, Target};

    #[test]
    fn the_corpus_has_the_seeds_and_the_target_fails_with_no_file_of_it() {
        hostile::corpus::check(TARGETS[0], &seeds());
    }

    fn attempt(outcome: Outcome) -> Attempt {
        Attempt {
            rank: 2,
            address: "host:7".to_string(),
            resolved: Some("192.0.2.1:7".parse().unwrap()),
            from: Some("2001:db8::1".parse().unwrap()),
            interface: Some("eth0".to_string()),
            seconds: 0.25,
            outcome,
        }
    }

    fn card() -> Card {
        Card {
            rank: 1,
            name: "worker 1".to_string(),
            address: Some("192.0.2.2:7".to_string()),
            listens_at: Some("192.0.2.2".parse().unwrap()),
            trouble: None,
            from: None,
            leader: Some(attempt(Outcome::Refused)),
            listed: vec![Some("a:1".to_string()), None],
            facts: Facts::default(),
            interfaces: vec![Interface::new("lo", [127, 0, 0, 1].into(), false)],
        }
    }

    fn seeds() -> hostile::corpus::Seeds {
        let text = |message: &dyn Fn() -> serde_json::Result<String>| message().unwrap();
        let target = Target {
            rank: 3,
            address: None,
        };
        let attempts = [
            Outcome::NoAnswer,
            Outcome::OtherRank(4),
            Outcome::Closed("x".into()),
        ];
        let attempts = attempts.map(attempt).to_vec();
        let figures = Figures {
            round_trip_seconds: 1e-4,
            bytes_per_second: 1.25e9,
        };
        let order = Order::Measure(target.clone(), Duration::from_millis(125));
        let seeds = [
            (
                "join",
                text(&|| serde_json::to_string(&Opening::Join(Box::new(card())))),
            ),
            ("lead", text(&|| serde_json::to_string(&Opening::Lead))),
            (
                "here",
                text(&|| serde_json::to_string(&Reply::Here(Box::new(card())))),
            ),
            (
                "reach",
                text(&|| serde_json::to_string(&Order::Reach(vec![target.clone()]))),
            ),
            ("measure", text(&|| serde_json::to_string(&order))),
            (
                "reached",
                text(&|| serde_json::to_string(&Answer::Reached(attempts.clone()))),
            ),
            (
                "measured",
                text(&|| serde_json::to_string(&Answer::Measured(Ok(figures)))),
            ),
            ("huge", "{\"time\":18446744073709551615}".to_string()),
            ("too-huge", "{\"time\":18446744073709551616}".to_string()),
            ("deep", "[".repeat(1000)),
        ];
        seeds
            .map(|(name, text)| (name, text.into_bytes()))
            .into_iter()
            .collect::<BTreeMap<_, _>>()
    }
}
