//! Whether all replicas still have the same state: compared before it is saved, and when training
//! ends.
//!
//! Every replica applies the same sums to its own copy, so the copies have the same bits, for ever.
//! A byte that changes on its way or in memory makes them part, without a word: each goes on with
//! its own weights. So all replicas compare a checksum of all parameters and slots; only if one
//! differs, the checksums of each tensor say where.

use std::collections::BTreeMap;

use burn::module::Module;
use distribute_core::checkpoint::Section;
use distribute_core::{Mirrored, Result, StateOwner, Strategy, TrainState};
use gethostname::gethostname;

use super::FitError;
use super::worker_sync::{all_of, known_to_all};

/// The checksums of the tensors of one replica, by name.
pub(super) type Checksums = BTreeMap<String, u32>;

/// Refuses, on all workers, a training state that is not the same on all replicas: parameters and
/// slots, but for the running statistics that each replica has as its own. [`Fit`](crate::Fit) does
/// it before every save and at the end, and with [`check_replicas`](crate::Fit::check_replicas)
/// every N updates; a loop of one's own can do it between two updates, best before it saves,
/// since what has parted never meets again.
///
/// All workers call it after the same update; it blocks until they have, and waits for the devices.
/// They exchange one checksum per replica, and a checksum per tensor only if these differ. With
/// one replica, and with parameter servers, there is nothing to compare.
///
/// ```
/// use burn::nn::LinearConfig;
/// use distribute_core::{MirroredStrategy, Sgd, StrategyExt, TrainState};
/// use distribute_fit::check_same_state;
///
/// let strategy = MirroredStrategy::builder().replicas(2).build()?;
/// let state = strategy.scope(|device| {
///     TrainState::new(LinearConfig::new(1, 1).init(device), Sgd::new(0.5))
/// })?;
/// check_same_state(&strategy, &state)?;
/// # Ok::<(), distribute_core::Error>(())
/// ```
///
/// # Errors
/// [`FitError::Diverged`], which names the hosts, the ranks, the replicas and the first tensor that
/// differs; a device that cannot be read; a worker that was lost or does not come before the
/// deadline.
pub fn check_same_state<M: Module + 'static>(
    strategy: &(impl Strategy + ?Sized),
    state: &Mirrored<TrainState<M>>,
) -> Result<()> {
    let strategy = strategy.handle();
    if is_alone(&*strategy, state.host_metadata().is_remote()) {
        return Ok(());
    }
    let own = of_state(state, strategy.tracer().is_some())?;
    compare(&*strategy, state.host_metadata().step(), own)
}

/// Whether there is no other copy of a state.
pub(super) fn is_alone(strategy: &dyn Strategy, is_remote: bool) -> bool {
    strategy.num_replicas_in_sync() == 1 || is_remote
}

/// The checksums of what all replicas have alike, of each local one, one leaf after the other; of
/// one replica where the newest copy
/// is on the devices of compiled steps.
pub(super) fn of_state<M: Module + 'static>(
    state: &Mirrored<TrainState<M>>,
    is_compiled: bool,
) -> Result<Vec<Checksums>> {
    if is_compiled {
        Ok(vec![checksums(state.primary()?)?])
    } else {
        state.values()?.iter().map(checksums).collect()
    }
}

/// The checksums of a training state, but for what its replica has as its own.
fn checksums<M: Module + 'static>(state: &TrainState<M>) -> Result<Checksums> {
    let mut all = Checksums::new();
    state.read_leaves(&mut |leaf| {
        if let (StateOwner::Replicated, Some(name)) = (&leaf.owner, leaf.name()) {
            all.insert(name, crc32c::crc32c(leaf.read()?.as_bytes()));
        }
        Ok(())
    })?;
    Ok(all)
}

/// One checksum of each replica.
pub(super) fn sums(own: &[Checksums]) -> Vec<u32> {
    own.iter().map(of_all).collect()
}

/// One checksum of all of them.
fn of_all(checksums: &Checksums) -> u32 {
    checksums.iter().fold(0, |all, (name, checksum)| {
        let all = crc32c::crc32c_append(all, name.as_bytes());
        crc32c::crc32c_append(all, &checksum.to_le_bytes())
    })
}

/// Refuses, on all workers, when the replicas do not have the same state; `own` is what the local
/// ones have after this update. All workers call it together; a small exchange.
///
/// # Errors
/// [`FitError::Diverged`]; a worker that was lost or does not come before the deadline.
pub(super) fn compare(strategy: &dyn Strategy, step: u64, own: Vec<Checksums>) -> Result<()> {
    let call = "whether all replicas have the same state";
    let all = all_of(strategy, call, sums(&own))?;
    compare_sums(strategy, step, &all, own)
}

/// [`compare`], when the workers have told each other their [`sums`].
///
/// # Errors
/// As `compare`.
pub(super) fn compare_sums(
    strategy: &dyn Strategy,
    step: u64,
    all: &[Vec<u32>],
    own: Vec<Checksums>,
) -> Result<()> {
    let mut replicas = all.iter().flatten();
    let first = replicas.next();
    if replicas.all(|other| Some(other) == first) {
        return Ok(());
    }
    let own = (gethostname().display().to_string(), own);
    let details = all_of(strategy, "where the replicas differ", own)?;
    Err(known_to_all(strategy, diverged(step, all, &details)))
}

