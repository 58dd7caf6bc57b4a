//! Dropout that gives the same result in every run, on any number of threads.

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use rand::Rng;

use crate::scope;
use crate::trace::Trace;

/// Sets each element to 0 with probability `rate` and scales the others by `1 / (1 - rate)`
/// (Keras: `layers.Dropout` while training). Leave it out when evaluating.
///
/// burn's own `Dropout` draws from one generator per process, so replicas draw one at a time
/// ([`TrainState::random_seed`](crate::TrainState::random_seed)). This one takes the numbers from
/// `rng`, usually [`ReplicaContext::rng`](crate::ReplicaContext::rng), and lets replicas compute at
/// once.
///
/// In a step that is compiled the numbers come from the program, with a key that changes with every
/// update: they differ from the numbers of an eager strategy. One number of `rng` makes them those
/// of this dropout; take it from [`ReplicaContext::rng`](crate::ReplicaContext::rng), as a
/// generator that goes on from call to call would make another program of every step.
///
/// ```
/// use distribute_core::{DefaultStrategy, StrategyExt, Tensor, dropout};
///
/// let kept = DefaultStrategy::new().run((), |ctx, ()| {
///     let x = Tensor::<2>::ones([8, 100], ctx.device());
///     Ok(dropout(x, 0.5, &mut ctx.rng(42, 7)).mean())
/// })?;
/// let mean = kept.values()[0].clone().into_scalar::<f32>();
/// assert!((mean - 1.0).abs() < 0.15);
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub fn dropout<const D: usize>(
    x: Tensor<D>,
    rate: f64,
    rng: &mut (impl Rng + ?Sized),
) -> Tensor<D> {
    if let Some(trace) = scope::trace() {
        return captured_dropout(&trace, x, rate.clamp(0.0, 1.0), rng);
    }
    let mask = dropout_mask(&x.dims(), rate, rng);
    let device = x.device().without_autodiff();
    let dtype = x.dtype();
    x * Tensor::from_data(mask, (&device, dtype))
}

/// Dropout in a step that is compiled: the program makes the numbers.
fn captured_dropout<const D: usize>(
    trace: &Trace,
    x: Tensor<D>,
    rate: f64,
    rng: &mut (impl Rng + ?Sized),
) -> Tensor<D> {
    if rate >= 1.0 {
        return x.mul_scalar(0);
    }
    trace.seed_from(rng);
    let device = x.device().without_autodiff();
    let kept = Distribution::Bernoulli(1.0 - rate);
    let kept = Tensor::<D>::random(x.dims(), kept, (&device, x.dtype()));
    x * kept.mul_scalar(1.0 / (1.0 - rate))
}

/// Uniform numbers from 0 up to, but not, 1, from `rng`, as [`dropout`] takes them: the same in
/// every run, and in a step that is compiled from the program.
///
/// ```
/// use distribute_core::{DefaultStrategy, StrategyExt, uniform};
///
/// let mean = DefaultStrategy::new().run((), |ctx, ()| {
///     Ok(uniform([8, 100], &mut ctx.rng(42, 7), ctx.device()).mean())
/// })?;
/// assert!((mean.values()[0].clone().into_scalar::<f32>() - 0.5).abs() < 0.05);
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub fn uniform<const D: usize>(
    dims: [usize; D],
    rng: &mut (impl Rng + ?Sized),
    device: &Device,
) -> Tensor<D> {
    if let Some(trace) = scope::trace() {
        trace.seed_from(rng);
        return Tensor::random(dims, Distribution::Default, device);
    }
    // 24 bits, as many as an f32 has for a number below 1.
    let draw = |_| (rng.next_u32() >> 8) as f32 / (1_u32 << 24) as f32;
    let count: usize = dims.iter().product();
    let numbers: Vec<f32> = (0..count).map(draw).collect();
    Tensor::from_data(TensorData::new(numbers, dims), device)
}

/// What [`dropout`] multiplies with: 0 with probability `rate`, else `1 / (1 - rate)`, in f32.
///
/// A rate of 1 or more drops everything, one of 0 or less nothing. In a step that is compiled the
/// mask would be a constant: use [`dropout`] there.
pub fn dropout_mask(dims: &[usize], rate: f64, rng: &mut (impl Rng + ?Sized)) -> TensorData {
    let rate = rate.clamp(0.0, 1.0);
    let threshold = (rate * (f64::from(u32::MAX) + 1.0)) as u64;
    let kept = if rate < 1.0 {
        (1.0 / (1.0 - rate)) as f32
    } else {
        0.0
    };
    let count: usize = dims.iter().product();
    let draw = |_| {
        if u64::from(rng.next_u32()) < threshold {
            0.0
        } else {
            kept
        }
    };
    TensorData::new((0..count).map(draw).collect::<Vec<f32>>(), dims.to_vec())
}
