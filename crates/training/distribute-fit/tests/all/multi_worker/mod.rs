//! The loop with several workers, which are threads here.

mod corrupted;
mod diverged;
mod failed;
mod fit;
#[path = "../../../../../../distribute-core/tests/all/multi_worker/group.rs"]
pub(crate) mod group;
mod interrupted;
mod ranks;
mod recomputed;
mod saves;
