//! The first failure of an endpoint: what everything after it reports, and tells other ranks.

use super::codec::fitting;
use super::{Failure, FailureKind};
use crate::error::{CollectiveError, Result};

/// The first fatal error of a [`Communicator`](crate::Communicator), if there was one. A group does
/// not work again, so every later operation is refused, with that error as its cause.
#[derive(Debug, Clone, Default)]
pub struct FirstFailure(Option<CollectiveError>);

impl FirstFailure {
    /// Whether an operation may begin.
    ///
    /// # Errors
    /// [`CollectiveError::Poisoned`] after a failure.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(cause) => Err(CollectiveError::Poisoned {
                cause: Box::new(cause.clone()),
            }),
        }
    }

    /// Notes an error, unless one was noted before; the error that was first.
    pub fn record(&mut self, error: CollectiveError) -> CollectiveError {
        self.0.get_or_insert(error).clone()
    }

    /// What rank `rank` tells the others of it: JSON of at most `bytes` bytes, with long texts cut.
    /// `None` without a failure.
    pub fn told(&self, rank: usize, bytes: usize) -> Option<String> {
        let failure = Failure::ended(self.0.clone()?, 0);
        Some(fitting(bytes, |most| failure.told_by(rank, most)))
    }

    /// What another rank of a group of this size has [told](Self::told); `None` when that is
    /// nothing a rank tells.
    pub fn heard(text: &str, world_size: usize) -> Option<CollectiveError> {
        let failure: Failure = serde_json::from_str(text).ok()?;
        let is_of_a_rank = failure.is_of(world_size);
        match failure.kind {
            FailureKind::Ended(error) if is_of_a_rank => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(rank: usize, reason: &str) -> CollectiveError {
        let reason = reason.to_string();
        CollectiveError::Aborted { rank, reason }
    }

    #[test]
    fn others_hear_what_was_first() {
        let mut failure = FirstFailure::default();
        assert_eq!((failure.check(), failure.told(0, 200)), (Ok(()), None));
        assert_eq!(failure.record(aborted(2, "first")), aborted(2, "first"));
        assert_eq!(failure.record(aborted(1, "second")), aborted(2, "first"));
        let cause = Box::new(aborted(2, "first"));
        assert_eq!(failure.check(), Err(CollectiveError::Poisoned { cause }));
        let told = failure.told(0, 200).unwrap();
        assert_eq!(FirstFailure::heard(&told, 3), Some(aborted(2, "first")));
        assert_eq!(FirstFailure::heard(&told, 2), None, "there is no rank 2");
        assert_eq!(FirstFailure::heard("nothing", 3), None);
    }

    #[test]
    fn a_long_text_is_cut_until_it_fits() {
        let mut failure = FirstFailure::default();
        failure.record(aborted(0, &"ä".repeat(10_000)));
        let told = failure.told(0, 300).unwrap();
        assert!(told.len() <= 300);
        let heard = FirstFailure::heard(&told, 1).unwrap().to_string();
        assert!(heard.contains("äää"), "{heard}");
    }
}
