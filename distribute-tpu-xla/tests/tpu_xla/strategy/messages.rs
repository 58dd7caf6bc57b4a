//! What errors say of the place in the user's program.

use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::ops::{InterpolateMode, InterpolateOptions};
use distribute_core::{
    Error, Nest, PerReplica, ReplicaContext, Result, Sgd, Strategy, StrategyExt, TrainState,
};
use distribute_tpu_xla::TpuError;

use crate::strategy::support::{strategy, within};

#[derive(Module, Debug)]
struct Block {
    inner: Linear,
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    blocks: Vec<Block>,
}

fn ones() -> Tensor<2> {
    Tensor::ones([2, 4], &Device::flex())
}

/// The error of a step on one tensor.
fn refused<R: Nest + Send + std::fmt::Debug + 'static>(
    tpu: &dyn Strategy,
    step: impl Fn(&ReplicaContext, Tensor<2>) -> Result<R> + Sync,
) -> Error {
    let x = PerReplica::new(vec![ones()]);
    tpu.run(x, |ctx, x| step(ctx, x)).unwrap_err()
}

#[test]
fn an_operation_that_is_not_covered_is_found_in_the_model() {
    within(60, || {
        let Some(tpu) = strategy(1) else { return };
        let build = |device: &Device| {
            let linear = || LinearConfig::new(4, 4).init(device);
            let blocks = (0..2).map(|_| Block { inner: linear() }).collect();
            let first = linear();
            TrainState::new(Net { first, blocks }, Sgd::new(0.1))
        };
        let mut state = tpu.scope(build).unwrap();
        let x = PerReplica::new(vec![ones()]);
        let outcome = tpu.run((&mut state, x), |ctx, (state, x)| {
            let hidden = state.model.blocks[1]
                .inner
                .forward(state.model.first.forward(x));
            let image: Tensor<4> = hidden.reshape([1, 1, 2, 4]);
            let options = InterpolateOptions::new(InterpolateMode::Bicubic);
            let large = burn::tensor::module::interpolate(image, options.with_output_size([8, 8]));
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&large.sum(), &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        });
        let error = outcome.unwrap_err();
        assert!(matches!(TpuError::of(&error), Some(TpuError::Lower(_))));
        let text = error.to_string();
        for part in [
            "Interpolate",
            "blocks.1.inner.weight",
            "docs/tpu-coverage.md",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(state.poisoned().is_none());
    });
}

#[test]
fn a_tensor_of_the_cpu_that_the_step_has_captured() {
    within(60, || {
        let Some(tpu) = strategy(1) else { return };
        let (cpu, ids) = (ones(), Tensor::<2, Int>::ones([2, 4], &Device::flex()));
        let tracked = Tensor::<2>::ones([2, 4], &Device::flex().autodiff());
        let errors = [
            refused(&tpu, |_, x| Ok(x + cpu.clone())),
            refused(&tpu, |_, x| Ok(cpu.clone() * x)),
            refused(&tpu, |_, x| Ok(x + tracked.clone())),
            refused(&tpu, |_, x| Ok(Tensor::cat(vec![x, cpu.clone()], 0))),
            refused(&tpu, |_, x| Ok(x.gather(1, ids.clone()))),
        ];
        for error in errors {
            let text = error.to_string();
            let expected = matches!(error, Error::NotCompilable { .. });
            assert!(expected && text.contains("as an argument"), "{text}");
            assert!(text.contains("has captured it"), "{text}");
        }
        let text = refused(&tpu, |_, x| Ok(x + cpu.clone())).to_string();
        assert!(text.contains("in the operation Add"), "{text}");
    });
}

#[test]
fn a_read_on_the_host_says_so_in_one_sentence() {
    within(60, || {
        let Some(tpu) = strategy(1) else { return };
        let errors = [
            refused(&tpu, |_, x| Ok(x.sum().into_scalar::<f32>())),
            refused(&tpu, |_, x| x.try_into_data().map_err(Error::step)),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::HostRead { .. }));
            assert_eq!(text.matches('(').count(), text.matches(')').count());
            assert!(text.ends_with("the result of `run`"), "{text}");
        }
    });
}
