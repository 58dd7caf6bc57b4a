//! One rank on a real GPU: NCCL, the driver and this crate's bindings. Without a GPU every test
//! says SKIPPED. `scripts/gpu-check` runs them where there is one.

use std::time::Duration;

use distribute_collectives::nccl::{
    DeviceBuffer, ElementType, NcclCommunicator, NcclOptions, in_process, probe,
};
use distribute_collectives::{
    Communicator, CommunicatorExt, Element, GroupOptions, InProcessCommunicator, ReduceOp,
};
use half::{bf16, f16};
use libloading::Library;

type Rank = NcclCommunicator<InProcessCommunicator>;

/// One GPU is one at a time.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A group of one rank on GPU 0; `None` where there is none.
fn rank() -> Option<Rank> {
    let options = NcclOptions::new(0).grace(Duration::from_secs(10));
    match probe(&options) {
        Ok(found) if !found.devices.is_empty() => {}
        Ok(_) => {
            println!("SKIPPED: no GPU");
            return None;
        }
        Err(error) => {
            println!("SKIPPED: no GPU or no NCCL: {error}");
            return None;
        }
    }
    let group = in_process(&[0], GroupOptions::default(), options).expect("a group");
    group.into_iter().next()
}

/// Every operation on device memory leaves one rank's values as they are, bit by bit.
fn leaves_values<T: Element>(rank: &mut Rank, values: &[T]) {
    let element = ElementType::from(T::DTYPE);
    let bits = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
    let mut memory = rank.allocate(element, values.len()).expect("memory");
    let mut found = values.to_vec();
    let mut check = |rank: &mut Rank, memory: &_, what: &str| {
        rank.download(memory, &mut found).expect("download");
        assert_eq!(bits(&found), bits(values), "{what} of {element}");
    };
    rank.upload(&mut memory, values).expect("upload");
    for op in ReduceOp::ALL {
        rank.all_reduce_device(op, &mut [memory.buffer()])
            .expect("all_reduce");
        check(rank, &memory, "all_reduce");
        rank.reduce_device(op, 0, &mut [memory.buffer()])
            .expect("reduce");
        check(rank, &memory, "reduce");
        let own = rank
            .reduce_scatter_device(op, memory.buffer())
            .expect("reduce_scatter");
        assert_eq!(own, 0..values.len());
        check(rank, &memory, "reduce_scatter");
    }
    rank.broadcast_device(0, &mut [memory.buffer()])
        .expect("broadcast");
    check(rank, &memory, "broadcast");
    let mut all = rank.allocate(element, values.len()).expect("memory");
    let counts = rank
        .all_gather_device(memory.buffer(), all.buffer())
        .expect("all_gather");
    assert_eq!(counts, [values.len()]);
    check(rank, &all, "all_gather");
    // Host buffers, through the device and back.
    let mut host = values.to_vec();
    rank.all_reduce(ReduceOp::Sum, &mut [T::buffer(&mut host)])
        .expect("all_reduce");
    assert_eq!(bits(&host), bits(values), "{element} of the host");
    assert_eq!(
        bits(rank.all_gather(values).expect("all_gather").rank(0)),
        bits(values)
    );
}

#[test]
fn every_operation_is_exact_for_every_type_of_the_host() {
    let _one = ONE.lock();
    let Some(mut rank) = rank() else { return };
    println!("NCCL {}", rank.version());
    let count = 100_003;
    let whole = |i: usize| i as i64 % 251 - 125;
    let float = |i: usize| (i as f64 * 0.37).sin() * 1e3;
    let all = || 0..count;
    leaves_values(
        &mut rank,
        &all().map(|i| float(i) as f32).collect::<Vec<_>>(),
    );
    leaves_values(&mut rank, &all().map(float).collect::<Vec<_>>());
    leaves_values(
        &mut rank,
        &all().map(|i| f16::from_f64(float(i))).collect::<Vec<_>>(),
    );
    leaves_values(
        &mut rank,
        &all().map(|i| bf16::from_f64(float(i))).collect::<Vec<_>>(),
    );
    leaves_values(
        &mut rank,
        &all().map(|i| whole(i) as i32).collect::<Vec<_>>(),
    );
    leaves_values(
        &mut rank,
        &all().map(|i| whole(i) << 40).collect::<Vec<_>>(),
    );
    leaves_values(
        &mut rank,
        &all().map(|i| (i % 256) as u8).collect::<Vec<_>>(),
    );
    rank.barrier().expect("barrier");
}

