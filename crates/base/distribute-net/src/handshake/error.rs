//! Why two processes do not fit together.

use crate::error::NetError;
use crate::handshake::purpose::Purpose;

/// Why a handshake did not succeed. The messages call the peer `it`.
#[non_exhaustive]
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum HandshakeError {
    /// The bytes are not a message of a handshake.
    #[error("what it says is no handshake: {what}")]
    Malformed {
        /// What is wrong.
        what: String,
    },

    /// The peer uses another version of the handshake.
    #[error(
        "it speaks version {theirs} of the handshake, this process version {ours}; run the same \
         build everywhere"
    )]
    OtherHandshake {
        /// The version of the peer.
        theirs: u32,
        /// The version of this process.
        ours: u32,
    },

    /// The peer belongs to another start of the group: it will go away, or the group will.
    #[error("it is in generation {theirs}, this process in {ours}")]
    OtherGeneration {
        /// The generation of the peer.
        theirs: u64,
        /// The generation of this process.
        ours: u64,
    },

    /// Only one side has a secret.
    #[error(
        "{}; give all processes the job's token",
        if *.peer_has_one { "it has a token, this process has none" }
        else { "it has no token, this process has one" }
    )]
    SecretOfOneSide {
        /// The peer is the side that has one.
        peer_has_one: bool,
    },

    /// The peer does not know the secret, or a message was changed on the way.
    #[error("its token is another one; give all processes the job's token")]
    WrongProof,

    /// The peer speaks another version of the protocol.
    #[error(
        "it speaks version {theirs} of the protocol ({their_build}), this process version {ours} \
         ({our_build}); run the same build everywhere"
    )]
    OtherVersion {
        /// The version of the peer.
        theirs: u32,
        /// The version of this process.
        ours: u32,
        /// The build of the peer.
        their_build: String,
        /// The build of this process.
        our_build: String,
    },

    /// The peer is another build.
    #[error("it is {theirs}, this process {ours}; run the same build everywhere")]
    OtherBuild {
        /// The build of the peer.
        theirs: String,
        /// The build of this process.
        ours: String,
    },

    /// The connection is for something else.
    #[error("its connection is for a {theirs}, this one for a {ours}; check the addresses")]
    OtherPurpose {
        /// What the peer wants or is.
        theirs: Purpose,
        /// What this process wants or is.
        ours: Purpose,
    },

    /// Another process answers than the one that was dialled.
    #[error(
        "number {wanted} was dialled, and number {found} answers; list the same addresses in the \
         same order everywhere"
    )]
    OtherTask {
        /// The number of the process that was dialled.
        wanted: u32,
        /// The number of the one that answers.
        found: u32,
    },

    /// The dialled address is not the listener's address.
    #[error(
        "{dialled} was dialled, and {address} answers; check the addresses, and that nothing \
         forwards the connection"
    )]
    OtherAddress {
        /// The address that was dialled.
        dialled: String,
        /// The address that answers.
        address: String,
    },

    /// This process cannot make its own messages.
    #[error(transparent)]
    Own(#[from] NetError),
}

distribute_error::debug_as_message!(HandshakeError);

impl HandshakeError {
    pub(crate) fn malformed(what: impl ToString) -> Self {
        HandshakeError::Malformed {
            what: what.to_string(),
        }
    }
}
