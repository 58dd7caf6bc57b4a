//! The clock by which the rules of the control plane decide. A simulation has its own.

use std::time::Instant;

/// What time it is.
pub(super) fn now() -> Instant {
    #[cfg(test)]
    if let Some(now) = super::tests::simulation::now() {
        return now;
    }
    Instant::now()
}