/// The name of a worker's host, and the checksums of its replicas.
type OfWorker = (String, Vec<Checksums>);

/// What differs, from the checksums of the replicas of each worker.
fn diverged(step: u64, all: &[Vec<u32>], details: &[OfWorker]) -> FitError {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for sum in all.iter().flatten() {
        *counts.entry(*sum).or_default() += 1;
    }
    let replicas: usize = counts.values().sum();
    let most = counts.iter().find(|(_, count)| **count * 2 > replicas);
    let most = most.map(|(sum, _)| *sum);
    let differs = |sum: &u32| most != Some(*sum);
    let workers = all.iter().enumerate();
    let ranks = workers.filter(|(_, sums)| sums.iter().any(differs));
    let ranks: Vec<usize> = ranks.map(|(rank, _)| rank).collect();
    let hosts = ranks.iter().filter_map(|rank| details.get(*rank));
    let ids = all.iter().flatten().enumerate();
    let ids = ids.filter(|(_, sum)| differs(sum)).map(|(id, _)| id);
    FitError::Diverged {
        step,
        hosts: hosts.map(|(host, _)| host.clone()).collect(),
        ranks,
        replicas: ids.collect(),
        has_majority: most.is_some(),
        parameter: first_difference(details).unwrap_or_default(),
    }
}

/// The first tensor that is not the same everywhere; parameters come before slots.
fn first_difference(details: &[OfWorker]) -> Option<String> {
    let mut replicas = details.iter().flat_map(|(_, replicas)| replicas);
    let first = replicas.next()?;
    let mut names: Vec<&String> = Vec::new();
    for other in replicas {
        let differ = |name: &&String| first.get(*name) != other.get(*name);
        names.extend(first.keys().chain(other.keys()).filter(differ));
    }
    let rank = |name: &&String| (!Section::Model.has(name), (*name).clone());
    names.into_iter().min_by_key(rank).cloned()
}

#[cfg(test)]
mod tests {
    use burn::nn::BatchNormConfig;
    use burn::tensor::TensorData;
    use distribute_core::{Device, Sgd};

    use super::*;

    fn checksums_of(named: &[(&str, u32)]) -> Checksums {
        let named = named.iter();
        named
            .map(|(name, sum)| ((*name).to_string(), *sum))
            .collect()
    }

    fn report(workers: Vec<Vec<Checksums>>) -> String {
        let sums = |replicas: &Vec<Checksums>| replicas.iter().map(of_all).collect();
        let all: Vec<Vec<u32>> = workers.iter().map(sums).collect();
        let named = workers.into_iter().enumerate();
        let named: Vec<_> = named.map(|(rank, it)| (format!("h{rank}"), it)).collect();
        diverged(7, &all, &named).to_string()
    }

    #[test]
    fn who_differs_from_most_is_named_and_the_first_parameter() {
        let good = checksums_of(&[("model/a", 1), ("model/b", 2), ("optimizer/m/a", 3)]);
        let bad = checksums_of(&[("model/a", 1), ("model/b", 9), ("optimizer/m/a", 4)]);
        let text = report(vec![
            vec![good.clone(), good.clone()],
            vec![bad.clone(), good],
        ]);
        assert!(
            text.contains("replica 2 (rank 1) differs from the others, on host h1;"),
            "{text}"
        );
        assert!(
            text.contains("step 7") && text.contains("`model/b`"),
            "{text}"
        );
        let slot = checksums_of(&[("model/a", 1), ("model/b", 9), ("optimizer/m/a", 5)]);
        let text = report(vec![vec![bad], vec![slot]]);
        assert!(text.contains("ranks 0, 1"), "{text}");
        assert!(text.contains("on hosts h0, h1, and no state"), "{text}");
        assert!(text.contains("`optimizer/m/a`"), "{text}");
    }

    #[test]
    fn one_flipped_bit_changes_the_checksum_of_all() {
        let config = BatchNormConfig::new(1000);
        let mut state = TrainState::new(config.init(&Device::flex()), Sgd::new(0.1));
        let mut tensors = state.to_tensors().unwrap();
        let mut sum_with = |name: &str, change: fn(f32) -> f32| {
            let mut values = tensors[name].try_to_vec::<f32>().unwrap();
            values[700] = change(values[700]);
            tensors.insert(name.to_string(), TensorData::new(values, [1000]));
            state.load_tensors(&tensors, 0).unwrap();
            of_all(&checksums(&state).unwrap())
        };
        let before = sum_with("model/gamma", |value| value);
        let flipped = |value: f32| f32::from_bits(value.to_bits() ^ 1);
        let after = sum_with("model/gamma", flipped);
        assert_ne!(after, before);
        // What each replica has as its own is not compared.
        assert_eq!(sum_with("model/running_mean", flipped), after);
    }
}
