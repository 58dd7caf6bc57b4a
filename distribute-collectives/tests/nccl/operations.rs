//! Every operation against a naive result, on buffers in host memory and on device memory.

use distribute_collectives::nccl::{DeviceMemory, ElementType};
use distribute_collectives::{
    CollectiveError, Communicator, CommunicatorExt, GroupOptions, ReduceOp, WireType, chunk_range,
};
use half::{bf16, f16};
use rstest::rstest;

use super::fake::{Fake, Rank};
use crate::common::{Random, TestElement, on_threads, within_limit};

/// The values of one rank: small, so that sums and products of a few are exact in every type.
fn values<T: TestElement>(rank: usize, seed: u64, len: usize) -> Vec<T> {
    let mut random = Random(seed * 64 + rank as u64);
    let value = |_| T::from_f64((random.next() % 4) as f64 + 1.0);
    (0..len).map(value).collect()
}

/// The reduction of all ranks' values, element by element.
fn naive<T: TestElement>(op: ReduceOp, inputs: &[Vec<T>]) -> Vec<T> {
    let ranks = inputs.len() as f64;
    let element = |index: usize| {
        let values = inputs.iter().map(|input| input[index].to_f64());
        let result = match op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Mean => values.sum::<f64>() / ranks,
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Prod => values.product(),
        };
        T::from_f64(result)
    };
    (0..inputs[0].len()).map(element).collect()
}

/// Equal, but for the rounding of means, which NCCL and a division do differently.
fn assert_close<T: TestElement>(found: &[T], expected: &[T], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (found, expected) = (found.to_f64(), expected.to_f64());
        let bound = match T::DTYPE.size_bytes() {
            2 => 0.03 * expected.abs(),
            _ => 1e-6 * expected.abs(),
        };
        let off = (found - expected).abs();
        assert!(
            off <= bound,
            "{what}: element {index} is {found}, not {expected}"
        );
    }
}

/// One case: element counts that are and are not multiples of the number of ranks.
#[derive(Clone, Copy)]
struct Case {
    ranks: usize,
    len: usize,
    seed: u64,
}

fn all_inputs<T: TestElement>(case: Case) -> Vec<Vec<T>> {
    (0..case.ranks)
        .map(|rank| values(rank, case.seed, case.len))
        .collect()
}

/// Every operation of the trait.
fn on_host<T: TestElement>(rank: &mut Rank, case: Case) {
    let (own, inputs) = (rank.rank(), all_inputs::<T>(case));
    for op in ReduceOp::ALL {
        let expected = naive(op, &inputs);
        let what = format!("{op} of {} elements of {}", case.len, T::DTYPE);
        let mut data = inputs[own].clone();
        let (first, second) = data.split_at_mut(case.len / 3);
        rank.all_reduce(op, &mut [T::buffer(first), T::buffer(second)])
            .expect("all_reduce");
        assert_close(&data, &expected, &what);

        let mut data = inputs[own].clone();
        let range = rank
            .reduce_scatter(op, T::buffer(&mut data))
            .expect("reduce_scatter");
        assert_eq!(range, chunk_range(case.len, case.ranks, own));
        assert_close(&data[range.clone()], &expected[range], &what);

        let (root, mut data) = (case.ranks - 1, inputs[own].clone());
        rank.reduce(op, root, &mut [T::buffer(&mut data)])
            .expect("reduce");
        if own == root {
            assert_close(&data, &expected, &what);
        }
    }
    let mut data = inputs[own].clone();
    let root = case.len % case.ranks;
    rank.broadcast(root, &mut [T::buffer(&mut data)])
        .expect("broadcast");
    assert_eq!(data, inputs[root]);

    // Rank `i` gives `i` elements less; the last one may have none.
    let input = |rank: usize| &inputs[rank][..case.len.saturating_sub(rank * case.len / 3)];
    let gathered = rank.all_gather(input(own)).expect("all_gather");
    (0..case.ranks).for_each(|rank| assert_eq!(gathered.rank(rank), input(rank)));
    let gathered = rank.all_gather(&inputs[own]).expect("all_gather");
    (0..case.ranks).for_each(|rank| assert_eq!(gathered.rank(rank), inputs[rank]));
    if case.ranks > 1 {
        pass_on(rank, &inputs, |rank, peer, data, sends| {
            let buffer = T::buffer(data);
            if sends {
                rank.send(peer, buffer)
            } else {
                rank.recv(peer, buffer)
            }
            .expect("point to point");
        });
    }
    rank.barrier().expect("barrier");
}

