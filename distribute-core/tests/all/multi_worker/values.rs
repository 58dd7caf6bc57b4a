//! Values of all workers: reduced, gathered, in variables and metrics.

use std::collections::BTreeSet;

use distribute_core::metric::Mean;
use distribute_core::{
    Device, IndexedSlices, InputContext, PerReplica, ReduceOp, Replicated, Sgd, Strategy,
    StrategyExt, SyncBatchNormConfig, TensorData, TrainState, VariableAggregation, VariableOptions,
};

use rstest::rstest;

use crate::multi_worker::group::{Between, SHARED_MEMORY, THREADS, try_workers, workers};

/// Three replicas: two of worker 0, one of worker 1.
const REPLICAS: [usize; 2] = [2, 1];

#[test]
fn replicas_are_numbered_over_all_workers() {
    let all = workers(THREADS, &REPLICAS, |strategy| {
        let ids = strategy.run((), |ctx, ()| {
            assert_eq!(ctx.num_replicas_in_sync(), 3);
            Ok((ctx.replica_id(), ctx.local_id()))
        })?;
        let workers = strategy.workers().unwrap();
        assert_eq!(strategy.is_chief(), workers.index() == 0);
        assert_eq!((workers.num_workers(), workers.num_replicas()), (2, 3));
        workers.barrier()?;
        let pipeline = strategy.input_context();
        let expected = InputContext {
            num_input_pipelines: 2,
            input_pipeline_id: workers.index(),
            num_replicas_in_sync: 3,
        };
        assert_eq!(pipeline, expected);
        Ok(strategy.local_results(ids))
    });
    assert_eq!(all, [vec![(0, 0), (1, 1)], vec![(2, 0)]]);
}

#[test]
fn cross_replica_reductions_are_over_all_workers() {
    let all = workers(THREADS, &REPLICAS, |strategy| {
        let values = || strategy.values_from(|id| [1.0e8_f32, 1.0, -1.0e8][id]);
        let mut results = Vec::new();
        for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max] {
            results.push(strategy.reduce(op, values())?);
        }
        // Replica 0 + replica 1 + replica 2: the small one is lost.
        let sum = ((1.0e8_f32 + 1.0) - 1.0e8, "in replica order");
        assert_eq!(results[0], sum.0, "{}", sum.1);
        let rows = strategy.values_from(|id| {
            let values: Vec<i64> = (0..id as i64).map(|i| 10 * id as i64 + i).collect();
            TensorData::new(values, [id, 1])
        });
        let gathered = strategy.gather(rows.clone(), 0)?;
        assert_eq!(gathered, TensorData::new(vec![10_i64, 20, 21], [3, 1]));
        let sum = strategy.reduce_axis(ReduceOp::Sum, rows, &[0])?;
        assert_eq!(sum, TensorData::new(vec![51_i64], [1]));
        Ok(results)
    });
    assert_eq!(all[0], [0.0, 0.0, -1.0e8, 1.0e8]);
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_value_that_is_not_distributed_counts_once_per_worker() {
    let all = workers(THREADS, &[1, 1], |strategy| {
        let sum = strategy.reduce(ReduceOp::Sum, Replicated(1.5_f32))?;
        Ok((sum, strategy.reduce(ReduceOp::Mean, Replicated(1.5_f32))?))
    });
    assert_eq!(all, [(3.0, 1.5); 2]);
    let refused = workers(THREADS, &[2, 2], |strategy| {
        Ok(strategy.reduce(ReduceOp::Sum, Replicated(1.5_f32)).is_err())
    });
    assert_eq!(refused, [true; 2]);
}

#[test]
fn sparse_values_of_all_workers_are_concatenated() {
    let all = workers(THREADS, &REPLICAS, |strategy| {
        let slices = strategy.values_from(|id| {
            let row = TensorData::new(vec![id as f32, 1.0], [1, 2]);
            IndexedSlices::new(row, vec![id], [4, 2]).unwrap()
        });
        strategy.reduce_slices(ReduceOp::Sum, slices)
    });
    assert_eq!(all[0].indices(), [0, 1, 2]);
    assert_eq!(all[0].dense_shape(), [4, 2]);
    assert_eq!(all[0], all[1]);
}

#[test]
fn calls_in_a_step_reach_all_replicas() {
    let all = workers(THREADS, &REPLICAS, |strategy| {
        let found = strategy.run((), |ctx, ()| {
            let id = ctx.replica_id();
            let sum = ctx.all_reduce(ReduceOp::Sum, (id as f32, 10_i64))?;
            let mean = ctx.all_reduce(ReduceOp::Mean, id as f32)?;
            let mine = TensorData::new(vec![id as f32; id], [id]);
            let gathered = ctx.all_gather(mine, 0)?;
            let from_last = ctx.broadcast(2, id as f64)?;
            let local = ctx.merge_call(id as f32, |values| {
                let all = distribute_core::current_strategy().reduce(ReduceOp::Sum, values)?;
                Ok(PerReplica::new(vec![all; if id == 2 { 1 } else { 2 }]))
            })?;
            Ok((sum.0, sum.1, mean, gathered, (from_last, local)))
        })?;
        Ok(strategy.local_results(found))
    });
    let gathered = TensorData::new(vec![1.0_f32, 2.0, 2.0], [3]);
    let expected = (3.0, 30, 1.0, gathered, (2.0, 3.0));
    assert_eq!(
        all,
        [vec![expected.clone(), expected.clone()], vec![expected]]
    );
}

