//! Who checks whom.

/// The worker of a replica, from the first replica of each worker and the number of replicas.
pub(super) fn worker_of(firsts: &[usize], replica: usize) -> usize {
    firsts.partition_point(|first| *first <= replica).max(1) - 1
}

/// For check `index`, from 0: the replica that is checked, and those that compute its gradients
/// again. `None` for one replica.
pub(super) fn plan(firsts: &[usize], index: u64) -> Option<(usize, Vec<usize>)> {
    let (&replicas, workers) = (firsts.last()?, firsts.len() - 1);
    if replicas < 2 {
        return None;
    }
    let remainder = |number: u64, count: usize| (number % count as u64) as usize;
    let replica = remainder(index, replicas);
    // How often each replica was checked before.
    let turn = index / replicas as u64;
    let place = worker_of(firsts, replica);
    let other = |turn: u64| {
        if workers == 1 {
            return (replica + 1 + remainder(turn, replicas - 1)) % replicas;
        }
        let worker = (place + 1 + remainder(turn, workers - 1)) % workers;
        let count = firsts[worker + 1] - firsts[worker];
        firsts[worker] + remainder(index, count)
    };
    let first = other(turn);
    let mut by = vec![first];
    let places = if workers == 1 { replicas } else { workers };
    if places > 2 {
        by.push(other(turn + 1));
    } else {
        // Two workers: a third result comes from one of them.
        let rest = (1..replicas).map(|step| (first + step) % replicas);
        by.extend(rest.into_iter().find(|id| *id != replica && *id != first));
    }
    Some((replica, by))
}
