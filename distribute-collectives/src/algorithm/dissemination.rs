//! Dissemination barrier: every rank hears of all others, without a root.
//!
//! In round `k` a rank sends to the rank `2^k` after it and receives from the rank `2^k` before it.
//! After `log2 P` rounds every rank has heard, through others, of all ranks. What travels is up to
//! the caller.

use std::iter;

/// For each round: the rank to send to, and the rank to receive from then.
pub(crate) fn rounds(rank: usize, world_size: usize) -> impl Iterator<Item = (usize, usize)> {
    let distances = iter::successors(Some(1), |distance| Some(2 * distance));
    let distances = distances.take_while(move |distance| *distance < world_size);
    let around = move |ahead: usize| (rank + ahead) % world_size;
    distances.map(move |distance| (around(distance), around(world_size - distance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_hears_of_all_ranks_in_few_rounds() {
        for world_size in 1..18 {
            let plans: Vec<Vec<_>> = (0..world_size)
                .map(|rank| rounds(rank, world_size).collect())
                .collect();
            let mut heard: Vec<Vec<bool>> = (0..world_size)
                .map(|rank| (0..world_size).map(|other| other == rank).collect())
                .collect();
            for round in 0..world_size.next_power_of_two().ilog2() as usize {
                let before = heard.clone();
                for rank in 0..world_size {
                    let (to, from) = plans[rank][round];
                    assert_eq!(plans[to][round].1, rank, "{to} receives from {rank}");
                    for (known, other) in heard[rank].iter_mut().zip(&before[from]) {
                        *known |= other;
                    }
                }
            }
            assert!(heard.iter().flatten().all(|known| *known), "{world_size}");
        }
    }
}
