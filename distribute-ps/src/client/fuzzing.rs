//! What fuzz targets do with a client's knowledge of the servers, without a network.

use crate::client::catalog::Catalog;
use crate::value;
use crate::wire::ShardSpec;

/// Any bytes as what two servers say that they hold: an error, or variables whose shards can be
/// read.
pub(crate) fn catalog(bytes: &[u8]) {
    let Ok(shards) = value::decode::<Vec<ShardSpec>>(bytes) else {
        return;
    };
    let (some, others) = shards.into_iter().partition(|shard| shard.id % 2 == 0);
    let catalog = Catalog::default();
    for variable in catalog.fill(vec![some, others]).unwrap_or_default() {
        for shard in &variable.placement().shards {
            let end = (shard.offset + shard.rows) * variable.row_bytes();
            assert!(variable.shard_bytes(shard) <= end);
        }
    }
}
