//! Tells the neighbours of the first failure, before they hear who has left because of it.

use std::sync::atomic::Ordering;

use crate::control::convert;
use crate::control::generated::envelope::Message;
use crate::control::membership::{Link, Membership};

impl Membership {
    /// Sends the first failure to the neighbours that were not told of it, who tell theirs. Returns
    /// whether there is one.
    pub(super) fn tell_first_failure(&self) -> bool {
        let Some(failure) = self.status.first_failure() else {
            return false;
        };
        let mut state = self.state();
        if !std::mem::replace(&mut state.failure_logged, true) {
            tracing::warn!(rank = self.rank, %failure, "the group failed");
        }
        let untold = |link: &&mut Link| link.open && !link.told.failure;
        for link in state.links.values_mut().filter(untold) {
            let notice = convert::notice(self.rank, &failure);
            link.told.failure = link.try_send(Message::Notice(notice));
            if !link.told.failure && link.sender.is_some() {
                // It is told when it has read.
                self.is_behind.store(true, Ordering::Relaxed);
            }
        }
        true
    }
}
