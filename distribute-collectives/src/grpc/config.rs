//! What the links of a rank are to be.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::status::GroupStatus;
use crate::wire::HEADER_BYTES;

/// The smallest limit of a message that makes sense.
pub(crate) const MESSAGE_BYTES_MIN: usize = HEADER_BYTES + 1024;

/// What the links of a rank are to be.
pub(crate) struct LinkConfig {
    pub(crate) rank: usize,
    /// Where this rank listens, and the host in its address if it has one.
    pub(crate) own_ip: IpAddr,
    pub(crate) own_host: String,
    pub(crate) max_message_bytes: usize,
    /// How long bytes may be on their way without that one of them arrives.
    pub(crate) stall_limit: Duration,
    /// How long a lane is kept that is not used.
    pub(crate) idle_limit: Duration,
    pub(crate) status: Arc<GroupStatus>,
}
