use std::fs;
use std::path::Path;

use burn::tensor::TensorData;
use distribute_core::DefaultStrategy;
use distribute_core::checkpoint::Metadata;
use proptest::prelude::*;

use super::*;
use crate::exact::Exact;
use crate::objective::Sums;
use crate::snapshot::RunMetadata;

/// A state after `step` steps, with the statistics of these replicas.
fn state(step: u64, replicas: &[usize]) -> Checkpoint {
    let mut checkpoint = Checkpoint::new(Metadata::new(step));
    checkpoint.metadata.batches_into_epoch = step;
    let run = RunMetadata {
        learning_rate: 0.1,
        last_learning_rate: Some(Exact(0.1)),
        micro_batches: 1,
        waiting: 0,
        global_batch_size: Some(8),
        replicas: 1,
        all_replicas: Default::default(),
        sums: Sums::default(),
        callbacks: Default::default(),
    };
    run.store(&mut checkpoint).unwrap();
    let weights = TensorData::from([step as f32, f32::MIN_POSITIVE, -0.0]);
    let flags = TensorData::from([[true, false], [false, true]]);
    let empty = TensorData::new(Vec::<i64>::new(), [0, 3]);
    let named = [("model/w", weights), ("model/f", flags), ("model/e", empty)];
    let named = named.map(|(name, data)| (name.to_string(), data));
    checkpoint.tensors.extend(named);
    for replica in replicas {
        let own = TensorData::from([*replica as f32 + 0.5]);
        let name = format!("statistics/{replica}/norm.running_mean");
        checkpoint.tensors.insert(name, own);
    }
    checkpoint
}

fn memory(folder: &Path) -> (StateMemory, [PathBuf; 2]) {
    let paths = ["first", "second"].map(|name| folder.join(name));
    paths
        .iter()
        .for_each(|path| drop(fs::File::options().append(true).create(true).open(path)));
    (StateMemory::open(paths.clone()).unwrap(), paths)
}

fn agreed(memory: &mut StateMemory) -> Option<Checkpoint> {
    memory.agree(&DefaultStrategy::new()).unwrap()
}

#[test]
fn the_next_process_finds_the_last_state() {
    let folder = tempfile::tempdir().unwrap();
    let (mut first, _) = memory(folder.path());
    assert_eq!(agreed(&mut first), None);
    for step in 1..=5 {
        first.write(&state(step, &[0])).unwrap();
        let (mut next, _) = memory(folder.path());
        assert_eq!(agreed(&mut next), Some(state(step, &[0])));
    }
}

#[test]
fn the_state_that_was_gone_on_from_is_the_last_to_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (mut first, paths) = memory(folder.path());
    (1..=4).for_each(|step| first.write(&state(step, &[])).unwrap());
    let (mut next, _) = memory(folder.path());
    agreed(&mut next);
    // As if the others had only finished step 3.
    let older = paths.iter().position(|path| {
        let found = Slot::open(path.clone()).unwrap().read().unwrap();
        found.unwrap().1.metadata.step == 3
    });
    next.next = 1 - older.unwrap();
    next.write(&state(4, &[])).unwrap();
    next.write(&state(5, &[])).unwrap();
    let (mut last, _) = memory(folder.path());
    assert_eq!(agreed(&mut last), Some(state(5, &[])));
}

/// A process that is killed while it writes leaves the state before, at whichever byte.
#[test]
fn a_torn_write_is_recognised_at_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let (mut whole, paths) = memory(folder.path());
    for step in 1..=3 {
        whole.write(&state(step, &[0])).unwrap();
    }
    // Step 3 lies where step 1 did.
    let new = fs::read(&paths[0]).unwrap();
    let old = {
        let other = tempfile::tempdir().unwrap();
        let (mut one, paths) = memory(other.path());
        one.write(&state(1, &[0])).unwrap();
        fs::read(&paths[0]).unwrap()
    };
    for written in 0..new.len() {
        let mut torn = old.clone();
        torn.resize(new.len().max(old.len()), 0);
        torn[..28].fill(0);
        let from = 28.min(written);
        torn[from..written].copy_from_slice(&new[from..written]);
        fs::write(&paths[0], &torn).unwrap();
        let (mut next, _) = memory(folder.path());
        assert_eq!(agreed(&mut next), Some(state(2, &[0])), "{written} bytes");
    }
    for broken in 0..new.len() {
        let mut bytes = new.clone();
        bytes[broken] ^= 1;
        fs::write(&paths[0], &bytes).unwrap();
        let (mut next, _) = memory(folder.path());
        assert_eq!(agreed(&mut next), Some(state(2, &[0])), "byte {broken}");
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_that_names_it() {
    let paths = ["/nowhere/first", "/nowhere/second"].map(PathBuf::from);
    let error = StateMemory::open(paths).unwrap_err();
    let expected = "cannot open the memory /nowhere/first that outlives this process: No such file";
    assert!(error.to_string().starts_with(expected), "{error}");
}

proptest! {
    /// Bytes of another worker, whatever they are.
    #[test]
    fn no_bytes_end_the_process(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cut in 0_usize..2000,
    ) {
        decode(&bytes);
        let mut whole = Encoded::new(&state(1, &[0])).unwrap().into_bytes().unwrap();
        prop_assert_eq!(decode(&whole), Some(state(1, &[0])));
        let cut = cut.min(whole.len() - 1);
        prop_assert!(decode(&whole[..cut]).is_none());
        whole[cut] ^= 0x40;
        decode(&whole);
    }
}
