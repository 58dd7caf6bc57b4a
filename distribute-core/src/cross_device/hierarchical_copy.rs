//! Two groups of replicas: inside each, then between them, then back.

use std::ops::Range;

use distribute_collectives::reduce::{accumulate, accumulate_last};
use distribute_collectives::{Buffer, Communicator, CommunicatorExt, Element, ReduceOp};

use super::CrossDeviceOps;
use crate::communication::pack::concat_and_split;
use crate::{Error, Result};

/// Reduces inside two halves of the replicas, then between the halves, and copies the result back
/// (TensorFlow: `tf.distribute.HierarchicalCopyAllReduce`; made for machines whose devices form
/// two islands of fast links).
///
/// The first half has `n / 2` replicas, the second half the rest. (TensorFlow forms two groups of
/// `n / 2` and drops the values of the last device of an odd number: a defect that is not
/// repeated here.) The replica that adds up moves on by one from pack to pack, so packs spread the
/// work.
///
/// Order: rank order inside the halves, then first half + second half. Half-precision sums are
/// rounded after each addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HierarchicalCopy {
    /// The number of packs that all buffers of a call, laid end to end, are cut into; 1 by
    /// default. With 0 every buffer goes on its own. All packs have `total / num_packs` elements,
    /// the last one takes the rest.
    pub num_packs: usize,
}

impl Default for HierarchicalCopy {
    fn default() -> Self {
        Self { num_packs: 1 }
    }
}

impl CrossDeviceOps for HierarchicalCopy {
    fn name(&self) -> &str {
        "hierarchical-copy"
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        match buffers.first() {
            None => Ok(communicator.barrier()?),
            Some(Buffer::F32(_)) => self.reduce::<f32>(communicator, op, buffers),
            Some(Buffer::F64(_)) => self.reduce::<f64>(communicator, op, buffers),
            Some(Buffer::F16(_)) => self.reduce::<burn::tensor::f16>(communicator, op, buffers),
            Some(Buffer::BF16(_)) => self.reduce::<burn::tensor::bf16>(communicator, op, buffers),
            Some(Buffer::I32(_)) => self.reduce::<i32>(communicator, op, buffers),
            Some(Buffer::I64(_)) => self.reduce::<i64>(communicator, op, buffers),
            Some(Buffer::U8(_)) => self.reduce::<u8>(communicator, op, buffers),
        }
    }
}

impl HierarchicalCopy {
    fn reduce<E: Element + Default>(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let mixed = || Error::invalid("all_reduce: the buffers of one call differ in type");
        let slices = buffers
            .iter_mut()
            .map(E::slice_of_mut)
            .map(|slice| slice.ok_or_else(mixed))
            .collect::<Result<Vec<_>>>()?;
        check_lengths(communicator, &slices)?;
        if self.num_packs == 0 {
            for (index, slice) in slices.into_iter().enumerate() {
                reduce_pack(communicator, op, index, slice)?;
            }
            return Ok(());
        }
        let mut whole: Vec<E> = slices.concat();
        let mut rest = &mut whole[..];
        let sizes = concat_and_split(rest.len(), self.num_packs)?;
        for (index, size) in sizes.into_iter().enumerate() {
            let (pack, tail) = rest.split_at_mut(size);
            reduce_pack(communicator, op, index, pack)?;
            rest = tail;
        }
        let mut from = &whole[..];
        for slice in slices {
            let (values, tail) = from.split_at(slice.len());
            slice.copy_from_slice(values);
            from = tail;
        }
        Ok(())
    }
}

/// What the single messages cannot notice: packs of equal sizes that are cut from differently
/// sized buffers, and a replica in another operation. All replicas get the same error.
fn check_lengths<E>(communicator: &mut dyn Communicator, slices: &[&mut [E]]) -> Result<()> {
    let sizes = slices
        .iter()
        .map(|slice| i64::try_from(slice.len()).map_err(Error::internal))
        .collect::<Result<Vec<i64>>>()?;
    let all = communicator.all_gather(&sizes)?;
    let first = all.rank(0).to_vec();
    match (0..all.world_size()).find(|rank| all.rank(*rank) != first) {
        None => Ok(()),
        Some(rank) => Err(Error::invalid(format!(
            "hierarchical-copy: replica {rank} passed buffers of {:?} elements and replica 0 of \
             {first:?}",
            all.rank(rank)
        ))),
    }
}

/// Reduces one pack, of which each rank has its place in the two groups.
fn reduce_pack<E: Element + Default>(
    communicator: &mut dyn Communicator,
    op: ReduceOp,
    pack: usize,
    values: &mut [E],
) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    let (rank, size) = (communicator.rank(), communicator.world_size());
    let half = size / 2;
    // One replica alone is the second half.
    let first = (half > 0).then(|| pack % half);
    let second = half + pack % (size - half);
    // The ranks of this half, the one that adds up in it, and the one in the other half.
    let (members, main, other_main) = match first {
        Some(first) if rank < half => (0..half, first, Some(second)),
        _ => (half..size, second, first),
    };
    if rank != main {
        communicator.send(main, E::buffer(values))?;
        return Ok(communicator.recv(main, E::buffer(values))?);
    }
    let mut sum = add_up(communicator, op, members.clone(), values)?;
    if let Some(other) = other_main {
        let mut theirs = vec![E::default(); sum.len()];
        // One side sends first, the other receives first: no order in which both wait.
        if rank < half {
            communicator.send(other, E::buffer(&mut sum))?;
            communicator.recv(other, E::buffer(&mut theirs))?;
        } else {
            communicator.recv(other, E::buffer(&mut theirs))?;
            communicator.send(other, E::buffer(&mut sum))?;
            std::mem::swap(&mut sum, &mut theirs);
        }
        accumulate_last(op, size, &mut sum, &theirs);
    }
    values.copy_from_slice(&sum);
    for member in members.filter(|member| *member != rank) {
        communicator.send(member, E::buffer(values))?;
    }
    Ok(())
}

