//! Parts of a server without a network.

use std::sync::Arc;

use burn::tensor::DType;
use distribute_core::Sgd;
use distribute_net::handshake::Purpose;
use distribute_net::security::Security;

use crate::rpc::rope::Rope;
use crate::rpc::{Peer, RpcOptions};
use crate::server::ServerOptions;
use crate::server::apply::{Gradients, apply_light};
use crate::server::shard::{Payload, Shard, ShardGradient, UpdateTerms};
use crate::server::store::{Run, Store};
use crate::update::{OUTSIDE, RunId, RunOptions};
use crate::variable::OptimizerSpec;
use crate::wire::{Assignment, Combine, ShardSpec};

fn counter() -> Shard {
    let spec = ShardSpec::whole("counter", DType::I64, &[]);
    Shard::new(spec, 8, 8, None)
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

/// No message says when updates outside of closures are finished.
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

/// A run with two shards of SGD, whose values are zero.
fn run_of_two() -> (Arc<Run>, Vec<Arc<Shard>>) {
    let rpc = RpcOptions::new(Purpose::ParameterServer, None, Security::default());
    let peer = Arc::new(Peer::new(([127, 0, 0, 1], 9).into(), &rpc));
    let store = Store::new(ServerOptions::default());
    let id = RunId(1);
    store.attach(id, RunOptions::default(), &peer).unwrap();
    let run = store.run(id).unwrap();
    let shard = |name| {
        let mut shard = ShardSpec::whole(name, DType::F32, &[1]);
        shard.variable.optimizer = Some(OptimizerSpec::of(&Sgd::new(1.0)));
        shard
    };
    let shards = vec![shard("a"), shard("b")];
    run.table.create(shards, &store.options).unwrap();
    let shards = run.table.shards();
    for shard in &shards {
        let zero = Payload {
            rope: Rope::from(vec![0; 4]),
            is_narrow: false,
        };
        let start = terms(None, 0);
        shard.assign(Assignment::Assign, &zero, &start).unwrap();
    }
    (run, shards)
}

/// A push that would be quick does not wait for another call that holds a shard, or all of them: it
/// is called on the one thread that drives all connections.
#[test]
fn a_quick_push_waits_for_no_other_call_and_changes_all_or_nothing() {
    let (run, shards) = run_of_two();
    let gradients = || -> Gradients {
        let gradient = |shard: &Arc<Shard>| {
            let values = Payload {
                rope: Rope::from((-1.0_f32).to_le_bytes().to_vec()),
                is_narrow: false,
            };
            (shard.clone(), Some(1), ShardGradient { rows: None, values })
        };
        shards.iter().map(gradient).collect()
    };
    let value = |shard: &Shard| {
        let (value, _) = shard.read().unwrap();
        f32::from_le_bytes(value.part(0).try_into().unwrap())
    };
    let closed = run.closed();
    assert!(apply_light(&run, (1, 0), gradients()).is_err());
    drop(closed);
    let held = shards[1].state();
    assert!(shards[1].try_read().is_none());
    let back = apply_light(&run, (1, 0), gradients());
    assert_eq!(back.unwrap_err().len(), 2);
    drop(held);
    assert_eq!((value(&shards[0]), value(&shards[1])), (0.0, 0.0));
    let applied = apply_light(&run, (1, 0), gradients()).unwrap().unwrap();
    assert_eq!(applied.len(), 2);
    assert_eq!((value(&shards[0]), value(&shards[1])), (1.0, 1.0));
}
