//! Several sources in a fixed proportion.

use std::path::PathBuf;

use super::{ENDLESS, Source, in_range};
use crate::{PipelineError, Result};

const STAGE: &str = "mix";

/// The most elements of a period: the sum of the weights.
const LONGEST: u64 = 1 << 20;

/// Several sources in the proportion of their weights, spread evenly: in each run of as many
/// elements as the weights' sum, each source comes as often as its weight (smooth weighted round
/// robin, the first source first where two are due). It ends where the first source that is due
/// has no more elements. Shuffle the sources before it, so that their elements come in a random
/// order; it draws nothing itself.
///
/// ```
/// use distribute_pipeline::{Source, mix, range};
///
/// let mixed = mix(vec![(range(0..9), 2), (range(100..109), 1)]);
/// let first: Vec<_> = (0..6).map(|i| mixed.get(i)).collect::<Result<_, _>>()?;
/// assert_eq!(first, [0, 100, 1, 2, 101, 3]);
/// assert_eq!(mixed.len(), 14); // 9 of the first, and 5 of the second
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
pub fn mix<S: Source>(sources: impl Into<Vec<(S, u32)>>) -> Mix<S> {
    let (sources, weights): (Vec<S>, Vec<u32>) = sources.into().into_iter().unzip();
    let period = period(&weights);
    Mix {
        sources,
        weights,
        period,
    }
}

/// [`mix`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Mix<S> {
    sources: Vec<S>,
    weights: Vec<u32>,
    /// For each place of a period its source, and how often that came before in the period.
    /// Empty if the weights cannot be.
    period: Vec<(usize, u32)>,
}

/// The places of a period.
fn period(weights: &[u32]) -> Vec<(usize, u32)> {
    let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    if sum > LONGEST {
        return Vec::new();
    }
    let mut credits = vec![0_i64; weights.len()];
    let mut counts = vec![0_u32; weights.len()];
    let places = (0..sum).filter_map(|_| {
        for (credit, weight) in credits.iter_mut().zip(weights) {
            *credit += i64::from(*weight);
        }
        // The largest credit; of equal ones, the first.
        let due = (0..weights.len())
            .rev()
            .max_by_key(|source| credits[*source])?;
        credits[due] -= i64::try_from(sum).ok()?;
        counts[due] += 1;
        Some((due, counts[due] - 1))
    });
    places.collect()
}

impl<S: Source> Mix<S> {
    /// The source of a place, and the index in it.
    fn place(&self, index: u64) -> Option<(&S, u64)> {
        let sum = (self.period.len() as u64).max(1);
        let (source, before) = self.period.get(usize::try_from(index % sum).ok()?)?;
        let weight = u64::from(self.weights[*source]);
        let own = (index / sum)
            .checked_mul(weight)?
            .checked_add(u64::from(*before))?;
        Some((&self.sources[*source], own))
    }

    /// The first place that asks a source for more than it has.
    fn end_of(&self, source: usize) -> u64 {
        let (len, weight) = (self.sources[source].len(), u64::from(self.weights[source]));
        if len == ENDLESS || weight == 0 {
            return ENDLESS;
        }
        let wanted = (source, u32::try_from(len % weight).unwrap_or(0));
        let place = self.period.iter().position(|place| *place == wanted);
        let periods = (len / weight).saturating_mul(self.period.len() as u64);
        periods.saturating_add(place.map_or(0, |place| place as u64))
    }

    fn check_weights(&self) -> Result<()> {
        if !self.period.is_empty() {
            return Ok(());
        }
        let what = format!(
            "the weights {:?} cannot be: their sum must be between 1 and {LONGEST}",
            self.weights
        );
        Err(PipelineError::argument(STAGE, what))
    }
}

impl<S: Source> Source for Mix<S> {
    type Item = S::Item;

    fn len(&self) -> u64 {
        // With wrong weights there is an element, so that the error is found.
        if self.period.is_empty() {
            return 1;
        }
        let ends = (0..self.sources.len()).map(|source| self.end_of(source));
        ends.min().unwrap_or(1)
    }

    fn get(&self, index: u64) -> Result<S::Item> {
        self.get_in_epoch(0, index)
    }

    fn get_in_epoch(&self, epoch: u64, index: u64) -> Result<S::Item> {
        self.check_weights()?;
        in_range(STAGE, index, self.len())?;
        match self.place(index) {
            Some((source, index)) => source.get_in_epoch(epoch, index),
            None => {
                let len = self.len();
                Err(PipelineError::OutOfRange {
                    stage: STAGE,
                    index,
                    len,
                })
            }
        }
    }

    fn check(&self) -> Result<()> {
        self.check_weights()?;
        self.sources.iter().try_for_each(Source::check)
    }

    fn file(&self, epoch: u64, index: u64) -> Option<PathBuf> {
        let (source, index) = self.place(index)?;
        source.file(epoch, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Stream as _, contract, range};

    #[test]
    fn keeps_the_contract_and_the_proportion() {
        let mixed = mix(vec![
            (range(0..40), 3),
            (range(100..200), 5),
            (range(500..600), 1),
        ]);
        contract::check_source(&mixed).unwrap();
        let all: Vec<_> = (0..mixed.len())
            .map(|index| mixed.get(index).unwrap())
            .collect();
        for run in all.chunks_exact(9) {
            let of = |range: std::ops::Range<i64>| run.iter().filter(|x| range.contains(x)).count();
            assert_eq!((of(0..100), of(100..200), of(500..600)), (3, 5, 1));
        }
        // Each source's elements come in their order, and the first source to end, ends it.
        let first: Vec<_> = all.iter().copied().filter(|x| *x < 100).collect();
        assert!(first.into_iter().eq(0..40));
    }

    #[test]
    fn ends_and_wrong_weights() {
        assert_eq!(mix(vec![(range(0..0), 1), (range(0..5), 1)]).len(), 0);
        assert_eq!(mix(vec![(range(0..3), 1), (range(0..5), 0)]).len(), 3);
        for weights in [
            vec![],
            vec![(range(0..3), 0)],
            vec![(range(0..3), u32::MAX)],
            vec![(range(0..3), 1 << 20), (range(0..3), 1)],
        ] {
            let mixed = mix(weights);
            assert!(mixed.check().is_err());
            assert!(mixed.get(0).is_err());
            assert!(mixed.stream().next().is_err());
        }
    }
}