#[test]
fn the_types_that_only_nccl_has_are_exact() {
    let _one = ONE.lock();
    let Some(mut rank) = rank() else { return };
    // Bits that are numbers in every one of these types, small ones.
    let bytes: Vec<u8> = (0..64 * 1024).map(|i| (i % 0x38) as u8).collect();
    let mut memory = rank.allocate(ElementType::U8, bytes.len()).expect("memory");
    for element in ElementType::ALL {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            rank.upload(&mut memory, &bytes).expect("upload");
            let count = bytes.len() / element.size_bytes();
            // SAFETY: that many bytes of memory that lives longer; every type is aligned there.
            let buffer = unsafe { DeviceBuffer::from_raw(memory.address(), element, count) };
            if let Err(error) = rank.all_reduce_device(op, &mut [buffer]) {
                assert!(!error.is_fatal(), "{element}: {error}");
                println!("SKIPPED: {element}: {error}");
                break;
            }
            let mut found = vec![0_u8; bytes.len()];
            rank.download(&memory, &mut found).expect("download");
            assert_eq!(found, bytes, "{op} of {element}");
        }
    }
}

/// Free memory of GPU 0 in bytes, as the driver says.
fn free_bytes() -> usize {
    type Retain = unsafe extern "C" fn(*mut usize, i32) -> i32;
    type Push = unsafe extern "C" fn(usize) -> i32;
    type Pop = unsafe extern "C" fn(*mut usize) -> i32;
    type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> i32;
    type Release = unsafe extern "C" fn(i32) -> i32;
    let path = std::env::var("DISTRIBUTE_CUDA_LIBRARY");
    let path = path.unwrap_or_else(|_| "libcuda.so.1".to_string());
    let (mut context, mut free, mut total) = (0, 0, 0);
    // SAFETY: the driver's functions have these types and are initialised by the rank that exists;
    // the variables outlive the calls.
    unsafe {
        let library = Library::new(path).expect("the driver");
        let retain = library
            .get::<Retain>(b"cuDevicePrimaryCtxRetain")
            .expect("there");
        assert_eq!(retain(&raw mut context, 0), 0);
        assert_eq!(
            library.get::<Push>(b"cuCtxPushCurrent_v2").expect("there")(context),
            0
        );
        let info = library.get::<Info>(b"cuMemGetInfo_v2").expect("there");
        assert_eq!(info(&raw mut free, &raw mut total), 0);
        assert_eq!(
            library.get::<Pop>(b"cuCtxPopCurrent_v2").expect("there")(&raw mut context),
            0
        );
        let release = library
            .get::<Release>(b"cuDevicePrimaryCtxRelease_v2")
            .expect("there");
        assert_eq!(release(0), 0);
    }
    free
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("Linux").count()
}

#[test]
fn a_hundred_aborted_communicators_leave_nothing() {
    let _one = ONE.lock();
    // Keeps the device's context, so that the driver's own memory stays the same.
    let Some(keeper) = rank() else { return };
    let mut before = None;
    for round in 0..100 {
        let mut rank = rank().expect("a group");
        let mut memory = rank.allocate(ElementType::F32, 1 << 20).expect("memory");
        let operation = rank.all_reduce_device(ReduceOp::Sum, &mut [memory.buffer()]);
        operation.expect("all_reduce");
        rank.abort("a test");
        let after = rank.all_reduce_device(ReduceOp::Sum, &mut [memory.buffer()]);
        assert!(after.is_err(), "round {round}");
        assert!(!rank.is_stuck(), "round {round}");
        drop(memory);
        drop(rank);
        if round == 9 {
            let now = (
                free_bytes(),
                entries("/proc/self/task"),
                entries("/proc/self/fd"),
            );
            before = Some(now);
        }
    }
    let (free, threads, files) = before.expect("ten rounds");
    let leaked = free.saturating_sub(free_bytes());
    println!("after 90 rounds {leaked} bytes of the GPU are gone");
    assert!(leaked < 32 << 20, "{leaked} bytes of the GPU are gone");
    assert!(entries("/proc/self/task") <= threads + 1, "threads");
    assert!(entries("/proc/self/fd") <= files + 2, "descriptors");
    drop(keeper);
}
