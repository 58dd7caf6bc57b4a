//! Errors about credentials and addresses.

/// The result type of this crate.
pub type Result<T, E = NetError> = std::result::Result<T, E>;

/// Credentials or an address that cannot be used.
#[non_exhaustive]
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum NetError {
    /// A token, a certificate or another setting cannot be used.
    #[error("{what}")]
    InvalidOption {
        /// The setting, what is wrong with it and what is allowed.
        what: String,
    },

    /// An address does not resolve, is not local, is in use, or needs more security.
    #[error("cannot use the address {address}: {reason}")]
    Address {
        /// The number of the process whose address it is.
        task: usize,
        /// The address as it was given.
        address: String,
        /// What is wrong and what to do.
        reason: String,
    },

    /// The system gives no random numbers.
    #[error("no random numbers from the system: {reason}")]
    NoRandomNumbers {
        /// What the system says.
        reason: String,
    },
}

distribute_error::debug_as_message!(NetError);

impl NetError {
    /// Whether the same start would fail again. A port in use or an unknown name may be
    /// different next time.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::InvalidOption { .. } => true,
            Self::Address { .. } | Self::NoRandomNumbers { .. } => false,
        }
    }
}
