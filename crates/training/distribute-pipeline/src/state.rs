//! Where a stream is: what a checkpoint keeps of it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::{PipelineError, Result};

/// Where a stream is, between two elements: a few numbers for each stage, and the elements that
/// its buffers hold. It is a tree like the pipeline itself, and can be serialized by serde or by
/// [`to_bytes`](Self::to_bytes), which is versioned and bounded.
///
/// A stage of your own builds one and reads it back:
///
/// ```
/// use distribute_pipeline::State;
///
/// let state = State::new("my_stage").number(3).item(&"buffered")?;
/// let mut read = state.read("my_stage")?;
/// assert_eq!(read.number()?, 3);
/// assert_eq!(read.item::<String>()?, "buffered");
/// read.finish()?;
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct State {
    stage: String,
    numbers: Vec<u64>,
    items: Vec<ByteBuf>,
    inner: Vec<State>,
}

/// The first bytes of a written state; the last one is the version.
const HEADER: &[u8; 8] = b"PIPELIN\x01";

impl State {
    /// The most bytes of a written state: 256 MiB.
    pub const MAX_BYTES: usize = 256 << 20;

    /// The largest number of elements that a stage may have counted, so that it can go on.
    pub(crate) const MOST: u64 = u64::MAX / 2;

    /// The most stages one inside the other.
    pub const MAX_DEPTH: usize = 100;

    /// The state of a stage of this name, without anything in it.
    pub fn new(stage: &str) -> Self {
        Self {
            stage: stage.into(),
            numbers: Vec::new(),
            items: Vec::new(),
            inner: Vec::new(),
        }
    }

    /// With one more number: a position, a count.
    pub fn number(mut self, number: u64) -> Self {
        self.numbers.push(number);
        self
    }

    /// With one more element that a buffer holds.
    ///
    /// # Errors
    /// If the element cannot be serialized.
    pub fn item<T: Serialize + ?Sized>(mut self, item: &T) -> Result<Self> {
        let bytes = rmp_serde::to_vec(item).map_err(|error| PipelineError::Item {
            stage: self.stage.clone(),
            what: "saved",
            message: error.to_string(),
        })?;
        self.items.push(ByteBuf::from(bytes));
        Ok(self)
    }

    /// With the state of an input of the stage.
    pub fn inner(mut self, inner: Self) -> Self {
        self.inner.push(inner);
        self
    }

    /// Reads it back, in the order in which it was built.
    ///
    /// # Errors
    /// If it is the state of a stage of another name.
    pub fn read(&self, stage: &'static str) -> Result<StateReader<'_>> {
        let reader = StateReader {
            stage,
            numbers: self.numbers.iter(),
            items: self.items.iter(),
            inner: self.inner.iter(),
        };
        if self.stage == stage {
            return Ok(reader);
        }
        Err(reader.fault(format!("it is one of `{}`", self.stage)))
    }

    /// About how many bytes it takes: the bytes of the elements, and some for every stage.
    pub fn size(&self) -> usize {
        let own = self.stage.len() + 8 * self.numbers.len() + self.own_bytes();
        self.inner
            .iter()
            .map(Self::size)
            .fold(own, usize::saturating_add)
    }

    /// The state as bytes, with a version.
    ///
    /// # Errors
    /// If it takes more than [`MAX_BYTES`](Self::MAX_BYTES), or has more stages one inside the
    /// other than [`MAX_DEPTH`](Self::MAX_DEPTH).
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let (depth, held) = self.measure(0);
        if depth > Self::MAX_DEPTH {
            let what = format!("it has more than {} stages in one another", Self::MAX_DEPTH);
            return Err(self.fault(what));
        }
        let too_large = |bytes| PipelineError::StateTooLarge {
            stage: self.largest().stage.clone(),
            bytes,
            limit: Self::MAX_BYTES,
        };
        if held > Self::MAX_BYTES {
            return Err(too_large(held));
        }
        let mut bytes = HEADER.to_vec();
        rmp_serde::encode::write(&mut bytes, self)
            .map_err(|error| self.fault(error.to_string()))?;
        if bytes.len() > Self::MAX_BYTES {
            return Err(too_large(bytes.len()));
        }
        Ok(bytes)
    }

