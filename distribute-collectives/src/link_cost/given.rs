//! Costs that a program gives to its ranks, and that these tell each other.

use super::LinkCost;
use crate::error::{CollectiveError, Result};

impl LinkCost {
    fn numbers(&self) -> [f64; 3] {
        [
            self.latency.as_secs_f64(),
            self.ring_bytes_per_second,
            self.direct_exchange_bytes_per_second,
        ]
    }

    /// For the other ranks.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        bytemuck::bytes_of(&self.numbers()).to_vec()
    }

    /// What [`to_bytes`](Self::to_bytes) wrote; `None` when it is something else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<LinkCost> {
        let numbers = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        Self::valid(&numbers).then(|| Self::from_numbers(numbers))
    }

    /// Refuses bandwidths that no link has.
    pub(crate) fn check(&self) -> Result<()> {
        if Self::valid(&self.numbers()) {
            return Ok(());
        }
        let what = format!("a link cost has bandwidths above 0 and finite, not {self:?}");
        Err(CollectiveError::InvalidOption { what })
    }

    /// The higher latency and the lower bandwidths of two.
    pub(crate) fn worst(&self, other: &LinkCost) -> LinkCost {
        let (a, b) = (self.numbers(), other.numbers());
        let mut worst = [a[0].max(b[0]), 0.0, 0.0];
        for index in 1..worst.len() {
            worst[index] = a[index].min(b[index]);
        }
        Self::from_numbers(worst)
    }

    /// Whether a latency and bandwidths are possible for a link.
    fn valid(numbers: &[f64; 3]) -> bool {
        let finite = numbers.iter().all(|number| number.is_finite());
        finite && numbers[0] >= 0.0 && numbers[1..].iter().all(|bandwidth| *bandwidth > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_travel_as_bytes() {
        let cost = LinkCost::default();
        assert_eq!(LinkCost::from_bytes(&cost.to_bytes()), Some(cost));
        assert_eq!(LinkCost::from_bytes(&[0; 23]), None);
        assert_eq!(LinkCost::from_bytes(&[0xff; 24]), None, "NaN is no cost");
        assert_eq!(LinkCost::from_bytes(&[0; 24]), None, "no bandwidth");
        let slower = LinkCost {
            ring_bytes_per_second: 1e8,
            ..cost
        };
        assert_eq!(cost.worst(&slower), slower);
    }

    #[test]
    fn links_that_carry_nothing_are_refused() {
        for wrong in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY] {
            for index in 0..2 {
                let mut cost = LinkCost::default();
                assert_eq!(cost.check(), Ok(()));
                let bandwidths = [
                    &mut cost.ring_bytes_per_second,
                    &mut cost.direct_exchange_bytes_per_second,
                ];
                *bandwidths.into_iter().nth(index).unwrap() = wrong;
                let refused = matches!(cost.check(), Err(CollectiveError::InvalidOption { .. }));
                assert!(refused, "{cost:?}");
                assert_eq!(LinkCost::from_bytes(&cost.to_bytes()), None);
            }
        }
    }
}