/// Rank 0 sends to rank 1, that to rank 2 and so on; all end with the values of rank 0.
fn pass_on<T: TestElement>(
    rank: &mut Rank,
    inputs: &[Vec<T>],
    mut call: impl FnMut(&mut Rank, usize, &mut [T], bool),
) {
    let (own, last) = (rank.rank(), inputs.len() - 1);
    let mut data = inputs[own].clone();
    if own > 0 {
        call(rank, own - 1, &mut data, false);
    }
    if own < last {
        call(rank, own + 1, &mut data, true);
    }
    assert_eq!(data, inputs[0]);
}

fn upload<T: TestElement>(rank: &mut Rank, values: &[T]) -> DeviceMemory {
    let mut memory = rank
        .allocate(T::DTYPE.into(), values.len())
        .expect("memory");
    rank.upload(&mut memory, values).expect("upload");
    memory
}

fn download<T: TestElement>(rank: &mut Rank, memory: &DeviceMemory) -> Vec<T> {
    let mut values = vec![T::from_f64(0.0); memory.len()];
    rank.download(memory, &mut values).expect("download");
    values
}

/// Every operation on device memory.
fn on_device<T: TestElement>(rank: &mut Rank, case: Case) {
    let (own, inputs) = (rank.rank(), all_inputs::<T>(case));
    for op in ReduceOp::ALL {
        let expected = naive(op, &inputs);
        let what = format!("{op} of {} elements of {}", case.len, T::DTYPE);
        let mut memory = upload(rank, &inputs[own]);
        rank.all_reduce_device(op, &mut [memory.buffer()])
            .expect("all_reduce");
        assert_close(&download::<T>(rank, &memory), &expected, &what);

        let mut memory = upload(rank, &inputs[own]);
        let range = rank
            .reduce_scatter_device(op, memory.buffer())
            .expect("reduce_scatter");
        let found = download::<T>(rank, &memory);
        assert_close(&found[range.clone()], &expected[range], &what);

        let mut memory = upload(rank, &inputs[own]);
        rank.reduce_device(op, 0, &mut [memory.buffer()])
            .expect("reduce");
        if own == 0 {
            assert_close(&download::<T>(rank, &memory), &expected, &what);
        }
    }
    let mut memory = upload(rank, &inputs[own]);
    let root = case.len % case.ranks;
    rank.broadcast_device(root, &mut [memory.buffer()])
        .expect("broadcast");
    assert_eq!(download::<T>(rank, &memory), inputs[root]);
    for less in [0, case.len / 3] {
        gather_on_device::<T>(rank, &inputs, less);
    }
    if case.ranks > 1 {
        pass_on(rank, &inputs, |rank, peer, data, sends| {
            let mut memory = upload(rank, data);
            let buffers = &mut [memory.buffer()];
            if sends {
                rank.send_device(peer, buffers)
            } else {
                rank.recv_device(peer, buffers)
            }
            .expect("point to point");
            data.clone_from_slice(&download::<T>(rank, &memory));
        });
    }
}

/// Rank `i` gives `i * less` elements less than all.
fn gather_on_device<T: TestElement>(rank: &mut Rank, inputs: &[Vec<T>], less: usize) {
    let own = rank.rank();
    let count = |rank: usize| inputs[rank].len().saturating_sub(rank * less);
    let total: usize = (0..inputs.len()).map(count).sum();
    let mut input = upload(rank, &inputs[own]);
    // One element more than is needed.
    let mut output = upload(rank, &vec![T::from_f64(7.0); total + 1]);
    let counts = rank
        .all_gather_device(input.slice(0..count(own)), output.buffer())
        .expect("all_gather");
    assert_eq!(counts, (0..inputs.len()).map(count).collect::<Vec<_>>());
    let mut expected: Vec<T> = Vec::new();
    (0..inputs.len()).for_each(|rank| expected.extend(&inputs[rank][..count(rank)]));
    expected.push(T::from_f64(7.0));
    assert_eq!(download::<T>(rank, &output), expected);
}

