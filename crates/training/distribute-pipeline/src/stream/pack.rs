//! Short sequences, several in a row of fixed length.

use serde::{Deserialize, Serialize};

use super::{SavedItem, Stream};
use crate::{PipelineError, Result, State};

const STAGE: &str = "pack";

/// A row of [`Stream::pack`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed<T> {
    /// The sequences one after the other, filled up with the padding.
    pub values: Vec<T>,
    /// Which sequence of the row a value belongs to, from 1; 0 for padding.
    pub segments: Vec<u32>,
    /// The place of a value in its sequence, from 0; 0 for padding.
    pub positions: Vec<u32>,
}

/// [`Stream::pack`]. A sequence that did not fit into the last row is part of the state.
#[derive(Debug, Clone)]
#[must_use]
pub struct Pack<S, T> {
    input: S,
    length: usize,
    padding: T,
    /// The sequences read.
    read: u64,
    held: Option<Vec<T>>,
}

impl<S, T> Pack<S, T> {
    pub(super) fn new(input: S, length: usize, padding: T) -> Self {
        Self {
            input,
            length,
            padding,
            read: 0,
            held: None,
        }
    }

    fn check_length(&self) -> Result<()> {
        match self.length {
            0 => Err(PipelineError::argument(
                STAGE,
                "the length of a row is 0; pass at least 1",
            )),
            _ => Ok(()),
        }
    }
}

impl<S, T> Pack<S, T> {
    /// The memory of a whole row.
    fn reserve(&self, row: &mut Packed<T>) -> Result<()> {
        let missing = self.length.saturating_sub(row.values.len());
        let values = row.values.try_reserve_exact(missing);
        let segments = values.and_then(|()| row.segments.try_reserve_exact(missing));
        let positions = segments.and_then(|()| row.positions.try_reserve_exact(missing));
        positions.map_err(|_| {
            let what = format!("a row of {} values is too large", self.length);
            PipelineError::argument(STAGE, what)
        })
    }
}

impl<S, T> Pack<S, T>
where
    S: Stream<Item = Vec<T>>,
    T: SavedItem,
{
    /// The next sequence, which is not longer than a row.
    fn sequence(&mut self) -> Result<Option<Vec<T>>> {
        if let Some(held) = self.held.take() {
            return Ok(Some(held));
        }
        let Some(sequence) = self.input.next()? else {
            return Ok(None);
        };
        self.read += 1;
        if sequence.len() <= self.length {
            return Ok(Some(sequence));
        }
        let (found, length) = (sequence.len(), self.length);
        let what =
            format!("a sequence of {found} does not fit into rows of {length}; cut it first");
        let (index, file) = (self.read - 1, self.input.file());
        Err(PipelineError::element(STAGE, index, file, what))
    }
}

impl<S, T> Stream for Pack<S, T>
where
    S: Stream<Item = Vec<T>>,
    T: SavedItem + Clone,
{
    type Item = Packed<T>;

    fn next(&mut self) -> Result<Option<Packed<T>>> {
        self.check_length()?;
        let mut row = Packed {
            values: Vec::new(),
            segments: Vec::new(),
            positions: Vec::new(),
        };
        let mut segment = 0;
        while row.values.len() < self.length {
            let Some(sequence) = self.sequence()? else {
                break;
            };
            if sequence.len() > self.length - row.values.len() {
                self.held = Some(sequence);
                break;
            }
            segment += u32::from(!sequence.is_empty());
            row.segments.extend(sequence.iter().map(|_| segment));
            row.positions
                .extend((0..).zip(&sequence).map(|(position, _)| position));
            row.values.extend(sequence);
        }
        if row.values.is_empty() {
            return Ok(None);
        }
        self.reserve(&mut row)?;
        row.values.resize(self.length, self.padding.clone());
        row.segments.resize(self.length, 0);
        row.positions.resize(self.length, 0);
        Ok(Some(row))
    }

    fn start(&mut self, epoch: u64) -> Result<()> {
        (self.read, self.held) = (0, None);
        self.input.start(epoch)
    }

    fn state(&self) -> Result<State> {
        let state = State::new(STAGE).number(self.read);
        let state = state.inner(self.input.state()?);
        self.held.iter().try_fold(state, State::item)
    }

    fn restore(&mut self, state: &State) -> Result<()> {
        let mut state = state.read(STAGE)?;
        self.read = state.count()?;
        self.held = match state.items_left() {
            0 => None,
            _ => Some(state.item()?),
        };
        self.input.restore(state.inner()?)?;
        state.finish()
    }

    fn check(&self) -> Result<()> {
        self.check_length()?;
        self.input.check()
    }

    super::as_input!(file);
}

#[cfg(test)]
mod tests {
    use crate::{Source, Stream, contract, range};

    #[test]
    fn keeps_the_contract_and_every_value() {
        let lists = || range(1..20).stream().map(|x| vec![x; (x * 3 % 7) as usize]);
        for length in 6..12 {
            contract::check_stream(|| lists().pack(length, 0)).unwrap();
            let mut rows = lists().pack(length, 0);
            let mut values = Vec::new();
            for row in rows.elements() {
                let row = row.unwrap();
                assert_eq!([row.segments.len(), row.positions.len()], [length; 2]);
                let kept = row.values.into_iter().zip(row.segments);
                values.extend(
                    kept.filter(|(_, segment)| *segment > 0)
                        .map(|(value, _)| value),
                );
            }
            let mut plain = lists().unbatch();
            assert!(plain.elements().map(Result::unwrap).eq(values));
        }
        let mut large = lists().pack(usize::MAX, 0);
        let error = large.next().unwrap_err().to_string();
        assert!(error.contains("is too large"), "{error}");
        let error = lists().pack(5, 0).elements().find_map(Result::err).unwrap();
        assert!(error.to_string().starts_with("pack: element 1:"), "{error}");
    }
}