    /// Reads [`to_bytes`](Self::to_bytes) back.
    ///
    /// # Errors
    /// If the bytes are no state, of another version, too many or too deep.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let fault = |what: String| PipelineError::State {
            stage: "pipeline".into(),
            what,
        };
        if bytes.len() > Self::MAX_BYTES {
            return Err(fault(format!("it has {} bytes", bytes.len())));
        }
        let (magic, version) = HEADER.split_at(HEADER.len() - 1);
        let found = bytes.get(..HEADER.len());
        let rest = match found {
            Some(found) if found == HEADER => bytes.get(HEADER.len()..).unwrap_or_default(),
            Some(found) if found.starts_with(magic) => {
                let other = found.last().copied().unwrap_or(0);
                let own = version.first().copied().unwrap_or(0);
                return Err(fault(format!("it has version {other}, and this is {own}")));
            }
            _ => return Err(fault("the bytes are no state of a pipeline".into())),
        };
        let mut reader = rmp_serde::Deserializer::from_read_ref(rest);
        // A level of the tree is a struct and a list.
        reader.set_max_depth(2 * Self::MAX_DEPTH + 8);
        Self::deserialize(&mut reader).map_err(|error| fault(error.to_string()))
    }

    fn fault(&self, what: String) -> PipelineError {
        PipelineError::State {
            stage: self.stage.clone(),
            what,
        }
    }

    /// Levels of the tree, and the bytes of all elements in it.
    fn measure(&self, above: usize) -> (usize, usize) {
        let own = self.own_bytes();
        if above > Self::MAX_DEPTH {
            return (above, own);
        }
        let inner = self.inner.iter().map(|inner| inner.measure(above + 1));
        inner.fold((above, own), |(depth, bytes), (below, more)| {
            (depth.max(below), bytes.saturating_add(more))
        })
    }

    fn own_bytes(&self) -> usize {
        self.items.iter().map(|item| item.len()).sum()
    }

    /// The stage with the most bytes.
    fn largest(&self) -> &Self {
        let inner = self.inner.iter().map(Self::largest);
        inner.fold(self, |largest, other| {
            let is_larger = other.own_bytes() > largest.own_bytes();
            [largest, other][usize::from(is_larger)]
        })
    }
}

/// Reads a [`State`] in the order in which it was built. Nothing in it is trusted: what is missing
/// or does not fit is an error that names the stage.
#[derive(Debug)]
pub struct StateReader<'a> {
    stage: &'static str,
    numbers: std::slice::Iter<'a, u64>,
    items: std::slice::Iter<'a, ByteBuf>,
    inner: std::slice::Iter<'a, State>,
}

impl<'a> StateReader<'a> {
    /// The next number.
    ///
    /// # Errors
    /// If there is none.
    pub fn number(&mut self) -> Result<u64> {
        let number = self.numbers.next().copied();
        number.ok_or_else(|| self.fault("it lacks a number"))
    }

    /// The next number, of elements or bytes that have been read: half of all numbers are too large
    /// for it, so that it can go on.
    ///
    /// # Errors
    /// If there is none, or if it is larger.
    pub fn count(&mut self) -> Result<u64> {
        self.number_to(State::MOST)
    }

    /// The next number, which must not be more than `most`.
    ///
    /// # Errors
    /// If there is none, or if it is larger.
    pub fn number_to(&mut self, most: u64) -> Result<u64> {
        match self.number()? {
            number if number <= most => Ok(number),
            number => Err(self.fault(format!("it says {number}, and at most {most} is possible"))),
        }
    }

    /// The next element.
    ///
    /// # Errors
    /// If there is none, or if it is of another type.
    pub fn item<T: DeserializeOwned>(&mut self) -> Result<T> {
        let Some(bytes) = self.items.next() else {
            return Err(self.fault("it lacks an element"));
        };
        rmp_serde::from_slice(bytes).map_err(|error| PipelineError::Item {
            stage: self.stage.into(),
            what: "restored",
            message: error.to_string(),
        })
    }

