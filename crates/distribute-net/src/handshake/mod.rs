//! The one handshake: the first messages of every connection between processes of a job.
//!
//! Three texts, which any connection can carry (metadata, protobuf, frames, packets):
//!
//! ```text
//! dialer                         listener
//! Hello
//!                                proof of the listener, Hello
//! proof of the dialer, or nothing if it does not accept the answer
//! ```
//!
//! A [`Hello`] says what the connection is for, which address was dialled, who the side is and whom
//! it expects, which versions it speaks, and a new nonce. A proof is HMAC-SHA256 with the secret of
//! the job as key over a label, which differs by side, the binding of the channel below, and both
//! Hellos byte for byte. So a proof holds for one connection, one side, and exactly what was said:
//! it can be neither replayed, nor sent back, nor carried to another port, nor can any word of
//! either Hello be changed on the way. The binding is TLS's exporter where there is TLS (then a
//! proof cannot be carried from one TLS connection to another), and the nonce in a shared segment
//! where memory is shared.
//!
//! The dialer never proves anything before the listener has: who takes over an address learns
//! nothing from those that dial it. Who dials a listener gets a proof, and can try secrets against
//! it at leisure. Therefore a secret must not be one that a person chose: `distribute certs` and
//! the launcher draw 256 random bits ([`Token::generate`]), and a [`Token`] that is short or
//! repeats itself is refused. A sentence passes that check and is still a bad secret. TLS hides the
//! proofs from everybody without a certificate of the job.
//!
//! A difference of versions is told by both sides, in words: before it is said that a proof is
//! wrong, and only where the two do not even agree on the handshake without any proof. A peer that
//! has proven itself and differs gives [`Proven::judge`] an error that may end the job; anything
//! said before is the word of a stranger.
//!
//! [`Token`]: crate::security::Token
//! [`Token::generate`]: crate::security::Token::generate
//!
//! ```
//! use distribute_net::handshake::{Dialer, Hello, Listener, Purpose, Secret};
//!
//! let secret = Secret::new("0123456789abcdef");
//! let hello = |task| {
//!     let mut hello = Hello::new(Purpose::Worker, 1, "0.1.0");
//!     hello.identity.task = task;
//!     hello
//! };
//! let (dialer, first) = Dialer::start(hello(7), &secret)?;
//! let (listener, second) = Listener::receive(&first)?.answer(hello(0), &secret, b"")?;
//! let (third, proven) = dialer.finish(&second, b"")?;
//! assert_eq!(proven.judge()?.peer.identity.task, 0);
//! assert_eq!(listener.finish(&third)?.judge()?.peer.identity.task, 7);
//! # Ok::<(), distribute_net::handshake::HandshakeError>(())
//! ```

mod error;
mod hello;
pub(crate) mod proof;
mod purpose;
#[cfg(test)]
mod tests;

pub use error::HandshakeError;
pub use hello::{Hello, Identity, MESSAGE_BYTES_MAX};
pub use proof::{Secret, SessionKey};
pub use purpose::Purpose;

use proof::{Transcript, is_same};

/// The side that connected, waiting for the listener's answer.
#[derive(Debug)]
pub struct Dialer {
    own: Hello,
    text: String,
    secret: Secret,
}

impl Dialer {
    /// Begins a handshake; the text is the first message.
    ///
    /// # Errors
    /// [`HandshakeError::Own`] without random numbers, [`HandshakeError::Malformed`] when the Hello
    /// is too long.
    pub fn start(mut own: Hello, secret: &Secret) -> Result<(Dialer, String), HandshakeError> {
        let text = own.encode(secret.exists())?;
        let dialer = Dialer {
            own,
            text: text.clone(),
            secret: secret.clone(),
        };
        Ok((dialer, text))
    }

    /// What the listener says about itself, proven or not.
    ///
    /// # Errors
    /// What is wrong with the answer.
    pub fn peek(answer: &str) -> Result<Hello, HandshakeError> {
        Hello::decode(split(answer)?.1)
    }

    /// Checks the listener's answer; the text is the last message. `binding` is the same on both
    /// sides of the channel below, or empty.
    ///
    /// # Errors
    /// What is wrong with the answer. Nothing has been proven to the listener then; an empty last
    /// message tells it so.
    pub fn finish(self, answer: &str, binding: &[u8]) -> Result<(String, Proven), HandshakeError> {
        let (theirs, text) = split(answer)?;
        let peer = Hello::decode(text)?;
        let transcript = Transcript {
            secret: self.secret,
            binding: binding.to_vec(),
            dialer: self.text,
            listener: text.to_string(),
        };
        let proven = Proven {
            dialled: self.own.address.clone(),
            address: peer.address.clone(),
            session_key: transcript.session_key(),
            own: self.own,
            peer,
        };
        proven.verify(&transcript.proof_of_listener(), theirs)?;
        Ok((transcript.proof_of_dialer(), proven))
    }
}

