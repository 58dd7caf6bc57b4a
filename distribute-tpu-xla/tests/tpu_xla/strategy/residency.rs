//! The state stays on the devices, and nothing piles up there.

use burn::prelude::*;
use distribute_core::{Adam, StrategyExt, TrainState};
use distribute_tpu_xla::TpuStrategy;

use crate::strategy::models::{Mlp, mlp_step};
use crate::strategy::support::{Data, system, within};

#[test]
fn buffers_do_not_pile_up() {
    within(120, || {
        let Some(system) = system(2) else {
            return;
        };
        let tpu = TpuStrategy::new(&system).unwrap();
        let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
        let mut state = tpu.scope(build).unwrap();
        let mut data = Data::new(1, 2, &[12], 5);
        let mut live = Vec::new();
        for number in 0..200 {
            tpu.run((&mut state, data.batch::<2>(8)), mlp_step(16))
                .unwrap();
            if number % 50 == 0 {
                state.primary().unwrap();
            }
            live.push(system.client().live_buffers());
        }
        // 6 parameters, 2 slots each, 2 replicas.
        assert_eq!(live, vec![36; 200]);
        let statistics = tpu.statistics();
        assert_eq!((statistics.programs, statistics.hits), (1, 199));
        drop(state);
        assert_eq!(system.client().live_buffers(), 0);
    });
}

#[test]
fn the_program_donates_the_whole_state() {
    within(60, || {
        let Some(system) = system(2) else {
            return;
        };
        let tpu = TpuStrategy::new(&system).unwrap();
        let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
        let mut state = tpu.scope(build).unwrap();
        let mut data = Data::new(1, 2, &[12], 5);
        tpu.run((&mut state, data.batch::<2>(8)), mlp_step(16))
            .unwrap();
        let before = state.primary().unwrap().to_tensors().unwrap();
        // Reading leaves the devices' copies as they are: the next step goes on from them.
        tpu.run((&mut state, data.batch::<2>(8)), mlp_step(16))
            .unwrap();
        let after = state.primary().unwrap().to_tensors().unwrap();
        assert_ne!(before["model/first.weight"], after["model/first.weight"]);
        assert_eq!(state.host_metadata().step(), 2);
    });
}

#[test]
fn programs_of_states_that_are_gone_are_forgotten() {
    within(120, || {
        let Some(system) = system(1) else {
            return;
        };
        let tpu = TpuStrategy::new(&system).unwrap();
        let mut data = Data::new(1, 1, &[12], 5);
        for trial in 1..=3 {
            let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
            let mut state = tpu.scope(build).unwrap();
            for _ in 0..3 {
                tpu.run((&mut state, data.batch::<2>(8)), mlp_step(8))
                    .unwrap();
            }
            let statistics = tpu.statistics();
            assert_eq!((statistics.steps, statistics.programs), (trial, trial));
            assert_eq!(statistics.recompilations, 0);
        }
        assert_eq!(system.client().live_buffers(), 0);
    });
}