/// The values of these ranks, in their order, on one of them.
fn add_up<E: Element + Default>(
    communicator: &mut dyn Communicator,
    op: ReduceOp,
    members: Range<usize>,
    mine: &[E],
) -> Result<Vec<E>> {
    let mut sum: Option<Vec<E>> = None;
    let mut received = vec![E::default(); mine.len()];
    for member in members {
        let values = if member == communicator.rank() {
            mine
        } else {
            communicator.recv(member, E::buffer(&mut received))?;
            &received
        };
        match &mut sum {
            None => sum = Some(values.to_vec()),
            Some(sum) => accumulate(op, sum, values),
        }
    }
    Ok(sum.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{bf16, f16};
    use distribute_collectives::{GroupOptions, in_process};

    /// Runs `ops` on every rank of a group; rank r holds `value(r, i)` in buffers of `sizes`.
    fn run<E: Element + Default>(
        ops: HierarchicalCopy,
        op: ReduceOp,
        ranks: usize,
        sizes: &[usize],
        value: impl Fn(usize, usize) -> E + Sync,
    ) -> Vec<Vec<E>> {
        let group = in_process(ranks, GroupOptions::default()).unwrap();
        let value = &value;
        std::thread::scope(|threads| {
            let handles: Vec<_> = group
                .into_iter()
                .enumerate()
                .map(|(rank, mut endpoint)| {
                    threads.spawn(move || {
                        let total = sizes.iter().sum();
                        let mut all: Vec<E> = (0..total).map(|i| value(rank, i)).collect();
                        let mut buffers = Vec::new();
                        let mut rest = &mut all[..];
                        for size in sizes {
                            let (buffer, tail) = rest.split_at_mut(*size);
                            buffers.push(E::buffer(buffer));
                            rest = tail;
                        }
                        ops.all_reduce(&mut endpoint, op, &mut buffers).unwrap();
                        all
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap())
                .collect()
        })
    }

    #[test]
    fn one_to_nine_replicas_sum_as_naively_for_every_number_of_packs() {
        let sizes = [3, 0, 7, 1, 12];
        for ranks in 1..=9 {
            for num_packs in [0, 1, 2, 5, 40] {
                let value = |rank: usize, i: usize| (rank * 31 + i * 7) as i64 - 40;
                let results = run(
                    HierarchicalCopy { num_packs },
                    ReduceOp::Sum,
                    ranks,
                    &sizes,
                    value,
                );
                let expected: Vec<i64> = (0..23)
                    .map(|i| (0..ranks).map(|rank| value(rank, i)).sum())
                    .collect();
                assert_eq!(
                    results,
                    vec![expected; ranks],
                    "{ranks} ranks, {num_packs} packs"
                );
            }
        }
    }

    /// TensorFlow drops the last device of an odd number; this library does not.
    #[test]
    fn deviation_an_odd_number_of_replicas_is_summed_completely() {
        for ranks in [3, 5, 7] {
            let results = run(
                HierarchicalCopy::default(),
                ReduceOp::Mean,
                ranks,
                &[2],
                |rank, _| rank as f32,
            );
            let mean = (ranks - 1) as f32 / 2.0;
            assert_eq!(results, vec![vec![mean; 2]; ranks]);
        }
    }

    #[test]
    fn every_reduction_and_element_type_agrees_with_the_kernels() {
        macro_rules! types {
            ($($type:ty, $from:expr);*) => {$(
                for op in ReduceOp::ALL {
                    for ranks in [1, 2, 5, 6] {
                        let from: fn(usize) -> $type = $from;
                        let value = |rank: usize, i: usize| from(1 + (rank + i) % 3);
                        let results =
                            run(HierarchicalCopy { num_packs: 2 }, op, ranks, &[4, 3], value);
                        let inputs: Vec<Vec<$type>> = (0..ranks)
                            .map(|rank| (0..7).map(|i| value(rank, i)).collect())
                            .collect();
                        let slices: Vec<&[$type]> = inputs.iter().map(Vec::as_slice).collect();
                        let mut expected = vec![<$type>::default(); 7];
                        distribute_collectives::reduce::reduce_into(op, &slices, &mut expected);
                        assert_eq!(results, vec![expected; ranks], "{op} of {ranks}");
                    }
                }
            )*};
        }
        types!(
            f32, |v| v as f32;
            f64, |v| v as f64;
            f16, |v| f16::from_f64(v as f64);
            bf16, |v| bf16::from_f64(v as f64);
            i32, |v| v as i32;
            i64, |v| v as i64;
            u8, |v| v as u8
        );
    }

    #[test]
    fn buffers_of_different_sizes_are_an_error_on_all_replicas() {
        let group = in_process(4, GroupOptions::default()).unwrap();
        let errors: Vec<Error> = std::thread::scope(|threads| {
            let handles: Vec<_> = group
                .into_iter()
                .enumerate()
                .map(|(rank, mut endpoint)| {
                    threads.spawn(move || {
                        let mut first = vec![1.0_f32; if rank == 2 { 3 } else { 2 }];
                        let mut second = vec![1.0_f32; if rank == 2 { 2 } else { 3 }];
                        let mut buffers = [(&mut first[..]).into(), (&mut second[..]).into()];
                        let ops = HierarchicalCopy::default();
                        ops.all_reduce(&mut endpoint, ReduceOp::Sum, &mut buffers)
                            .unwrap_err()
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap())
                .collect()
        });
        for error in errors {
            assert!(error.to_string().contains("replica 2 passed"), "{error}");
        }
    }
}