fn every_case<T: TestElement>(ranks: usize) {
    within_limit(move || {
        let fake = Fake::new("polls=1");
        // So small that most buffers need several rounds.
        let options = fake.options(0).staging_bytes(256);
        let group = fake.group_with(ranks, GroupOptions::default(), options);
        on_threads(group, |mut rank| {
            for (seed, len) in [1, 8, 61].into_iter().enumerate() {
                let seed = seed as u64 + 10 * ranks as u64;
                let case = Case { ranks, len, seed };
                on_host::<T>(&mut rank, case);
                on_device::<T>(&mut rank, case);
            }
            rank.all_reduce(ReduceOp::Sum, &mut []).expect("nothing");
            rank.all_reduce_device(ReduceOp::Sum, &mut [])
                .expect("nothing");
            let none = rank.all_gather::<T>(&[]).expect("nothing");
            assert!(none.values().is_empty());
        });
        fake.assert_clean();
    });
}

#[rstest]
fn every_operation_type_and_reduction(#[values(1, 2, 3, 4)] ranks: usize) {
    every_case::<f32>(ranks);
    every_case::<f64>(ranks);
    every_case::<f16>(ranks);
    every_case::<bf16>(ranks);
    every_case::<i32>(ranks);
    every_case::<i64>(ranks);
    every_case::<u8>(ranks);
}

/// More than one slot of the fake, and than the staging memory of a bench.
#[test]
fn long_buffers_are_moved_in_rounds() {
    within_limit(|| {
        let fake = Fake::new("");
        let options = fake.options(0).staging_bytes(1 << 20);
        on_threads(
            fake.group_with(2, GroupOptions::default(), options),
            |mut rank| {
                let len = 600_001;
                let mut data = vec![rank.rank() as f32 + 1.0; len];
                rank.all_reduce(ReduceOp::Mean, &mut [(&mut data).into()])
                    .expect("all_reduce");
                assert!(data.iter().all(|value| *value == 1.5));
            },
        );
        fake.assert_clean();
    });
}

/// The CPU divides once: the same bits as the other transports.
#[test]
fn a_mean_of_host_buffers_is_the_sum_divided_once() {
    within_limit(|| {
        let fake = Fake::new("");
        on_threads(fake.group(3), |mut rank| {
            let mut floats = [0.1_f32 + rank.rank() as f32];
            let mut integers = [[-1_i32, -1, -6][rank.rank()]];
            rank.all_reduce(ReduceOp::Mean, &mut [(&mut floats[..]).into()])
                .expect("all_reduce");
            rank.all_reduce(ReduceOp::Mean, &mut [(&mut integers[..]).into()])
                .expect("all_reduce");
            assert_eq!(floats[0].to_bits(), ((0.1_f32 + 1.1 + 2.1) / 3.0).to_bits());
            assert_eq!(integers, [-2]);
        });
    });
}

#[test]
fn a_pack_is_one_group_also_with_several_types() {
    within_limit(|| {
        let fake = Fake::new("");
        on_threads(fake.group(2), |mut rank| {
            let mut floats = upload(&mut rank, &[1.0_f32, 2.0]);
            let mut longs = upload(&mut rank, &[3_i64]);
            let mut halves = upload(&mut rank, &[f16::from_f32(4.0); 3]);
            let mut empty = upload::<u8>(&mut rank, &[]);
            let buffers = &mut [
                floats.buffer(),
                longs.buffer(),
                halves.buffer(),
                empty.buffer(),
            ];
            rank.all_reduce_device(ReduceOp::Sum, buffers)
                .expect("one group");
            assert_eq!(download::<f32>(&mut rank, &floats), [2.0, 4.0]);
            assert_eq!(download::<i64>(&mut rank, &longs), [6]);
            assert_eq!(download::<f16>(&mut rank, &halves), [f16::from_f32(8.0); 3]);
            let buffers = &mut [floats.buffer(), longs.buffer(), halves.buffer()];
            for pack in [1..3, 0..1] {
                rank.all_reduce_device(ReduceOp::Sum, &mut buffers[pack])
                    .expect("a pack");
            }
            assert_eq!(download::<f32>(&mut rank, &floats), [4.0, 8.0]);
            assert_eq!(download::<i64>(&mut rank, &longs), [12]);
        });
        assert_eq!(fake.stat("largest_group"), 3);
        // One for the list and two packs, on each of two ranks.
        assert_eq!(fake.stat("groups"), 6);
        fake.assert_clean();
    });
}

