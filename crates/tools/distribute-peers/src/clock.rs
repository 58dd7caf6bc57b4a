//! How far the clocks of two hosts are apart.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// A clock, in nanoseconds since 1970.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The clock of this host.
pub(crate) fn of_this_host() -> Clock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.unwrap_or_default().as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX)
    })
}

/// How far the clock of a host is ahead of that of rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ClockOffset {
    /// In seconds; negative for a clock that is behind.
    pub seconds: f64,
    /// By how many seconds the offset may be wrong: half of the round trip in which it was found.
    pub uncertainty_seconds: f64,
}

/// One exchange: what this clock showed before and after, and the other one between.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) before: u64,
    pub(crate) other: u64,
    pub(crate) after: u64,
    /// On a clock that nothing sets.
    pub(crate) round_trip: Duration,
}

/// The offset by the exchange with the shortest round trip (as NTP takes it): the answer was sent
/// at some time within it, so the offset is known up to half of it.
pub(crate) fn offset(samples: &[Sample]) -> Option<ClockOffset> {
    let best = samples.iter().min_by_key(|sample| sample.round_trip)?;
    let middle = i128::from(best.before).midpoint(i128::from(best.after));
    let ahead = i128::from(best.other) - middle;
    Some(ClockOffset {
        seconds: ahead as f64 / 1e9,
        uncertainty_seconds: best.round_trip.as_secs_f64() / 2.0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However long each way takes, the true offset is within the uncertainty.
        #[test]
        fn the_true_offset_is_within_the_uncertainty(
            ahead in -5_000_000_000i64..5_000_000_000,
            ways in prop::collection::vec((0u64..50_000_000, 0u64..50_000_000), 1..9),
        ) {
            let mut now = 1_800_000_000_000_000_000u64;
            let samples: Vec<Sample> = ways.into_iter().map(|(there, back)| {
                let before = now;
                now += there + back + 1000;
                Sample {
                    before,
                    other: (before + there).saturating_add_signed(ahead),
                    after: before + there + back,
                    round_trip: Duration::from_nanos(there + back),
                }
            }).collect();
            let found = offset(&samples).unwrap();
            let wrong = (found.seconds - ahead as f64 / 1e9).abs();
            prop_assert!(wrong <= found.uncertainty_seconds + 1e-8, "{found:?} for {ahead}");
            let shortest = samples.iter().map(|sample| sample.round_trip).min().unwrap();
            prop_assert_eq!(found.uncertainty_seconds, shortest.as_secs_f64() / 2.0);
        }
    }

    #[test]
    fn without_an_exchange_there_is_no_offset() {
        assert_eq!(offset(&[]), None);
    }
}
