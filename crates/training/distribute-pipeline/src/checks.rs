//! Arguments that sources and streams check alike.

use crate::{PipelineError, Result};

/// A batch holds something.
pub(crate) fn check_size(stage: &'static str, size: u64) -> Result<()> {
    match size {
        0 => Err(PipelineError::argument(
            stage,
            "the batch size is 0; pass at least 1 element",
        )),
        _ => Ok(()),
    }
}

/// A shard must be one of its number.
pub(crate) fn check_shard(shards: u64, index: u64) -> Result<()> {
    let what = match shards {
        0 => "the number of shards is 0; pass at least 1".to_string(),
        _ if index >= shards => {
            let last = shards - 1;
            format!("the index must be between 0 and {last}, and is {index}")
        }
        _ => return Ok(()),
    };
    Err(PipelineError::argument("shard", what))
}
