//! Proofs that a process knows a secret, and the keys that are derived.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// What both sides must know; without one the proofs only show that nothing was rewritten by
/// accident.
#[derive(Clone, Default)]
pub struct Secret(Option<Arc<[u8]>>);

impl Secret {
    /// A secret that a program has drawn or derived; for a secret from outside there is
    /// [`Token`](crate::security::Token), which checks it.
    pub fn new(bytes: impl AsRef<[u8]>) -> Secret {
        Secret(Some(bytes.as_ref().into()))
    }

    pub(crate) fn exists(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A key that two processes share after their handshake; no third party has it if they have a
/// secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey([u8; 32]);

impl SessionKey {
    /// The secret of further connections between the two processes.
    pub fn secret(&self) -> Secret {
        Secret::new(self.0)
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}

/// HMAC-SHA256 over parts, each preceded by its length so that no two lists of parts are alike.
fn mac(secret: &Secret, parts: &[&[u8]]) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.0.as_deref().unwrap_or_default())
    else {
        unreachable!("HMAC takes keys of every length");
    };
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// All messages, and the secret of the side that checks them.
#[derive(Debug)]
pub(super) struct Transcript {
    pub(super) secret: Secret,
    /// A value that only the two ends of the channel below share; empty without such a channel.
    pub(super) binding: Vec<u8>,
    /// The Hello of each side, as it was sent.
    pub(super) dialer: String,
    pub(super) listener: String,
}

impl Transcript {
    fn over(&self, label: &str) -> [u8; 32] {
        let (dialer, listener) = (self.dialer.as_bytes(), self.listener.as_bytes());
        mac(
            &self.secret,
            &[label.as_bytes(), &self.binding, dialer, listener],
        )
    }

    pub(super) fn proof_of_dialer(&self) -> String {
        hex::encode(self.over("distribute handshake 1: proof of the dialer"))
    }

    pub(super) fn proof_of_listener(&self) -> String {
        hex::encode(self.over("distribute handshake 1: proof of the listener"))
    }

    pub(super) fn session_key(&self) -> SessionKey {
        SessionKey(self.over("distribute handshake 1: session key"))
    }
}

/// Compares in constant time.
pub(super) fn is_same(expected: &str, received: &str) -> bool {
    expected.as_bytes().ct_eq(received.as_bytes()).into()
}

/// As [`Security::derive`](crate::security::Security::derive).
pub(crate) fn of_parts(secret: &Secret, label: &str, parts: &[&[u8]]) -> Vec<u8> {
    let labelled: Vec<&[u8]> = std::iter::once(label.as_bytes())
        .chain(parts.iter().copied())
        .collect();
    mac(secret, &labelled).to_vec()
}
