//! The messages by which a process identifies itself.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::handshake::error::HandshakeError;
use crate::handshake::purpose::Purpose;
use crate::random_hex;

/// The version of the handshake itself.
pub(super) const HANDSHAKE_VERSION: u32 = 1;
/// The longest message of a handshake.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Hexadecimal digits of a nonce.
const NONCE_DIGITS: usize = 64;

/// The identity of a process. The handshake proves that the peer sent it; the caller decides
/// whether it is the expected one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// The name of the group or job.
    pub group: String,
    /// The number of the process within its kind: its rank, its task or its host.
    pub task: u32,
    /// Identifies the start of the process, where two processes with one number must be told apart.
    pub run: String,
    /// How often the group had been formed.
    pub generation: u64,
}

/// The first message of a side. The handshake proves all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub(super) handshake: u32,
    /// The version of the messages that follow the handshake.
    pub protocol_version: u32,
    /// The version of the program or crate; builds that differ do not work together.
    pub build: String,
    /// What the connection is for.
    pub purpose: Purpose,
    /// The dialling side sends the address that it dials. The listening side sends its own
    /// address, or an empty text if it does not know its address as seen by others. If both are
    /// given they must be equal.
    #[serde(default)]
    pub address: String,
    /// The identity of the side.
    #[serde(default)]
    pub identity: Identity,
    /// The number of the process that the side expects at the other end.
    #[serde(default)]
    pub peer_task: Option<u32>,
    /// Further data for this purpose, to compare or to know: JSON as text, so that a message of
    /// an unauthenticated peer takes no more memory than its bytes.
    #[serde(default)]
    pub details: String,
    pub(super) has_secret: bool,
    pub(super) nonce: String,
}

/// The part that every version of a Hello has.
#[derive(Deserialize)]
struct Versions {
    handshake: u32,
}

impl Hello {
    /// A Hello without identity, address and details.
    pub fn new(purpose: Purpose, protocol_version: u32, build: impl Into<String>) -> Hello {
        Hello {
            handshake: HANDSHAKE_VERSION,
            protocol_version,
            build: build.into(),
            purpose,
            address: String::new(),
            identity: Identity::default(),
            peer_task: None,
            details: String::new(),
            has_secret: false,
            nonce: String::new(),
        }
    }

    /// Checks that the listening side, which sent this Hello, is the process that the dialling
    /// side wants. Compared only if the dialling side names a [`peer_task`](Self::peer_task) and
    /// the other a [`group`](Identity::group).
    ///
    /// # Errors
    /// [`HandshakeError::OtherTask`].
    pub fn answers(&self, dialer: &Hello) -> Result<(), HandshakeError> {
        let found = self.identity.task;
        match dialer.peer_task {
            Some(wanted) if wanted != found && !self.identity.group.is_empty() => {
                Err(HandshakeError::OtherTask { wanted, found })
            }
            _ => Ok(()),
        }
    }

    /// The details that a peer of the same purpose sent.
    ///
    /// # Errors
    /// [`HandshakeError::Malformed`] when they have another form.
    pub fn read_details<T: DeserializeOwned>(&self) -> Result<T, HandshakeError> {
        serde_json::from_str(&self.details).map_err(HandshakeError::malformed)
    }

    /// Whether the side has a secret and therefore demands a proof.
    pub fn has_secret(&self) -> bool {
        self.has_secret
    }

    /// The text of this Hello, with a new nonce.
    pub(super) fn encode(&mut self, has_secret: bool) -> Result<String, HandshakeError> {
        self.has_secret = has_secret;
        self.nonce = random_hex::<{ NONCE_DIGITS / 2 }>()?;
        let text = serde_json::to_string(self).map_err(HandshakeError::malformed)?;
        if text.len() + NONCE_DIGITS < MESSAGE_BYTES_MAX {
            Ok(text)
        } else {
            Err(HandshakeError::malformed("it is too long"))
        }
    }

    /// Reads the text of a peer.
    pub(super) fn decode(text: &str) -> Result<Hello, HandshakeError> {
        if text.len() > MESSAGE_BYTES_MAX {
            return Err(HandshakeError::malformed("it is too long"));
        }
        let versions: Versions = serde_json::from_str(text).map_err(HandshakeError::malformed)?;
        if versions.handshake != HANDSHAKE_VERSION {
            return Err(HandshakeError::OtherHandshake {
                theirs: versions.handshake,
                ours: HANDSHAKE_VERSION,
            });
        }
        let hello: Hello = serde_json::from_str(text).map_err(HandshakeError::malformed)?;
        if hello.nonce.len() == NONCE_DIGITS {
            Ok(hello)
        } else {
            Err(HandshakeError::malformed("it has no nonce"))
        }
    }
}
