//! Images per second of the documents' CNN on a GPU: a training loop written by hand with burn,
//! and the same under strategies, in turns. Prints one JSON object a line; `scripts/gpu-check`
//! makes a table of them and of PyTorch's.

#[path = "../tests/cuda/model.rs"]
#[expect(dead_code, reason = "shared with the tests, which use all of it")]
mod model;

use std::io::Write;
use std::time::Instant;

use burn::optim::{GradientsParams, SgdConfig};
use distribute_core::{
    Device, Mirrored, MirroredStrategy, OneDeviceStrategy, PerReplica, Result, Strategy,
    StrategyExt, TrainState,
};
use distribute_cuda::cuda;
use model::{Batch, Cnn, batch};

/// Batches that every contender cycles through; on the device before the clock starts.
const BATCHES: usize = 8;
const ROUNDS: usize = 7;

/// Trains for some steps; the device has done all of them when it returns.
type Run<'a> = Box<dyn FnMut(usize) -> Result<()> + 'a>;

/// The loop as burn's documents have it.
fn by_hand<'a>(device: &Device, batches: &'a [Batch], size: usize) -> Run<'a> {
    let mut model = Some(Cnn::new(device));
    let mut optimizer = SgdConfig::new().init();
    let device = device.clone();
    Box::new(move |steps| {
        for step in 0..steps {
            let Some(current) = model.take() else { break };
            let loss = current.loss(&batches[step % BATCHES], size);
            let gradients = GradientsParams::from_grads(loss.backward(), &current);
            model = Some(optimizer.step(0.05, current, gradients));
        }
        device.sync().map_err(distribute_core::Error::step)
    })
}

fn under<'a>(strategy: impl Strategy + 'a, batches: &'a [Batch], size: usize) -> Result<Run<'a>> {
    let mut state: Mirrored<TrainState<Cnn>> = model::state(&strategy)?;
    Ok(Box::new(move |steps| {
        for step in 0..steps {
            let input = PerReplica::new(vec![batches[step % BATCHES].clone()]);
            strategy.run((&mut state, input), |ctx, (state, batch)| {
                let loss = state.model.loss(&batch, size);
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(())
            })?;
        }
        // On the replica's thread: `sync` waits for the stream of the thread that calls it.
        strategy.run((), |ctx, ()| {
            ctx.device().sync().map_err(distribute_core::Error::step)
        })?;
        Ok(())
    }))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let gpu = cuda(0);
    let mut out = std::io::stdout().lock();
    if let Err(error) = gpu.check() {
        let _ = writeln!(out, "SKIPPED: {error}");
        return Ok(());
    }
    let device = gpu.burn_device().autodiff();
    for size in [64, 256, 1024] {
        let batches: Vec<Batch> = (0..BATCHES)
            .map(|step| batch(step, 0..size, &device))
            .collect();
        let mirrored = MirroredStrategy::builder().devices([gpu]).build()?;
        let mut contenders = [
            ("burn-by-hand", by_hand(&device, &batches, size)),
            (
                "ours-one-device",
                under(OneDeviceStrategy::new(gpu)?, &batches, size)?,
            ),
            ("ours-mirrored", under(mirrored, &batches, size)?),
        ];
        let mut times = vec![Vec::new(); contenders.len()];
        for round in 0..=ROUNDS {
            for (index, (_, run)) in contenders.iter_mut().enumerate() {
                let start = Instant::now();
                run(100)?;
                // The first round compiles the kernels.
                if round > 0 {
                    times[index].push(start.elapsed().as_secs_f64());
                }
            }
        }
        let hand = median(&mut times[0].clone());
        for ((name, _), times) in contenders.iter().zip(&mut times) {
            let seconds = median(times);
            let images = 100.0 * size as f64 / seconds;
            let _ = writeln!(
                out,
                "{{\"bench\":\"gpu-train\",\"impl\":\"{name}\",\"batch\":{size},\
                 \"images_per_s\":{images:.0},\"overhead\":{:.4}}}",
                seconds / hand - 1.0
            );
        }
    }
    Ok(())
}