/// The proof and the Hello in an answer.
fn split(answer: &str) -> Result<(&str, &str), HandshakeError> {
    let parts = answer.split_once(' ');
    parts.ok_or_else(|| HandshakeError::malformed("it has no proof"))
}

/// The side that was connected to, with the Hello of the dialer.
#[derive(Debug)]
pub struct Listener {
    peer: Hello,
    text: String,
}

impl Listener {
    /// Reads the first message of a handshake.
    ///
    /// # Errors
    /// [`HandshakeError::Malformed`] and [`HandshakeError::OtherHandshake`].
    pub fn receive(first: &str) -> Result<Listener, HandshakeError> {
        Ok(Listener {
            peer: Hello::decode(first)?,
            text: first.to_string(),
        })
    }

    /// What the dialer says about itself; it has proven nothing yet.
    pub fn peer(&self) -> &Hello {
        &self.peer
    }

    /// Answers; the text is the second message. It goes out whatever the Hellos say, so that both
    /// sides know how they differ.
    ///
    /// # Errors
    /// As [`Dialer::start`].
    pub fn answer(
        self,
        mut own: Hello,
        secret: &Secret,
        binding: &[u8],
    ) -> Result<(AwaitingProof, String), HandshakeError> {
        let transcript = Transcript {
            secret: secret.clone(),
            binding: binding.to_vec(),
            dialer: self.text,
            listener: own.encode(secret.exists())?,
        };
        let answer = format!("{} {}", transcript.proof_of_listener(), transcript.listener);
        let proven = Proven {
            dialled: self.peer.address.clone(),
            address: own.address.clone(),
            session_key: transcript.session_key(),
            own,
            peer: self.peer,
        };
        let expected = transcript.proof_of_dialer();
        Ok((AwaitingProof { expected, proven }, answer))
    }
}

/// The listener, waiting for the dialer's proof.
#[derive(Debug)]
pub struct AwaitingProof {
    expected: String,
    proven: Proven,
}

impl AwaitingProof {
    /// What the dialer says about itself; it has proven nothing yet.
    pub fn peer(&self) -> &Hello {
        &self.proven.peer
    }

    /// Checks the dialer's proof.
    ///
    /// # Errors
    /// [`HandshakeError::WrongProof`], or what the dialer said that explains it.
    pub fn finish(self, proof: &str) -> Result<Proven, HandshakeError> {
        self.proven.verify(&self.expected, proof)?;
        Ok(self.proven)
    }
}

/// A handshake whose proofs are right. What the peer said is its own word; whether it fits is to be
/// [judged](Self::judge).
#[derive(Debug)]
#[must_use]
pub struct Proven {
    own: Hello,
    peer: Hello,
    dialled: String,
    address: String,
    session_key: SessionKey,
}

impl Proven {
    fn verify(&self, expected: &str, received: &str) -> Result<(), HandshakeError> {
        let has_both = self.own.has_secret() == self.peer.has_secret();
        match has_both && is_same(expected, received) {
            true => Ok(()),
            false => Err(self.objection().unwrap_or(HandshakeError::WrongProof)),
        }
    }

    /// What the two Hellos say against each other, proven or not.
    fn objection(&self) -> Option<HandshakeError> {
        let (own, peer) = (&self.own, &self.peer);
        if peer.has_secret() != own.has_secret() {
            return Some(HandshakeError::SecretOfOneSide {
                peer_has_one: peer.has_secret(),
            });
        }
        if peer.protocol_version != own.protocol_version {
            return Some(HandshakeError::OtherVersion {
                theirs: peer.protocol_version,
                ours: own.protocol_version,
                their_build: peer.build.clone(),
                our_build: own.build.clone(),
            });
        }
        if peer.purpose != own.purpose {
            return Some(HandshakeError::OtherPurpose {
                theirs: peer.purpose,
                ours: own.purpose,
            });
        }
        None
    }

    /// Whether the two sides fit: versions, purpose, builds, address.
    ///
    /// # Errors
    /// The first difference, which the peer has proven.
    pub fn judge(self) -> Result<Authenticated, HandshakeError> {
        let (own, peer) = (&self.own, &self.peer);
        if let Some(objection) = self.objection() {
            return Err(objection);
        }
        if peer.build != own.build {
            return Err(HandshakeError::OtherBuild {
                theirs: peer.build.clone(),
                ours: own.build.clone(),
            });
        }
        if !self.address.is_empty() && self.dialled != self.address {
            return Err(HandshakeError::OtherAddress {
                dialled: self.dialled,
                address: self.address,
            });
        }
        Ok(Authenticated {
            peer: self.peer,
            session_key: self.session_key,
        })
    }
}

/// A peer that has proven who it is, and fits.
#[derive(Debug)]
pub struct Authenticated {
    /// What the peer said.
    pub peer: Hello,
    /// What the two sides share from now on.
    pub session_key: SessionKey,
}
