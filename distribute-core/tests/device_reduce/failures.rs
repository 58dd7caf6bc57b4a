//! Replicas that fail, and NCCL that does.

use std::time::{Duration, Instant};

use distribute_core::{Error, MirroredStrategy, StrategyExt};

use crate::common::{nothing, state, step, within_limit};
use crate::fake::Fake;
use crate::memory::HostMemory;
use crate::odd_gradients::batches;

fn strategy(memory: &HostMemory, fake: &Fake) -> MirroredStrategy {
    MirroredStrategy::builder()
        .replicas(2)
        .device_reducers(memory.reducers(fake).timeout(Duration::from_secs(20)))
        .timeout(Duration::from_secs(20))
        .build()
        .unwrap()
}

/// After a failure the value can be brought back and the strategy is usable.
fn usable(strategy: &MirroredStrategy, memory: &HostMemory) {
    let calls = memory.calls();
    let mut state = state(strategy).unwrap();
    step(strategy, &mut state, 0, nothing).unwrap();
    assert_eq!(memory.calls(), calls + 2, "on the devices again");
}

#[test]
fn a_replica_that_fails_before_ends_the_others_with_its_error() {
    within_limit(|| {
        let (fake, memory) = (Fake::new(""), HostMemory::default());
        let strategy = strategy(&memory, &fake);
        let mut state = state(&strategy).unwrap();
        let begin = Instant::now();
        let error = step(&strategy, &mut state, 0, |_, ctx| match ctx.replica_id() {
            1 => Err(Error::invalid("a bad example")),
            _ => Ok(()),
        });
        let error = error.unwrap_err();
        assert_eq!(error.to_string(), "replica 1: a bad example");
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "{:?}",
            begin.elapsed()
        );
        usable(&strategy, &memory);
        drop(strategy);
        fake.assert_clean();
    });
}

#[test]
fn a_replica_that_leaves_out_the_update_is_named() {
    within_limit(|| {
        let (fake, memory) = (Fake::new(""), HostMemory::default());
        let strategy = strategy(&memory, &fake);
        let mut state = state(&strategy).unwrap();
        let batches = batches(&strategy, 0);
        let outcome = strategy.run((&mut state, batches), |ctx, (state, (x, y))| {
            let loss = state.model.loss(ctx.replica_id(), x, y);
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            if ctx.replica_id() == 0 {
                state.apply_gradients(ctx, gradients)?;
            }
            Ok(())
        });
        let error = outcome.unwrap_err();
        assert!(
            matches!(error.root_cause(), Error::ReplicaMissing { replica: 1, .. }),
            "{error}"
        );
        usable(&strategy, &memory);
    });
}

/// NCCL reports an error by itself, in the first operation of rank 1.
#[test]
fn an_error_of_nccl_ends_the_step_on_all_replicas() {
    within_limit(|| {
        let (fake, memory) = (Fake::new("error=1:0"), HostMemory::default());
        let strategy = strategy(&memory, &fake);
        let mut state = state(&strategy).unwrap();
        let error = step(&strategy, &mut state, 0, nothing).unwrap_err();
        assert!(
            matches!(error.root_cause(), Error::Collective(_)),
            "{error}"
        );
        assert!(state.poisoned().is_some() || step(&strategy, &mut state, 0, nothing).is_err());
        fake.set("");
        usable(&strategy, &memory);
        drop(strategy);
        fake.assert_clean();
    });
}
