//! What fuzz targets do with a server's shards, without a network.

use crate::rpc::rope::Rope;
use crate::server::ServerOptions;
use crate::server::shard::{Payload, Shard, ShardGradient, UpdateTerms};
use crate::server::shard_table::ShardTable;
use crate::value;
use crate::wire::{Assignment, ShardSpec};

/// The largest shard.
const SHARD_BYTES_MAX: u64 = 4096;

/// Any bytes as shards that a client wants to create: refused, or shards that can be used.
pub(crate) fn shards(bytes: &[u8]) {
    let Ok(shards) = value::decode::<Vec<ShardSpec>>(bytes) else {
        return;
    };
    let options = ServerOptions {
        max_shard_bytes: SHARD_BYTES_MAX,
        ..ServerOptions::default()
    };
    let table = ShardTable::default();
    if let Ok(ids) = table.create(shards, &options) {
        assert_eq!(ids.len(), table.shards().len());
        for shard in table.shards() {
            assert!(shard.bytes as u64 <= SHARD_BYTES_MAX);
            used(&shard);
        }
    }
}

fn zeros(count: usize) -> Payload {
    Payload {
        rope: Rope::from(vec![0; count]),
        is_narrow: false,
    }
}

/// A value, a dense gradient, and one of the last row, twice.
fn used(shard: &Shard) {
    let terms = UpdateTerms {
        id: None,
        low_water: 0,
        base: None,
        synchronous: None,
        learning_rate: None,
    };
    let assigned = shard.assign(Assignment::Assign, &zeros(shard.bytes), &terms);
    assert!(assigned.is_ok());
    let rows = shard
        .spec
        .rows
        .checked_sub(1)
        .map(|last| vec![last as u64; 2]);
    // A row of a shard that has none may be larger than any memory.
    let of_rows = rows.clone().map(|rows| (Some(rows), 2 * shard.row_bytes));
    for (rows, bytes) in [(None, shard.bytes)].into_iter().chain(of_rows) {
        let gradient = ShardGradient {
            rows,
            values: zeros(bytes),
        };
        let pushed = shard.plan(gradient, &terms);
        assert_eq!(pushed.is_ok(), shard.optimizer.is_some());
        assert!(
            pushed.is_ok_and(|plan| shard.commit(plan, &terms).is_ok())
                == shard.optimizer.is_some()
        );
    }
    let read = rows.and_then(|rows| shard.read_rows(&rows).ok());
    assert!(read.is_none_or(|(bytes, _)| bytes.len() == 2 * shard.row_bytes));
}