    /// All elements that are left, in order.
    ///
    /// # Errors
    /// If one is of another type.
    pub fn all_items<T: DeserializeOwned>(&mut self) -> Result<Vec<T>> {
        (0..self.items_left()).map(|_| self.item()).collect()
    }

    /// How many elements are left.
    pub fn items_left(&self) -> usize {
        self.items.len()
    }

    /// The state of the next input.
    ///
    /// # Errors
    /// If there is none.
    pub fn inner(&mut self) -> Result<&'a State> {
        let inner = self.inner.next();
        inner.ok_or_else(|| self.fault("it lacks an input"))
    }

    /// How many inputs are left.
    pub fn inner_left(&self) -> usize {
        self.inner.len()
    }

    /// Ends the reading: everything must have been read.
    ///
    /// # Errors
    /// If something is left.
    pub fn finish(self) -> Result<()> {
        match (self.numbers.len(), self.items.len(), self.inner.len()) {
            (0, 0, 0) => Ok(()),
            _ => Err(self.fault("it holds more than this stage")),
        }
    }

    /// An error about what was read.
    pub fn fault(&self, what: impl Into<String>) -> PipelineError {
        PipelineError::State {
            stage: self.stage.into(),
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> State {
        (0..levels).fold(State::new("range").number(5), |inner, level| {
            State::new("map").number(level as u64).inner(inner)
        })
    }

    #[test]
    fn bytes_come_back_with_every_number() {
        let state = nested(State::MAX_DEPTH)
            .item(&(f32::NAN.to_bits(), f32::INFINITY))
            .unwrap();
        assert_eq!(
            State::from_bytes(&state.to_bytes().unwrap()).unwrap(),
            state
        );
        assert!(nested(State::MAX_DEPTH + 1).to_bytes().is_err());
    }

    #[test]
    fn damaged_bytes_are_errors() {
        let bytes = nested(3).to_bytes().unwrap();
        for end in 0..bytes.len() {
            assert!(State::from_bytes(&bytes[..end]).is_err(), "{end}");
        }
        let mut other = bytes.clone();
        other[7] = 9;
        let error = State::from_bytes(&other).unwrap_err().to_string();
        assert!(error.contains("version 9"), "{error}");
        // A list that claims more than there is.
        let mut claims = HEADER.to_vec();
        claims.extend([0x94, 0xa1, b'x', 0xdd, 0xff, 0xff, 0xff, 0xff]);
        assert!(State::from_bytes(&claims).is_err());
        // Levels without end.
        let mut deep = HEADER.to_vec();
        for _ in 0..100_000 {
            deep.extend([0x94, 0xa1, b'x', 0x90, 0x90, 0x91]);
        }
        assert!(State::from_bytes(&deep).is_err());
    }

    #[test]
    fn a_state_of_another_pipeline_is_refused_with_both_names() {
        let state = State::new("shuffle").number(1);
        let error = state.read("batch").unwrap_err().to_string();
        assert!(
            error.contains("batch") && error.contains("shuffle"),
            "{error}"
        );
        let mut reader = state.read("shuffle").unwrap();
        assert!(reader.number_to(0).is_err());
        assert!(reader.item::<u8>().is_err());
        assert!(state.read("shuffle").unwrap().finish().is_err());
    }

    #[test]
    fn a_large_state_names_the_stage_that_holds_most() {
        let half = vec![0_u8; State::MAX_BYTES / 3];
        let shuffle = State::new("shuffle")
            .item(serde_bytes::Bytes::new(&half))
            .unwrap();
        let shuffle = shuffle.item(serde_bytes::Bytes::new(&half)).unwrap();
        let window = State::new("window")
            .item(serde_bytes::Bytes::new(&half))
            .unwrap();
        let error = window.inner(shuffle).to_bytes().unwrap_err().to_string();
        assert!(error.contains("`shuffle`"), "{error}");
    }
}
