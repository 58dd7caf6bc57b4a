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
//! A [`Hello`] has the purpose of the connection, the dialled address, the side's identity and the
//! peer that it expects, its versions, and a new nonce. A proof is HMAC-SHA256 with the secret of
//! the job as key over a label, which differs by side, the binding of the channel below, and both
//! Hellos byte for byte. So a proof holds for one connection, one side and exactly these messages:
//! it cannot be replayed, sent back or carried to another port, and no word of either Hello can be
//! changed on the way. The binding is TLS's exporter where there is TLS (then a proof cannot be
//! carried from one TLS connection to another), and the nonce in a shared segment where memory is
//! shared.
//!
//! The dialer never proves anything before the listener has: an attacker who takes over an
//! address learns nothing from processes that dial it. But a process that dials a listener gets a
//! proof, and can try secrets against it offline. Therefore a secret must not be chosen by a
//! person: `distribute certs` and the launcher draw 256 random bits ([`Token::generate`]), and a
//! [`Token`] that is short or repeats itself is refused. A sentence passes that check and is still
//! a bad secret. TLS hides the proofs from peers without a certificate of the job.
//!
//! Both sides report a difference of versions in words, in preference to a wrong proof; only
//! if the versions of the handshake itself differ it is reported without any proof. If an
//! authenticated peer differs, [`Verified::check_compatible`] returns an error that may end the
//! job; anything before is unproven.
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
//! assert_eq!(proven.check_compatible()?.peer.identity.task, 0);
//! assert_eq!(listener.finish(&third)?.check_compatible()?.peer.identity.task, 7);
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

    /// Checks the listener's answer; the text is the last message. `binding` is the same on both
    /// sides of the channel below, or empty.
    ///
    /// # Errors
    /// Why the answer is not accepted. The listener has received no proof then; an empty last
    /// message tells it so.
    pub fn finish(
        self,
        answer: &str,
        binding: &[u8],
    ) -> Result<(String, Verified), HandshakeError> {
        let (theirs, text) = split(answer)?;
        let peer = Hello::decode(text)?;
        let transcript = Transcript {
            secret: self.secret,
            binding: binding.to_vec(),
            dialer: self.text,
            listener: text.to_string(),
        };
        let proven = Verified {
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

    /// The dialer's Hello, which is not proven yet.
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
        let proven = Verified {
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
    proven: Verified,
}

impl AwaitingProof {
    /// The dialer's Hello, which is not proven yet.
    pub fn peer(&self) -> &Hello {
        &self.proven.peer
    }

    /// Checks the dialer's proof.
    ///
    /// # Errors
    /// [`HandshakeError::WrongProof`], or a difference in the dialer's Hello that explains it.
    pub fn finish(self, proof: &str) -> Result<Verified, HandshakeError> {
        self.proven.verify(&self.expected, proof)?;
        Ok(self.proven)
    }
}

/// A handshake with correct proofs. Whether the peer's claims fit this process is still to be
/// [checked](Self::check_compatible).
#[derive(Debug)]
#[must_use]
pub struct Verified {
    own: Hello,
    peer: Hello,
    dialled: String,
    address: String,
    session_key: SessionKey,
}

impl Verified {
    fn verify(&self, expected: &str, received: &str) -> Result<(), HandshakeError> {
        let has_both = self.own.has_secret() == self.peer.has_secret();
        if has_both && is_same(expected, received) {
            Ok(())
        } else {
            Err(self.objection().unwrap_or(HandshakeError::WrongProof))
        }
    }

    /// The first contradiction between the two Hellos, proven or not.
    fn objection(&self) -> Option<HandshakeError> {
        let (own, peer) = (&self.own, &self.peer);
        let (theirs, ours) = (peer.identity.generation, own.identity.generation);
        if theirs != ours {
            // It may differ in everything else: nothing else is said of it.
            return Some(HandshakeError::OtherGeneration { theirs, ours });
        }
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

    /// Checks that the two sides fit: generation, versions, purpose, builds, address.
    ///
    /// # Errors
    /// The first difference, which the peer has proven.
    pub fn check_compatible(self) -> Result<Authenticated, HandshakeError> {
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

/// An authenticated peer that fits this process.
#[derive(Debug)]
pub struct Authenticated {
    /// The peer's Hello.
    pub peer: Hello,
    /// The key that the two sides share from now on.
    pub session_key: SessionKey,
}
