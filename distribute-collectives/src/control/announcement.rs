//! What a rank says of itself to those that have proven themselves.

use crate::control::generated as message;

/// What a rank tells its peers once they have proven themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The port of its data listener.
    pub(crate) data_port: Option<u16>,
    /// How to reach the memory that it shares with ranks of its host.
    pub(crate) shared_memory: Vec<u8>,
}

impl From<message::Announcement> for Announcement {
    fn from(message: message::Announcement) -> Self {
        let port = u16::try_from(message.data_port).unwrap_or(0);
        Announcement {
            data_port: (port != 0).then_some(port),
            shared_memory: message.shared_memory,
        }
    }
}

impl From<Announcement> for message::Announcement {
    fn from(announcement: Announcement) -> Self {
        message::Announcement {
            data_port: announcement.data_port.unwrap_or(0).into(),
            shared_memory: announcement.shared_memory,
        }
    }
}
