//! The same training as on the CPU.

use distribute_core::{MirroredStrategy, NcclAllReduce, OneDeviceStrategy, Strategy, TrainState};
use distribute_cuda::{all_gpus, cuda};

use crate::gpu::has_gpu;
use crate::model::{Cnn, difference, state, train};
use crate::odd_gradients::weights;

/// f32 kernels of tensor cores round to tf32, so results differ from the CPU's.
const TOLERANCE: f32 = 1e-3;

fn on_gpu() -> MirroredStrategy {
    let builder = MirroredStrategy::builder().devices([cuda(0)]);
    builder.build().expect("a GPU")
}

fn on_cpu() -> MirroredStrategy {
    MirroredStrategy::builder()
        .replicas(1)
        .build()
        .expect("a CPU")
}

/// Losses and weights after 20 steps.
fn trained<S: Strategy>(strategy: &S) -> (Vec<f32>, Vec<f32>) {
    let mut state = state(strategy).expect("a state");
    let losses = train(strategy, &mut state, 20, 64).expect("training");
    (losses, weights(state.primary().unwrap()).expect("weights"))
}

#[test]
fn twenty_steps_give_what_the_cpu_gives() {
    if !has_gpu() {
        return;
    }
    let (cpu_losses, cpu_weights) = trained(&on_cpu());
    let (gpu_losses, gpu_weights) = trained(&on_gpu());
    let losses = difference(&cpu_losses, &gpu_losses);
    let weights = difference(&cpu_weights, &gpu_weights);
    println!("largest difference: losses {losses:e}, weights {weights:e}");
    assert!(gpu_losses[19] < gpu_losses[0], "it learns: {gpu_losses:?}");
    assert!(
        losses < TOLERANCE && weights < TOLERANCE,
        "{losses:e} {weights:e}"
    );
}

#[test]
fn one_device_is_the_same() {
    if !has_gpu() {
        return;
    }
    let strategy = OneDeviceStrategy::new(cuda(0)).expect("a GPU");
    let (losses, _) = trained(&strategy);
    let (mirrored, _) = trained(&on_gpu());
    assert!(difference(&losses, &mirrored) < TOLERANCE);
}

/// Clipping, accumulation and reading gradients are on the device too.
#[test]
fn gradients_are_clipped_and_added_up_on_the_gpu() {
    if !has_gpu() {
        return;
    }
    type Configure = fn(TrainState<Cnn>) -> TrainState<Cnn>;
    let configures: [Configure; 2] = [
        |state| state.clip_by_global_norm(0.1),
        |state| state.accumulate(2),
    ];
    for configure in configures {
        let run = |strategy: &MirroredStrategy| {
            let mut state = state(strategy).expect("a state");
            state
                .update(|state| {
                    *state = configure(state.clone());
                    Ok(())
                })
                .unwrap();
            train(strategy, &mut state, 10, 32).expect("training");
            weights(state.primary().unwrap()).expect("weights")
        };
        let found = difference(&run(&on_cpu()), &run(&on_gpu()));
        assert!(found < TOLERANCE, "{found:e}");
    }
}

/// Several GPUs: over NCCL and burn's collective, the same as one.
#[test]
fn several_gpus_give_what_one_gives() {
    if !has_gpu() {
        return;
    }
    let gpus = all_gpus().expect("GPUs");
    if gpus.len() < 2 {
        println!("SKIPPED: one GPU, this needs two");
        return;
    }
    let (_, expected) = trained(&on_gpu());
    for ops in [NcclAllReduce::new(), NcclAllReduce::by_burn()] {
        let builder = MirroredStrategy::builder().devices(gpus[..2].to_vec());
        let strategy = builder.cross_device_ops(ops).build().expect("two GPUs");
        println!("{}", strategy.device_reduction().join("; "));
        let (_, found) = trained(&strategy);
        let found = difference(&found, &expected);
        assert!(found < TOLERANCE, "{found:e}");
    }
}
