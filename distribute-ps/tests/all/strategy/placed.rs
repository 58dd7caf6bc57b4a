//! Variables of core on servers.

use std::sync::Arc;

use distribute_core::{
    Error, PerReplica, ReduceOp, Strategy, StrategyExt, TensorData, VariableKind, VariableOptions,
};
use distribute_ps::partitioners::FixedShardsPartitioner;
use distribute_ps::{ParameterServerStrategy, PsError, RunId, RunOptions, UpdateSource};

use super::common::{Servers, coordinator_and_worker_of};
use crate::within_limit;

fn scalar(value: f32) -> TensorData {
    TensorData::new(vec![value], [0_usize; 0])
}

#[test]
fn variables_take_their_turns_on_the_servers() {
    within_limit(|| {
        let servers = Servers::start(3);
        let strategy = servers.strategy(None);
        for size in [1_usize, 1000, 2, 7] {
            let values = TensorData::new(vec![1.0_f32; size], [size]);
            strategy
                .variable(values, VariableOptions::default())
                .unwrap();
        }
        let all = strategy.variables().variables().unwrap();
        let found: Vec<_> = all
            .iter()
            .map(|one| one.placement().shards[0].server)
            .collect();
        assert_eq!(found, [0, 1, 2, 0]);
    });
}

#[test]
fn variables_change_in_and_outside_of_steps() {
    within_limit(|| {
        let servers = Servers::start(2);
        let strategy = servers.strategy(None);
        let variable = strategy
            .variable(scalar(2.0), VariableOptions::default())
            .unwrap();
        assert_eq!(variable.kind(), VariableKind::Plain);
        strategy
            .run((), |ctx, ()| variable.assign_add(ctx, 3.0_f32))
            .unwrap();
        variable.assign_sub(&strategy, 1.5_f32).unwrap();
        assert_eq!(variable.read(&strategy).unwrap(), scalar(3.5));
        assert_eq!(variable.local_values().unwrap(), [scalar(3.5)]);
        variable.assign(&strategy, -1.0_f32).unwrap();
        let read = strategy.run((), |ctx, ()| variable.read(ctx)).unwrap();
        assert_eq!(read.values(), [scalar(-1.0)]);
        assert!(variable.assign(&strategy, 1_i64).is_err());
        assert_eq!(variable.read(&strategy).unwrap(), scalar(-1.0));
    });
}

/// TensorFlow: `InvalidArgumentError`, as for every other strategy.
#[test]
fn a_value_of_another_shape_is_refused_with_the_error_of_a_shape() {
    within_limit(|| {
        let servers = Servers::start(3);
        for shards in [1, 3] {
            let partitioner = FixedShardsPartitioner { num_shards: shards };
            let strategy = servers.strategy(Some(Arc::new(partitioner)));
            let values = |shape: [usize; 2]| {
                let count = shape.iter().product();
                TensorData::new(vec![1.0_f32; count], shape)
            };
            let variable = strategy.variable(values([6, 2]), VariableOptions::default());
            let variable = variable.unwrap();
            for shape in [[7, 2], [5, 2], [6, 1], [2, 6]] {
                for error in [
                    variable.assign(&strategy, values(shape)).unwrap_err(),
                    variable.assign_add(&strategy, values(shape)).unwrap_err(),
                    variable.assign_sub(&strategy, values(shape)).unwrap_err(),
                ] {
                    let is_shape = matches!(error.root_cause(), Error::Shape { .. });
                    assert!(is_shape, "{shards} shards, {shape:?}: {error:?}");
                }
            }
        }
    });
}

#[test]
fn a_closure_that_runs_again_changes_nothing_again() {
    within_limit(|| {
        let servers = Servers::start(2);
        let run = RunId::random().unwrap();
        let [strategy, worker] = coordinator_and_worker_of(&servers, run, RunOptions::default());
        let zero = |strategy: &ParameterServerStrategy| {
            let options = VariableOptions::default();
            strategy.named("sum").variable(0.0_f32, options).unwrap()
        };
        let (made, found) = (zero(&strategy), zero(&worker));
        let source = |closure, is_cancelled: bool| {
            UpdateSource::new(run, closure, Arc::default(), Arc::new(is_cancelled.into()))
        };
        for closure in [1, 2, 1, 2] {
            let _closure = worker.within_closure(source(closure, false));
            let added = worker.run((), |ctx, ()| {
                found.assign_add(ctx, 1.0_f32)?;
                found.assign_add(ctx, 4.0_f32)
            });
            added.unwrap();
        }
        assert_eq!(made.read(&strategy).unwrap(), 10.0);
        found.assign_add(&worker, 1.0_f32).unwrap();
        found.assign_add(&worker, 1.0_f32).unwrap();
        assert_eq!(made.read(&strategy).unwrap(), 12.0);
        let _closure = worker.within_closure(source(3, true));
        let error = found.assign_add(&worker, 1.0_f32).unwrap_err();
        assert_eq!(
            error.to_string(),
            Error::from(PsError::Cancelled).to_string()
        );
    });
}

#[test]
fn reductions_are_those_of_one_replica() {
    within_limit(|| {
        let servers = Servers::start(1);
        let strategy = servers.strategy(None);
        assert_eq!(strategy.name(), "parameter-server");
        assert_eq!(strategy.num_replicas_in_sync(), 1);
        let sum = strategy
            .reduce(ReduceOp::Sum, PerReplica::new(vec![2.0_f32]))
            .unwrap();
        assert_eq!(sum, 2.0);
        let values = PerReplica::new(vec![TensorData::from([2.0_f32])]);
        let gathered = strategy.gather(values, 0).unwrap();
        assert_eq!(gathered, TensorData::from([2.0_f32]));
    });
}
