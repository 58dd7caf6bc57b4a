//! Threads, nesting and the order in which things are dropped.

use std::collections::BTreeMap;

use burn::prelude::*;
use distribute_core::{
    Adam, Error, Mirrored, PerReplica, Replicate, StrategyExt, TensorData, TrainState,
};
use distribute_tpu_xla::{
    CompileReport, CompiledProgram, TpuClusterResolver, TpuCompiler, TpuConnection, TpuError,
    TpuStrategy, TpuSystem,
};

use crate::strategy::models::{Mlp, mlp_step};
use crate::strategy::support::{Data, strategy, system, within};

#[test]
fn everything_can_be_sent_and_shared() {
    fn check<T: Send + Sync + 'static>() {}
    check::<TpuClusterResolver>();
    check::<TpuConnection>();
    check::<TpuSystem>();
    check::<TpuStrategy>();
    check::<TpuCompiler>();
    check::<CompiledProgram>();
    check::<CompileReport>();
    check::<TpuError>();
    check::<Mirrored<TrainState<Mlp>>>();
}

fn trained(tpu: &TpuStrategy, state: &TrainState<Mlp>, seed: u64) -> BTreeMap<String, TensorData> {
    let mut state = tpu.scope(|device| state.replicate(device)).unwrap();
    let mut data = Data::new(seed, 2, &[12], 5);
    for _ in 0..10 {
        tpu.run((&mut state, data.batch::<2>(4)), mlp_step(8))
            .unwrap();
    }
    state.primary().unwrap().to_tensors().unwrap()
}

#[test]
fn threads_train_states_of_their_own() {
    within(120, || {
        let Some(tpu) = strategy(2) else { return };
        let model = Mlp::new(&Device::flex().autodiff());
        let state = TrainState::new(model, Adam::new(1e-3));
        let expected: Vec<_> = (0..4).map(|seed| trained(&tpu, &state, seed)).collect();
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|seed| {
                    let state = state.replicate(&Device::flex().autodiff());
                    let tpu = &tpu;
                    scope.spawn(move || trained(tpu, &state, seed))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(found == expected, "the same bits in any order");
    });
}

#[test]
fn a_run_inside_a_step_is_refused() {
    within(60, || {
        let Some(tpu) = strategy(1) else { return };
        let one = || PerReplica::new(vec![Tensor::<1>::ones([1], &Device::flex())]);
        let outcome = tpu.run(one(), |_, x| {
            tpu.run(one(), |_, y| Ok(y)).map(drop)?;
            Ok(x)
        });
        let error = outcome.unwrap_err();
        let inside = matches!(error.root_cause(), Error::InsideStep { .. });
        assert!(inside, "{error}");
        tpu.run(one(), |_, x| Ok(x)).unwrap();
    });
}

#[test]
fn a_state_outlives_its_strategy() {
    within(60, || {
        let Some(system) = system(2) else { return };
        let client = system.client().clone();
        let tpu = TpuStrategy::new(&system).unwrap();
        let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
        let mut state = tpu.scope(build).unwrap();
        let batch = Data::new(1, 2, &[12], 5).batch::<2>(4);
        tpu.run((&mut state, batch), mlp_step(8)).unwrap();
        let programs = tpu.executables();
        assert_eq!(programs.len(), 1);
        assert!(programs[0].memory_stats().unwrap().alias_bytes > 0);
        drop((tpu, system));
        assert_eq!(state.primary().unwrap().step(), 1);
        assert!(client.live_buffers() > 0);
        drop(state);
        assert_eq!(client.live_buffers(), 0);
    });
}
