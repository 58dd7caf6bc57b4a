//! `parameter_server.json`: a coordinator, workers and parameter servers.
//!
//! Servers and workers are threads of this process that listen on loopback ports; all that is
//! between them is what is between processes. A case is checked in a cluster of its own. Where the
//! file's cases of one scenario follow each other (the round robin over servers goes on), what came
//! before is done again first.

mod closures;
mod cluster;
mod failures;
mod placement;
mod values;

use crate::case::Case;
use crate::env::Env;
use crate::outcome::{Checked, Failure, Outcome, Rule};

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
        "schedule_join_fetch" | "many_schedules_all_applied" => closures::applied(case, env),
        "fetch_structure" => closures::structure(case),
        "schedule_kwargs" => closures::named_arguments(case, env),
        "schedule_remote_value_argument" | "schedule_args_not_tuple" => closures::refused(case),
        "done_when_idle" | "join_when_idle" => closures::idle(case),
        "run_inside_scheduled_function" | "reduce_inside_scheduled_function" => {
            closures::within(case, env)
        }
        "per_worker_dataset_next" => closures::next(case),
        "per_worker_dataset_exhausted" => closures::exhausted(case),
        // A step is scheduled by the name under which it was registered, and a dataset of the
        // workers has no iterator on the coordinator: neither compiles.
        "schedule_plain_python_function"
        | "schedule_not_callable"
        | "distribute_dataset_on_coordinator" => Ok(Outcome::NotApplicable(Rule::CompileError)),
        // Nothing is traced, and classes have other names.
        "error_while_tracing_at_schedule" | "per_worker_dataset_class" => {
            Ok(Outcome::NotApplicable(Rule::Internals))
        }
        "error_surfaces_at_join" | "error_surfaces_at_next_schedule" | "error_surfaces_at_done" => {
            failures::surfaces(case)
        }
        "join_after_error_was_raised" | "schedule_after_error_was_raised" => {
            failures::afterwards(case)
        }
        "fetch_of_failed_closure" => failures::fetch(case),
        "other_closures_are_cancelled" | "cancelled_closure_error" => failures::cancelled(case),
        "before" => failures::before(case, env),
        "one_worker_killed_remaining_worker_runs_all" => failures::lost_worker(case),
        "ps_killed_join" | "ps_killed_variable_read" => failures::lost_server(case),
        op => match op.strip_prefix("assign_add_in_replica_") {
            Some(aggregation) => values::assign_add(case, env, aggregation),
            None => Err(Failure::schema(format!("unknown operation `{op}`"))),
        },
    }
}
