//! Parts of a server without a network.

use burn::tensor::DType;

use crate::rpc::rope::Rope;
use crate::server::shard::{Payload, Shard, UpdateTerms};
use crate::update::OUTSIDE;
use crate::wire::{Assignment, Combine, ShardSpec};

fn counter() -> Shard {
    let spec = ShardSpec::whole("counter", DType::I64, &[]);
    Shard::new(spec, (8, 8), None)
}

fn one() -> Payload {
    Payload {
        rope: Rope::from(1_i64.to_le_bytes().to_vec()),
        is_narrow: false,
    }
}

fn terms(id: Option<(u64, u32)>, low_water: u64) -> UpdateTerms {
    UpdateTerms {
        id,
        low_water,
        base: None,
        synchronous: None,
        learning_rate: None,
    }
}

#[test]
fn the_table_of_update_ids_holds_those_of_unfinished_closures_only() {
    let shard = counter();
    let start = terms(None, 0);
    shard.assign(Assignment::Assign, &one(), &start).unwrap();
    let add = Assignment::Combine(Combine::Add);
    let mut most = 0;
    for closure in 0..10_000 {
        let low_water = closure / 100 * 100;
        if closure == low_water {
            shard.forget_below(low_water);
        }
        for sequence in 0..2 {
            shard
                .assign(add, &one(), &terms(Some((closure, sequence)), low_water))
                .unwrap();
        }
        most = most.max(shard.state().remembered());
    }
    assert_eq!(most, 200);
    let (value, counts) = shard.read().unwrap();
    assert_eq!(value.part(0), 20_001_i64.to_le_bytes());
    assert_eq!(counts.version, 20_001);
}

/// Nobody says when updates outside of closures are finished.
#[test]
fn the_table_of_update_ids_holds_the_last_ones_outside_of_closures() {
    let shard = counter();
    let start = terms(None, 0);
    shard.assign(Assignment::Assign, &one(), &start).unwrap();
    let add = Assignment::Combine(Combine::Add);
    let sources = [OUTSIDE | 7, OUTSIDE | 9];
    for sequence in 0..5_000 {
        for source in sources {
            let update = terms(Some((source, sequence)), 0);
            shard.assign(add, &one(), &update).unwrap();
            // Over a connection that broke it comes a second time.
            shard.assign(add, &one(), &update).unwrap();
        }
    }
    let of_closure = terms(Some((1, 0)), 0);
    shard.assign(add, &one(), &of_closure).unwrap();
    assert_eq!(shard.state().remembered(), 2 * 1024 + 1);
    let (value, _) = shard.read().unwrap();
    assert_eq!(value.part(0), 10_002_i64.to_le_bytes());
}
