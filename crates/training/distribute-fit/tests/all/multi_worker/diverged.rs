//! Replicas whose weights begin to differ: this is found before a save, and at the end.

use std::path::PathBuf;

use distribute_core::checkpoint::list;
use distribute_core::{
    Error, Mirrored, MirroredStrategy, MultiWorkerMirroredStrategy, Result, Strategy, StrategyExt,
    TrainState,
};
use distribute_fit::callbacks::{ModelCheckpoint, ReplicateState};
use distribute_fit::{Callback, Control, Fit, FitError, StateMemory, check_same_state};
use rstest::rstest;
use tempfile::TempDir;

use crate::common::{BATCHES, Mlp, Points, new_state, objective};
use crate::multi_worker::group::{THREADS, try_workers};

const EPOCHS: usize = 3;

/// On one worker, flips a bit after a number of batches.
struct Flips {
    worker: usize,
    batches: usize,
}

impl Callback for Flips {
    fn on_batch_end(&mut self, run: &mut Control<'_>) -> Result<()> {
        let is_here = run
            .strategy()
            .workers()
            .is_none_or(|it| it.index() == self.worker);
        self.batches = self.batches.wrapping_sub(1);
        if self.batches == 0 && is_here {
            flip(run)
        } else {
            Ok(())
        }
    }
}

/// The errors of a training on these workers, which save into a directory if there is one, and
/// compare their replicas after every N updates.
fn errors_of(
    replicas: &[usize],
    worker: usize,
    batches: usize,
    directory: Option<PathBuf>,
    check_replicas: Option<u64>,
) -> Vec<String> {
    let train = move |strategy: MultiWorkerMirroredStrategy| {
        let data = Points::new(&strategy);
        let mut state = new_state(&strategy);
        let mut fit = Fit::new(&strategy)
            .epochs(EPOCHS)
            .check_replicas(check_replicas)
            .callback(Flips { worker, batches });
        if let Some(directory) = &directory {
            let saver = ModelCheckpoint::with_workers(&strategy, directory)?;
            fit = fit.callback(saver.every_steps(2));
        }
        fit.run(&mut state, &data, objective).map(drop)
    };
    let outcomes = try_workers(THREADS, replicas, train);
    let errors = outcomes.into_iter().map(|it| it.unwrap_err().to_string());
    errors.collect()
}

/// Flips the lowest bit of one weight, like an error of the memory or the network.
fn flip(run: &mut Control<'_>) -> Result<()> {
    let mut parameters = run.tensors()?;
    parameters.retain(|name, _| name.starts_with("model/"));
    let weight = parameters.get_mut("model/hidden.weight").unwrap();
    let values = weight.as_mut_slice::<f32>().unwrap();
    values[3] = f32::from_bits(values[3].to_bits() ^ 1);
    run.set_parameters(&parameters)
}

/// Of three workers one differs from the others; of two it is not known which one is wrong.
#[rstest]
#[case(&[1, 2, 1], "replica 3 (rank 2) differs from the others")]
#[case(&[1, 1], "replicas 0, 1 (ranks 0, 1) differ from each other")]
fn one_flipped_bit_is_found_before_it_is_saved(#[case] replicas: &[usize], #[case] who: &str) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    for error in errors_of(replicas, replicas.len() - 1, 3, Some(path), None) {
        assert!(error.contains("after step 4"), "{error}");
        assert!(error.contains(who), "{error}");
        assert!(error.contains("`model/hidden.weight`"), "{error}");
    }
    let steps: Vec<u64> = list(directory.path())
        .unwrap()
        .iter()
        .map(|it| it.step)
        .collect();
    assert_eq!(steps, [2], "nothing is saved of what has parted");
}

#[test]
fn without_checkpoints_a_flipped_bit_is_found_at_the_end() {
    for error in errors_of(&[1, 1, 1], 1, EPOCHS * BATCHES, None, None) {
        assert!(error.contains("replica 1 (rank 1) differs"), "{error}");
    }
}

#[rstest]
#[case(2, 4)]
#[case(5, 5)]
#[case(1, 4)]
fn checks_between_saves_find_it_earlier(#[case] every: u64, #[case] found_after: u64) {
    let host = gethostname::gethostname().display().to_string();
    for error in errors_of(&[1, 2, 1], 2, 3, None, Some(every)) {
        let when = format!("after step {found_after}: ");
        assert!(error.contains(&when), "{error}");
        let who = format!("replica 3 (rank 2) differs from the others, on host {host};");
        assert!(error.contains(&who), "{error}");
        assert!(error.contains("`model/hidden.weight`"), "{error}");
    }
}