#[test]
fn every_type_of_nccl_can_be_moved() {
    within_limit(|| {
        let fake = Fake::new("");
        on_threads(fake.group(2), |mut rank| {
            for element in ElementType::ALL {
                let mut memory = rank.allocate(element, 5).expect("memory");
                let mut all = rank.allocate(element, 10).expect("memory");
                rank.broadcast_device(1, &mut [memory.buffer()])
                    .expect("broadcast");
                let counts = rank.all_gather_device(memory.buffer(), all.buffer());
                assert_eq!(counts, Ok(vec![5, 5]));
            }
            let mut memory = rank.allocate(ElementType::U64, 1).expect("memory");
            rank.all_reduce_device(ReduceOp::Max, &mut [memory.buffer()])
                .expect("u64");
        });
    });
}

#[test]
fn types_that_this_nccl_lacks_are_refused() {
    within_limit(|| {
        let fake = Fake::new("nccl=21903");
        let mut rank = fake.group(1).remove(0);
        let mut memory = rank.allocate(ElementType::F8E4M3, 4).expect("memory");
        let error = rank
            .all_reduce_device(ReduceOp::Sum, &mut [memory.buffer()])
            .unwrap_err();
        assert!(matches!(error, CollectiveError::InvalidArgument { .. }));
        assert!(
            error
                .to_string()
                .contains("f8e4m3 needs NCCL 2.24.0, this one is 2.19.3")
        );
        rank.barrier().expect("still usable");
    });
}

#[test]
fn wrong_arguments_leave_the_group_usable() {
    within_limit(|| {
        let fake = Fake::new("");
        let mut rank = fake.group(1).remove(0);
        let mut value = [1.0_f32];
        let mut long = [1_i64];
        let mut memory = rank.allocate(ElementType::F32, 2).expect("memory");
        let errors = [
            rank.broadcast(1, &mut [(&mut value[..]).into()]),
            rank.send(0, (&mut value[..]).into()),
            rank.recv(7, (&mut value[..]).into()),
            rank.upload(&mut memory, &value),
            rank.upload(&mut memory, &[1_i32, 2]),
            rank.all_reduce(
                ReduceOp::Sum,
                &mut [(&mut value[..]).into(), (&mut long[..]).into()],
            ),
        ];
        for error in errors {
            let error = error.unwrap_err();
            assert!(
                matches!(error, CollectiveError::InvalidArgument { .. }),
                "{error}"
            );
        }
        rank.barrier().expect("still usable");
        assert!(rank.describe().to_string().contains("NCCL 2.27.3"));
    });
}

#[test]
fn a_refused_copy_says_which_one() {
    within_limit(|| {
        let fake = Fake::new("");
        let mut rank = fake.group(1).remove(0);
        let mut memory = rank.allocate(ElementType::F32, 2).expect("memory");
        let mut values = [1.0_f32; 3];
        let error = rank.upload(&mut memory, &values).unwrap_err();
        assert_eq!(
            error.to_string(),
            "send on rank 0: upload of 3 elements of f32 does not fit 2 of f32"
        );
        let error = rank.download(&memory, &mut values).unwrap_err();
        assert_eq!(
            error.to_string(),
            "recv on rank 0: download of 3 elements of f32 does not fit 2 of f32"
        );
    });
}

/// What the control group sends is rounded on the way; what NCCL reduces has no wire type.
#[rstest]
fn a_wire_type_of_the_control_group_rounds_nothing_that_nccl_reduces(
    #[values(WireType::Bf16, WireType::F16)] wire: WireType,
) {
    within_limit(move || {
        let fake = Fake::new("");
        let group = GroupOptions::default().wire(wire);
        let ranks = fake.group_with(2, group, fake.options(0));
        on_threads(ranks, |mut rank| {
            // Has 12 bits of mantissa: neither wire type holds it.
            let own = 1.0 + f32::powi(2.0, -12) * (rank.rank() + 1) as f32;
            let sum = 2.0 + f32::powi(2.0, -12) * 3.0;
            let mut host = vec![own; 9];
            rank.all_reduce(ReduceOp::Sum, &mut [(&mut host[..]).into()])
                .expect("all_reduce");
            assert_eq!(host, [sum; 9]);
            let mut memory = upload(&mut rank, &[own; 9]);
            rank.all_reduce_device(ReduceOp::Sum, &mut [memory.buffer()])
                .expect("all_reduce_device");
            assert_eq!(download::<f32>(&mut rank, &memory), [sum; 9]);
        });
        fake.assert_clean();
    });
}
