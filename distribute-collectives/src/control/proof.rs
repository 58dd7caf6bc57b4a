//! Proofs that a peer knows the token, and the keys that come of them.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::control::generated::Hello;
use crate::control::security::Token;

/// A key, or the output of HMAC-SHA256.
pub(crate) type Key = [u8; 32];

/// HMAC-SHA256 over parts, each preceded by its length so that no two lists of parts are alike.
fn mac(key: &[u8], parts: &[&[u8]]) -> Key {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of every length");
    };
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// HMAC-SHA256 over a label and parts.
pub(super) fn of_parts(token: &Token, label: &str, parts: &[&[u8]]) -> Vec<u8> {
    let labelled: Vec<&[u8]> = std::iter::once(label.as_bytes())
        .chain(parts.iter().copied())
        .collect();
    mac(token.secret(), &labelled).to_vec()
}

/// Whether both are equal, in a time that does not say where they differ.
pub(super) fn same(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

/// The side that makes a proof; part of what is proven, so that a proof cannot be sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// Everything that two ranks said about themselves, under a label.
fn over_hellos(key: &[u8], label: &str, client: &Hello, server: &Hello) -> Key {
    let numbers = |hello: &Hello| {
        let mut bytes = Vec::with_capacity(28);
        bytes.extend(hello.protocol_version.to_le_bytes());
        bytes.extend(hello.generation.to_le_bytes());
        bytes.extend(hello.world_size.to_le_bytes());
        bytes.extend(hello.rank.to_le_bytes());
        bytes.extend(hello.peer_rank.to_le_bytes());
        bytes
    };
    let (client_numbers, server_numbers) = (numbers(client), numbers(server));
    mac(
        key,
        &[
            label.as_bytes(),
            &client_numbers,
            client.group.as_bytes(),
            client.options.as_bytes(),
            &client.instance,
            &client.nonce,
            &server_numbers,
            server.group.as_bytes(),
            server.options.as_bytes(),
            &server.instance,
            &server.nonce,
        ],
    )
}

/// The proof of one side; empty without a token.
pub(crate) fn proof(token: Option<&Token>, side: Side, client: &Hello, server: &Hello) -> Vec<u8> {
    let label = match side {
        Side::Client => "distribute proof of the client",
        Side::Server => "distribute proof of the server",
    };
    match token {
        Some(token) => over_hellos(token.secret(), label, client, server).to_vec(),
        None => Vec::new(),
    }
}

/// Whether `received` is the proof of that side.
pub(crate) fn verify(
    token: Option<&Token>,
    side: Side,
    client: &Hello,
    server: &Hello,
    received: &[u8],
) -> bool {
    same(&proof(token, side, client, server), received)
}

/// The key that the two ranks share from now on. Without a token it only tells connections of
/// one pair from those of others.
pub(crate) fn session_key(token: Option<&Token>, client: &Hello, server: &Hello) -> Key {
    let secret = token.map_or(&[][..], Token::secret);
    over_hellos(secret, "distribute session key", client, server)
}

/// What `rank` sends when it opens data connection `lane` to the other rank of the pair.
pub(crate) fn data_proof(session_key: &Key, generation: u64, rank: usize, lane: usize) -> String {
    let parts: [&[u8]; 4] = [
        b"distribute data connection",
        &generation.to_le_bytes(),
        &(rank as u64).to_le_bytes(),
        &(lane as u64).to_le_bytes(),
    ];
    let hex = |byte: &u8| format!("{byte:02x}");
    mac(session_key, &parts).iter().map(hex).collect()
}

/// Whether `received` is the [`data_proof`] of that connection.
pub(crate) fn verify_data_proof(
    session_key: &Key,
    generation: u64,
    rank: usize,
    lane: usize,
    received: &str,
) -> bool {
    let expected = data_proof(session_key, generation, rank, lane);
    same(expected.as_bytes(), received.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(rank: u32, nonce: u8) -> Hello {
        Hello {
            group: "job".to_string(),
            rank,
            peer_rank: 1 - rank,
            nonce: vec![nonce; 32],
            ..Hello::default()
        }
    }

    #[test]
    fn a_proof_holds_for_one_side_of_one_stream_and_one_token() {
        let token = Token::new("0123456789abcdef").unwrap();
        let other = Token::new("0123456789abcdeF").unwrap();
        let (client, server) = (hello(1, 7), hello(0, 8));
        let made = proof(Some(&token), Side::Client, &client, &server);
        let holds = |token, side, client: &Hello, server: &Hello| {
            verify(Some(token), side, client, server, &made)
        };
        assert!(holds(&token, Side::Client, &client, &server));
        assert!(!holds(&other, Side::Client, &client, &server));
        assert!(!holds(&token, Side::Server, &client, &server));
        // Recorded and played to a server that has drawn another nonce.
        assert!(!holds(&token, Side::Client, &client, &hello(0, 9)));
        let mut later = client.clone();
        later.generation = 1;
        assert!(!holds(&token, Side::Client, &later, &server));
        assert!(!verify(Some(&token), Side::Client, &client, &server, &[]));
        assert!(!verify(None, Side::Client, &client, &server, &made));
    }

    #[test]
    fn a_data_proof_holds_for_one_connection() {
        let key = session_key(None, &hello(1, 7), &hello(0, 8));
        assert_ne!(key, session_key(None, &hello(1, 7), &hello(0, 9)));
        let made = data_proof(&key, 3, 1, 0);
        assert_eq!(made.len(), 64);
        assert!(verify_data_proof(&key, 3, 1, 0, &made));
        for (generation, rank, lane) in [(4, 1, 0), (3, 0, 0), (3, 1, 1)] {
            assert!(!verify_data_proof(&key, generation, rank, lane, &made));
        }
        assert!(!verify_data_proof(&key, 3, 1, 0, ""));
    }
}