#[test]
fn variables_start_with_the_chiefs_value_and_stay_together() {
    let all = workers(THREADS, &REPLICAS, |strategy| {
        let index = strategy.workers().unwrap().index() as f32;
        let first = VariableOptions::default().aggregation(VariableAggregation::OnlyFirstReplica);
        let mirrored = strategy.variable(100.0 * index + 1.0, first)?;
        let seen = strategy.variable(index, VariableOptions::on_read_sum())?;
        let mean = Mean::new(&strategy);
        strategy.run((), |ctx, ()| {
            mirrored.assign_add(ctx, ctx.replica_id() as f32 + 5.0)?;
            seen.assign_add(ctx, 8.0_f32)?;
            mean.update_state(ctx, ctx.replica_id() as f32)?;
            let inner = ctx.variable(ctx.replica_id() as f32, VariableOptions::default())?;
            assert_eq!(inner.read(ctx)?, 0.0);
            Ok(())
        })?;
        let values: BTreeSet<String> = mirrored
            .local_values()?
            .iter()
            .map(|value| format!("[{value:?}]"))
            .collect();
        let seen = seen.read(&strategy)?;
        Ok((values, seen, mean.result()?))
    });
    let value = BTreeSet::from(["[6.0]".to_string()]);
    assert_eq!(all, [(value.clone(), 24.0, 1.0), (value, 24.0, 1.0)]);
}

/// Without a wait that never ends, whichever workers send to each other in a circle.
#[rstest]
fn what_a_worker_hands_on_comes_to_the_one_at_the_distance(
    #[values(THREADS, SHARED_MEMORY)] between: Between,
    #[values(2, 3, 4, 6)] count: usize,
) {
    let replicas = vec![1; count];
    let all = workers(between, &replicas, move |strategy| {
        let workers = strategy.workers().unwrap();
        let mut came = Vec::new();
        for distance in 0..=count {
            // Larger than what any transport takes before it is read.
            let own = TensorData::full([200_000], workers.index() as f32);
            let lists = workers.shift("a test", distance, &[vec![own], Vec::new()])?;
            let data = lists[0][0].try_to_vec::<f32>().unwrap();
            assert_eq!((lists.len(), lists[1].len(), data.len()), (2, 0, 200_000));
            assert!(data.iter().all(|value| *value == data[0]));
            came.push(data[0] as usize);
        }
        Ok(came)
    });
    for (worker, came) in all.iter().enumerate() {
        let expected = (0..=count).map(|distance| (worker + 2 * count - distance) % count);
        assert_eq!(*came, expected.collect::<Vec<_>>(), "worker {worker}");
    }
}

#[test]
fn what_is_handed_on_in_another_call_is_refused() {
    let all = try_workers(THREADS, &[1, 1], |strategy| {
        let workers = strategy.workers().unwrap();
        let call = ["this", "that"][workers.index()];
        workers.shift(call, 1, &[]).map(drop)
    });
    let said: Vec<String> = all
        .into_iter()
        .map(|one| one.unwrap_err().to_string())
        .collect();
    for said in said {
        let calls = "different calls: `this` on worker 0, `that` on worker 1;";
        assert!(said.contains(calls), "{said}");
    }
}

#[test]
fn a_worker_takes_no_more_from_another_one_than_such_lists_have() {
    let all = try_workers(THREADS, &[1, 1], |strategy| {
        let workers = strategy.workers().unwrap();
        let own = TensorData::full([[10, 100_000][workers.index()]], 1.0_f32);
        workers.shift("a test", 1, &[vec![own]]).map(drop)
    });
    for one in all {
        let said = one.unwrap_err().to_string();
        assert!(said.contains("sent a value that cannot be read"), "{said}");
    }
}

/// Clones of a model share what burn locks while it walks one: no worker waits for another then.
#[test]
fn workers_of_one_process_may_begin_with_clones_of_one_model() {
    let device = Device::flex().autodiff();
    let model = SyncBatchNormConfig::new(3).init(&device).unwrap();
    let means = workers(THREADS, &REPLICAS, move |strategy| {
        let state = strategy.scope(|_| TrainState::new(model.clone(), Sgd::new(0.1)))?;
        state.primary()?.to_tensors()
    });
    assert!(means[0].contains_key("model/moving_mean"));
    assert_eq!(means[0], means[1]);
}
