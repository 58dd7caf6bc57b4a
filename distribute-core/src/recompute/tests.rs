//! Who checks whom, and what is said of it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::plan::{plan, worker_of};
use super::*;

/// The first replicas of workers with these numbers of replicas.
fn firsts(counts: &[usize]) -> Vec<usize> {
    let mut firsts = vec![0];
    for count in counts {
        firsts.push(firsts[firsts.len() - 1] + count);
    }
    firsts
}

proptest! {
    #[test]
    fn each_replica_is_checked_in_turn_by_others_on_other_workers(
        counts in prop::collection::vec(1_usize..5, 1..6),
        round in 0_u64..1000,
    ) {
        let firsts = firsts(&counts);
        let (replicas, workers) = (firsts[counts.len()], counts.len());
        prop_assume!(replicas > 1);
        let mut checked = BTreeSet::new();
        for index in 0..replicas as u64 {
            let (replica, by) = plan(&firsts, round * replicas as u64 + index).unwrap();
            checked.insert(replica);
            let own = worker_of(&firsts, replica);
            prop_assert!(firsts[own] <= replica && replica < firsts[own + 1]);
            let all: BTreeSet<usize> = by.iter().copied().chain([replica]).collect();
            prop_assert_eq!(all.len(), by.len() + 1, "no replica twice");
            prop_assert!(all.iter().all(|id| *id < replicas));
            prop_assert_eq!(by.len(), 2.min(replicas - 1));
            let places: BTreeSet<usize> = all.iter().map(|id| worker_of(&firsts, *id)).collect();
            prop_assert_eq!(places.len(), workers.min(3), "as many hosts as there can be");
            prop_assert!(workers == 1 || worker_of(&firsts, by[0]) != own);
        }
        prop_assert_eq!(checked.len(), replicas);
    }

    #[test]
    fn each_worker_checks_each_other_one(workers in 2_usize..6, count in 1_usize..4) {
        let firsts = firsts(&vec![count; workers]);
        let checks = (workers * count * (workers - 1)) as u64;
        let pairs: BTreeSet<(usize, usize)> = (0..checks).map(|index| {
            let (replica, by) = plan(&firsts, index).unwrap();
            (worker_of(&firsts, replica), worker_of(&firsts, by[0]))
        }).collect();
        prop_assert_eq!(pairs.len(), workers * (workers - 1));
    }
}

#[test]
fn one_replica_is_checked_by_none() {
    assert_eq!(plan(&[0, 1], 3), None);
}

fn said(results: &[&[i64]]) -> String {
    let check = Recomputation {
        step: 12,
        replica: 3,
        by: vec![4, 0],
        firsts: vec![0, 2, 4, 6],
    };
    let hosts = ["a", "a", "b", "b", "c", "c"].map(|name| vec![i64::from(name.as_bytes()[0])]);
    let results: Vec<Vec<i64>> = results.iter().map(|list| list.to_vec()).collect();
    let names = ["hidden.weight", "hidden.bias"].map(String::from);
    let mut check = check;
    check.by.truncate(results.len() - 1);
    check.finding(&results, &hosts, &names).to_string()
}

#[test]
fn who_differs_from_two_others_is_named_with_its_host() {
    let found = said(&[&[1, 9], &[1, 2], &[1, 2]]);
    insta::assert_snapshot!(found);
    let found = said(&[&[1, 2], &[7, 2], &[1, 2]]);
    assert!(
        found.contains("not the same: replica 4 (rank 2, host c) differs"),
        "{found}"
    );
    assert!(found.contains("is in `hidden.weight`"), "{found}");
    for results in [&[&[1, 2][..], &[1, 3]][..], &[&[1, 2], &[1, 3], &[1, 4]]] {
        let found = said(results);
        let both = "replica 3 (rank 1, host b) and replica 4 (rank 2, host c)";
        assert!(found.contains(both), "{found}");
        assert!(found.contains("which one is wrong is not known"), "{found}");
    }
}
