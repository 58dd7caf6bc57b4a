//! What an `all_gather` checks before it moves bytes: the sizes of its inputs come from callers and
//! from other ranks.

use std::ops::Range;

use crate::buffer::DType;
use crate::communicator::GatherTarget;
use crate::error::{CollectiveError, Result};
use crate::operation::OperationKind;
use crate::transport::Transport;

/// Refuses an input that is not whole elements; nothing has been sent yet.
pub(crate) fn check_input(rank: usize, dtype: DType, input: &[u8]) -> Result<()> {
    let (bytes, each) = (input.len(), dtype.size_bytes());
    if bytes.is_multiple_of(each) {
        return Ok(());
    }
    let op = OperationKind::AllGather;
    let what = format!("the input has {bytes} bytes, but an element of {dtype} has {each}");
    Err(CollectiveError::InvalidArgument { rank, op, what })
}

/// Where the input of a rank lies among all inputs.
pub(crate) fn chunk(sizes: &[usize], rank: usize) -> Range<usize> {
    let start = sizes[..rank].iter().sum();
    start..start + sizes[rank]
}

/// Memory for all inputs, see [`Inputs::memory`]; an error ends the operation on all ranks.
pub(crate) fn memory<'o>(
    transport: &mut impl Transport,
    dtype: DType,
    sizes: &[usize],
    output: &'o mut dyn GatherTarget,
) -> Result<&'o mut [u8]> {
    let inputs = Inputs {
        rank: transport.rank(),
        dtype,
        sizes,
        transport: transport.name(),
    };
    let memory = inputs.memory(output);
    memory.inspect_err(|error| transport.fail(error.clone()))
}

/// One rank's view of the sizes that all ranks have said.
pub(crate) struct Inputs<'a> {
    /// This rank.
    pub(crate) rank: usize,
    pub(crate) dtype: DType,
    /// Bytes of every rank's input.
    pub(crate) sizes: &'a [usize],
    /// How the other ranks are reached, for the error.
    pub(crate) transport: &'a str,
}

impl Inputs<'_> {
    /// Memory for all inputs, exactly as much as they take.
    ///
    /// # Errors
    /// All are fatal and all ranks should be told: [`CollectiveError::Protocol`] names the rank
    /// whose size cannot be, [`CollectiveError::Aborted`] says that this rank has no memory.
    pub(crate) fn memory<'o>(&self, output: &'o mut dyn GatherTarget) -> Result<&'o mut [u8]> {
        let total = self.total()?;
        let output = output.resize(self.sizes);
        let found = output.len();
        output.get_mut(..total).ok_or_else(|| {
            let largest = self.largest();
            CollectiveError::Aborted {
                rank: self.rank,
                reason: format!(
                    "its output of an all_gather of {} took {found} of {total} bytes (rank \
                     {largest} alone has {}): not enough memory, or elements of another type",
                    self.dtype, self.sizes[largest]
                ),
            }
        })
    }

    /// Bytes of all inputs.
    fn total(&self) -> Result<usize> {
        let each = self.dtype.size_bytes();
        let broken = |size: &usize| !size.is_multiple_of(each);
        if let Some(peer) = self.sizes.iter().position(broken) {
            let what = format!(
                "an input of {} bytes for an all_gather of {}, whose elements have {each}",
                self.sizes[peer], self.dtype
            );
            return Err(self.impossible(peer, what));
        }
        let mut sizes = self.sizes.iter();
        let total = sizes.try_fold(0_usize, |sum, size| sum.checked_add(*size));
        total
            .filter(|total| *total <= isize::MAX as usize)
            .ok_or_else(|| {
                let peer = self.largest();
                let what = format!(
                    "an input of {} bytes for an all_gather, more than any memory can hold with \
                     the shapes of the other ranks",
                    self.sizes[peer]
                );
                self.impossible(peer, what)
            })
    }

    fn impossible(&self, peer: usize, what: String) -> CollectiveError {
        CollectiveError::Protocol {
            rank: self.rank,
            peer,
            address: self.transport.to_string(),
            what,
        }
    }

    fn largest(&self) -> usize {
        let largest = (0..self.sizes.len()).max_by_key(|rank| self.sizes[*rank]);
        largest.unwrap_or(self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Gathered;

    fn memory(dtype: DType, sizes: &[usize], output: &mut dyn GatherTarget) -> Result<usize> {
        let inputs = Inputs {
            rank: 0,
            dtype,
            sizes,
            transport: "nowhere",
        };
        inputs.memory(output).map(|memory| memory.len())
    }

    #[test]
    fn an_input_is_whole_elements() {
        for dtype in DType::ALL {
            for len in 0..=16_usize {
                let whole = len.is_multiple_of(dtype.size_bytes());
                let result = check_input(1, dtype, &vec![0; len]);
                assert_eq!(result.is_ok(), whole, "{dtype} {len}");
            }
        }
        let error = check_input(1, DType::F32, &[0; 3]).unwrap_err();
        assert!(!error.is_fatal());
        let expected = "all_gather on rank 1: the input has 3 bytes, but an element of f32 has 4";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn sizes_that_cannot_be_name_the_rank_that_said_them() {
        let cases: [(DType, &[usize], usize); 5] = [
            (DType::F32, &[4, 3], 1),
            (DType::F32, &[4, 8, 0, 5], 3),
            (DType::U8, &[1, usize::MAX], 1),
            (DType::F32, &[4, 1 << 63], 1),
            (DType::U8, &[8, 1 << 62, 1 << 62], 2),
        ];
        for (dtype, sizes, culprit) in cases {
            let mut gathered = Gathered::<f32>::default();
            let error = memory(dtype, sizes, &mut gathered).unwrap_err();
            let named = matches!(error, CollectiveError::Protocol { peer, .. } if peer == culprit);
            assert!(named, "{sizes:?}: {error}");
        }
    }

    #[test]
    fn memory_that_is_not_there_ends_the_group() {
        let mut gathered = Gathered::<f32>::default();
        assert_eq!(memory(DType::F32, &[4, 8], &mut gathered), Ok(12));
        assert_eq!(gathered.rank(1), [0.0; 2]);
        // More than this machine has, and elements of another type than the target's.
        for (dtype, sizes) in [(DType::F32, [4, 1 << 62]), (DType::U8, [4, 3])] {
            let error = memory(dtype, &sizes, &mut gathered).unwrap_err();
            assert!(error.is_fatal());
            assert!(
                matches!(error, CollectiveError::Aborted { rank: 0, .. }),
                "{error}"
            );
            assert_eq!(gathered, Gathered::default());
        }
        assert_eq!(memory(DType::F32, &[8, 4], &mut gathered), Ok(12));
    }

    /// A target may also return too much, or too little.
    #[test]
    fn targets_of_any_length_are_not_trusted() {
        struct Fixed([u8; 10]);
        impl GatherTarget for Fixed {
            fn resize(&mut self, _: &[usize]) -> &mut [u8] {
                &mut self.0
            }
        }
        let mut target = Fixed([0; 10]);
        assert_eq!(memory(DType::U8, &[4, 5], &mut target), Ok(9));
        assert_eq!(memory(DType::U8, &[5, 5], &mut target), Ok(10));
        assert!(memory(DType::U8, &[5, 6], &mut target).is_err());
    }
}
