//! `parameter_server.json`: a coordinator, workers and parameter servers.
//!
//! Servers and workers are threads of this process that listen on loopback ports; all that is
//! between them is what is between processes. A case is checked in a cluster of its own. Where the
//! file's cases of one scenario follow each other (the round robin over servers goes on), what came
//! before is done again first.

mod cluster;
mod placement;
mod values;

use crate::case::Case;
use crate::outcome::{Checked, Failure};
use crate::suite::Env;

pub(super) fn check(case: &Case, env: &Env<'_>) -> Checked {
    match case.op() {
        "properties" => values::properties(case),
        "round_robin_placement" | "round_robin_ignores_size" | "variable_class" => {
            placement::in_turn(case, env)
        }
        op if op.starts_with("shards_") => placement::shards(case, env),
        "sharded_operations" => placement::operations(case, env),
        "sharded_assign_wrong_shape" => placement::wrong_shape(case),
        "run_on_coordinator" | "local_run_result" => values::run(case, env),
        "reduce_on_coordinator" => values::reduce(case, env),
        "gather_on_coordinator" => values::gather(case, env),
        op => match op.strip_prefix("assign_add_in_replica_") {
            Some(aggregation) => values::assign_add(case, env, aggregation),
            None => Err(Failure::schema(format!("unknown operation `{op}`"))),
        },
    }
}