/// A callback, or an error of the memory, may change the state between a check and a save.
#[test]
fn a_state_that_was_compared_is_compared_again_before_it_is_saved() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().to_path_buf();
    for error in errors_of(&[1, 1, 1], 1, 4, Some(path), Some(1)) {
        assert!(error.contains("after step 4: replica 1"), "{error}");
    }
    let newest = list(directory.path()).unwrap().last().map(|it| it.step);
    assert_eq!(newest, Some(2));
}

#[test]
fn all_workers_check_after_the_same_steps() {
    let outcomes = try_workers(THREADS, &[1, 1], |strategy| {
        let own = strategy.workers().map_or(0, |it| it.index() as u64);
        let (data, mut state) = (Points::new(&strategy), new_state(&strategy));
        let fit = Fit::new(&strategy).check_replicas(2 + own);
        fit.run(&mut state, &data, objective).map(drop)
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.contains("the steps between checks of replicas"),
            "{error}"
        );
    }
}

/// The replicas and ranks that differ, the tensor and the step, which the error has as its fields.
fn parted(error: &Error) -> (Vec<usize>, Vec<usize>, String, u64) {
    let found = error.wrapped().and_then(|error| error.downcast_ref());
    let Some(FitError::Diverged {
        step,
        ranks,
        replicas,
        parameter,
        ..
    }) = found
    else {
        panic!("{error}");
    };
    (ranks.clone(), replicas.clone(), parameter.clone(), *step)
}

#[test]
fn a_loop_of_ones_own_compares_by_the_same_call() {
    let outcomes = try_workers(THREADS, &[1, 2, 1], |strategy| {
        let data = Points::new(&strategy);
        let mut state = new_state(&strategy);
        check_same_state(&strategy, &state)?;
        let step = |state: &mut _, batch| {
            let fit = Fit::new(&strategy).epochs(1).max_steps(batch);
            fit.run(state, &data, objective)
        };
        step(&mut state, 2)?;
        check_same_state(&strategy, &state)?;
        strategy.run(&mut state, |ctx, state| {
            if ctx.replica_id() == 2 {
                let bias = state.model.output.bias.take();
                let other = bias.map(|it| it.map(|it| it.add_scalar(0.5).detach().require_grad()));
                state.model.output.bias = other;
            }
            Ok(())
        })?;
        check_same_state(&strategy, &state)
    });
    for outcome in outcomes {
        let found = parted(&outcome.unwrap_err());
        let wanted = (vec![1], vec![2], "model/output.bias".to_string(), 2);
        assert_eq!(found, wanted);
    }
}

/// A strategy of three replicas, a core for each: those that share one compute an update once, for
/// all of them; and a state of which replica 2 has another one.
fn parted_replicas() -> (MirroredStrategy, Mirrored<TrainState<Mlp>>) {
    let builder = MirroredStrategy::builder().replicas(3).cores(3);
    let strategy = builder.build().unwrap();
    let mut state = new_state(&strategy);
    strategy
        .run(&mut state, |ctx, state| {
            if ctx.replica_id() == 2 {
                let output = state.model.output.clone();
                state.model.output.bias = output
                    .bias
                    .map(|it| it.map(|it| it.add_scalar(0.5).detach().require_grad()));
            }
            Ok(())
        })
        .unwrap();
    (strategy, state)
}

#[test]
fn the_copies_of_one_process_are_compared_too() {
    let (strategy, mut state) = parted_replicas();
    let alone = check_same_state(&strategy, &state).unwrap_err();
    let wanted = (vec![0], vec![2], "model/output.bias".to_string(), 0);
    assert_eq!(parted(&alone), wanted);
    let data = Points::new(&strategy);
    let error = Fit::new(&strategy)
        .epochs(1)
        .run(&mut state, &data, objective);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("replica 2 (rank 0) differs"), "{error}");
    assert!(error.contains("`model/output.bias`"), "{error}");
}

/// Other workers' memory would contradict it later; a worker alone has none.
#[test]
fn a_worker_alone_keeps_no_state_of_replicas_that_differ_in_memory() {
    let folder = TempDir::new().unwrap();
    let paths = ["one", "other"].map(|name| folder.path().join(name));
    for path in &paths {
        std::fs::write(path, "").unwrap();
    }
    let (strategy, mut state) = parted_replicas();
    let memory = StateMemory::open(paths.clone()).unwrap();
    let data = Points::new(&strategy);
    let fit = Fit::new(&strategy).callback(ReplicateState::new(memory));
    let error = fit.run(&mut state, &data, objective).unwrap_err();
    assert_eq!(parted(&error).3, 1, "{error}");
    let kept = StateMemory::open(paths).unwrap().agree(&strategy).unwrap();
    assert!(kept.is_none());
}
