//! What happens when replicas do not do the same: typed errors that name the culprit, at once.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use distribute_core::{
    CentralStorageStrategy, DefaultStrategy, Error, MirroredStrategy, PerReplica, ReduceOp,
    ReplicaContext, Result, Sgd, Strategy, StrategyExt, TrainState,
};

/// Runs a step on two replicas that must fail long before its deadline of a minute.
fn failure(step: impl Fn(&ReplicaContext) -> Result<f32> + Sync) -> Error {
    let timeout = Duration::from_secs(60);
    let builder = MirroredStrategy::builder().replicas(2).timeout(timeout);
    let strategy = builder.build().unwrap();
    let started = Instant::now();
    let error = strategy.run((), |ctx, ()| step(ctx)).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(20), "found at once");
    let sum = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1.0_f32));
    assert_eq!(
        sum.unwrap().values(),
        [2.0, 2.0],
        "the strategy is usable again"
    );
    error
}

fn merge(ctx: &ReplicaContext) -> Result<f32> {
    ctx.merge_call(1.0_f32, |values| Ok(PerReplica::new(values.into_values())))
}

#[test]
fn different_calls_are_an_error_on_all_replicas() {
    let error = failure(|ctx| match ctx.replica_id() {
        0 => ctx.broadcast(0, 1.0_f32),
        _ => merge(ctx),
    });
    let text = error.to_string();
    assert!(
        text.contains("broadcast(0) on replica 0, merge_call(0) on replica 1"),
        "{text}"
    );
    let error = failure(|ctx| ctx.broadcast(ctx.replica_id(), 1.0_f32));
    assert!(
        error.to_string().contains("broadcast(1) on replica 1"),
        "{error}"
    );
}

#[test]
fn a_collective_on_one_replica_and_an_exchange_on_the_other_do_not_wait_for_the_deadline() {
    let error = failure(|ctx| match ctx.replica_id() {
        0 => ctx.all_reduce(ReduceOp::Sum, 1.0_f32),
        _ => ctx.broadcast(0, 1.0_f32),
    });
    assert!(matches!(error, Error::Replica { .. }), "{error:?}");
}

#[test]
fn a_replica_that_leaves_a_call_out_is_named() {
    for left_out in 0..2 {
        let error = failure(|ctx| {
            if ctx.replica_id() == left_out {
                Ok(0.0)
            } else {
                merge(ctx)
            }
        });
        let named = |error: &Error| match error.root_cause() {
            Error::ReplicaMissing { replica, .. } => Some(*replica),
            _ => None,
        };
        assert_eq!(named(&error), Some(left_out), "{error:?}");
        let error = failure(|ctx| {
            if ctx.replica_id() == left_out {
                Ok(0.0)
            } else {
                ctx.all_reduce(ReduceOp::Sum, 1.0_f32)
            }
        });
        assert_eq!(named(&error), Some(left_out), "{error:?}");
    }
}

#[test]
fn an_error_that_a_step_ignores_does_not_reach_the_next_run() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let ignored = strategy.run((), |ctx, ()| {
        let fail = |_: PerReplica<f32>| Err::<PerReplica<f32>, _>(Error::invalid("no"));
        Ok(ctx.merge_call(1.0_f32, fail).is_err())
    });
    assert_eq!(ignored.unwrap().values(), [true, true]);
    assert_eq!(
        strategy.run((), |ctx, ()| merge(ctx)).unwrap().values(),
        [1.0, 1.0]
    );
}

#[test]
fn the_longest_timeout_is_none() {
    let builder = MirroredStrategy::builder()
        .replicas(2)
        .timeout(Duration::MAX);
    let strategy = builder.build().unwrap();
    assert_eq!(
        strategy.run((), |ctx, ()| merge(ctx)).unwrap().values(),
        [1.0, 1.0]
    );
}

