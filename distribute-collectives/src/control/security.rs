//! Who may join a group: job token and certificates.

/// What a rank shows to its peers, and what it demands of them.
#[derive(Debug, Clone, Default)]
pub struct Security {}
