//! The loop with several workers, which are threads here.

mod fit;
#[path = "../../../../distribute-core/tests/all/multi_worker/group.rs"]
mod group;
mod interrupted;
#[expect(
    dead_code,
    reason = "shared with the tests of fit, which use all of it"
)]
#[path = "../fit/common.rs"]
mod points;