#[test]
fn runs_from_the_threads_of_a_pool_follow_one_another() {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .unwrap();
        pool.scope(|tasks| {
            for _ in 0..8 {
                tasks.spawn(|_| {
                    strategy.run((), |ctx, ()| merge(ctx)).unwrap();
                });
            }
        });
        done.send(()).unwrap();
    });
    assert!(
        finished.recv_timeout(Duration::from_secs(60)).is_ok(),
        "a deadlock"
    );
}

#[test]
fn zero_replicas_and_useless_clip_norms_are_refused() {
    assert!(MirroredStrategy::builder().replicas(0).build().is_err());
    assert!(CentralStorageStrategy::with_replicas(0).is_err());
    for norm in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let state = scalar_state(&DefaultStrategy::new(), |state| {
            state.clip_by_global_norm(norm)
        });
        let mut state = state;
        assert!(micro_batch(&DefaultStrategy::new(), &mut state, 1.0).is_err());
    }
}

#[derive(Module, Debug)]
struct Scalar {
    weight: Param<Tensor<1>>,
}

type State = distribute_core::Mirrored<TrainState<Scalar>>;

fn scalar_state(
    strategy: &dyn Strategy,
    configure: impl Fn(TrainState<Scalar>) -> TrainState<Scalar>,
) -> State {
    let build = |device: &Device| {
        let weight = Param::from_tensor(Tensor::from_floats([0.0], device));
        configure(TrainState::new(Scalar { weight }, Sgd::new(1.0)))
    };
    strategy.scope(build).unwrap()
}

/// Every replica's gradient is `base * 10^replica`.
fn micro_batch(strategy: &dyn Strategy, state: &mut State, base: f32) -> Result<()> {
    strategy.run(state, |ctx, state| {
        let factor = base * 10_f32.powi(ctx.replica_id() as i32);
        let loss = state.model.weight.val() * factor;
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(())
    })?;
    Ok(())
}

fn weight(state: &State) -> f32 {
    state
        .primary()
        .unwrap()
        .model
        .weight
        .val()
        .into_scalar::<f32>()
}

#[test]
fn accumulated_gradients_are_the_sum_of_all_replicas_and_micro_batches() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = scalar_state(&strategy, |state| state.accumulate(2));
    micro_batch(&strategy, &mut state, 1.0).unwrap();
    let changed = state.update(|state| {
        state.set_learning_rate(1.0);
        Ok(())
    });
    changed.unwrap();
    micro_batch(&strategy, &mut state, 100.0).unwrap();
    assert_eq!(weight(&state), -1111.0, "1 + 10 + 100 + 1000");
}

#[test]
fn a_failure_between_micro_batches_is_found_and_can_be_mended() {
    let strategy = MirroredStrategy::builder().replicas(2).build().unwrap();
    let mut state = scalar_state(&strategy, |state| state.accumulate(2));
    let failed = strategy.run(&mut state, |ctx, state| {
        if ctx.replica_id() == 1 {
            return Err(Error::invalid("no data"));
        }
        let loss = state.model.weight.val() * 1.0;
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)?;
        Ok(())
    });
    assert_eq!(failed.unwrap_err().to_string(), "replica 1: no data");
    let again = micro_batch(&strategy, &mut state, 1.0);
    assert!(matches!(again, Err(Error::Poisoned { .. })), "{again:?}");
    state.resync();
    micro_batch(&strategy, &mut state, 100.0).unwrap();
    assert_eq!(
        weight(&state),
        -1101.0,
        "replica 1's first micro-batch is lost"
    );
}

#[test]
fn one_copy_is_never_out_of_step_with_itself() {
    let strategy = DefaultStrategy::new();
    let mut value = strategy
        .scope(|device| Tensor::<1>::zeros([1], device))
        .unwrap();
    let failed = strategy.run(&mut value, |_, _| Err::<(), _>(Error::invalid("no")));
    assert!(failed.is_err());
    strategy.run(&mut value, |_, _| Ok(())).unwrap();
}
