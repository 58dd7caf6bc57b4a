//! Dissemination barrier: every rank hears of all others, without a root.
//!
//! In round `k` a rank sends to the rank `2^k` after it and receives from the rank `2^k` before it.
//! After `log2 P` rounds every rank has heard, through others, of all ranks. What travels is up to
//! the caller.

use std::iter;

/// For each round: the rank to send to, and the rank to receive from then.
pub(crate) fn rounds(rank: usize, world_size: usize) -> impl Iterator<Item = (usize, usize)> {
    let distances = iter::successors(Some(1), |distance| Some(2 * distance))
        .take_while(move |distance| *distance < world_size);
    let around = move |ahead: usize| (rank + ahead) % world_size;
    distances.map(move |distance| (around(distance), around(world_size - distance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_hears_of_all_ranks_in_few_rounds() {
        for size in 1..18_usize {
            let plans: Vec<Vec<_>> = (0..size).map(|rank| rounds(rank, size).collect()).collect();
            let own = |rank| (0..size).map(|other| other == rank).collect();
            let mut heard: Vec<Vec<bool>> = (0..size).map(own).collect();
            let count = size.next_power_of_two().ilog2() as usize;
            assert!(plans.iter().all(|plan| plan.len() == count), "{plans:?}");
            for round in 0..count {
                let before = heard.clone();
                for (rank, (plan, heard)) in plans.iter().zip(&mut heard).enumerate() {
                    let (to, from) = plan[round];
                    assert_eq!(plans[to][round].1, rank, "{to} receives from {rank}");
                    let told = heard.iter_mut().zip(&before[from]);
                    told.for_each(|(known, other)| *known |= other);
                }
            }
            assert!(heard.iter().flatten().all(|known| *known), "{size} ranks");
        }
    }
}
