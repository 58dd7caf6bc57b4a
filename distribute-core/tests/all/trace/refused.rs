//! Steps that cannot be captured end with an error that says what to do, and change nothing.

use burn::module::RunningState;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::optim::AdamConfig;
use burn::prelude::*;
use distribute_core::{
    Adam, BurnOptimizer, Error, LeafVisitor, LossScale, Nest, NestPath, PerReplica, ReplicaContext,
    Replicated, Result, Sgd, StrategyExt, TensorData, TrainState,
};

use crate::trace::support::{Mlp, Recording, batch, uneven};

type Batch = (Tensor<2>, Tensor<1, Int>);

/// The trace error of a step on a training state.
fn refused<R: Nest + Send + std::fmt::Debug + 'static>(
    replicas: usize,
    step: impl for<'x> Fn(&ReplicaContext, (&'x mut TrainState<Mlp>, Batch)) -> Result<R> + Sync,
) -> Error {
    let strategy = Recording::new(replicas);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Adam::new(1e-3)))
        .unwrap();
    let error = strategy
        .run((&mut state, batch(replicas, 4)), step)
        .unwrap_err();
    assert!(state.poisoned().is_none(), "nothing has changed");
    assert_eq!(strategy.compiled(), 0);
    // The strategy goes on.
    let after = strategy
        .run(batch(replicas, 4), |_, (x, _)| Ok(x.sum()))
        .unwrap();
    assert_eq!(after.values().len(), replicas);
    error.root_cause().clone()
}

#[test]
fn reading_a_tensor() {
    let reads: [fn(Tensor<2>); 4] = [
        |x| {
            let _: f32 = x.sum().into_scalar();
        },
        |x| drop(x.into_data()),
        |x| {
            let _: bool = (x + 1.0).greater_elem(0.0).any().into_scalar();
        },
        |x| drop(x.to_device(&Device::flex())),
    ];
    for (index, read) in reads.into_iter().enumerate() {
        let error = refused(2, move |_, (_, (x, _))| {
            read(x);
            Ok(())
        });
        assert!(matches!(error, Error::HostRead { .. }), "{index}: {error}");
        assert!(
            error
                .to_string()
                .contains("return the tensor from the step"),
            "{error}"
        );
    }
    // A parameter and the loss.
    let error = refused(1, |_, (state, (x, _))| {
        let _: f32 = state.model.forward(x).sum().into_scalar();
        Ok(())
    });
    assert!(matches!(error, Error::HostRead { .. }), "{error}");
    let error = refused(1, |_, (state, _)| {
        let data = state.model.first.weight.val().try_into_data();
        data.map(drop).map_err(Error::step)
    });
    assert!(matches!(error, Error::HostRead { .. }), "{error}");
}

#[test]
fn the_replica_number_where_there_are_several() {
    let error = refused(2, |ctx, _| Ok(ctx.replica_id()));
    assert!(error.to_string().contains("replica_id_tensor"), "{error}");
    let alone = Recording::new(1);
    assert_eq!(
        alone
            .run((), |ctx, ()| Ok(ctx.replica_id()))
            .unwrap()
            .values(),
        [0]
    );
}

#[test]
fn calls_that_have_no_counterpart() {
    let error = refused(2, |ctx, _| {
        ctx.merge_call((), |all: PerReplica<()>| Ok(all))
    });
    assert!(matches!(error, Error::NotCompilable { .. }), "{error}");
}

#[test]
fn a_panic_is_an_error() {
    let error = refused(2, |_, _| -> Result<()> { panic!("on purpose") });
    assert!(matches!(&error, Error::CapturePanicked { message } if message == "on purpose"));
}

#[test]
fn results_of_unknown_structure() {
    #[derive(Debug)]
    struct Count;
    impl Nest for Count {
        fn walk(&mut self, _: &NestPath<'_>, _: LeafVisitor<'_>) -> Result<()> {
            Ok(())
        }
    }
    let error = refused(2, |_, _| Ok(Count));
    assert!(error.to_string().contains("Nest::skeleton"), "{error}");
}

#[test]
fn a_tensor_of_the_cpu_in_the_state() {
    let error = refused(2, |_, (state, _)| {
        state.model = Mlp::new(&Device::flex().autodiff());
        Ok(())
    });
    assert!(matches!(error, Error::NotCompilable { .. }), "{error}");
}

#[test]
fn arguments_that_a_program_cannot_take() {
    let strategy = Recording::new(2);
    let data = TensorData::from([1.0_f32]);
    let error = strategy.run(Replicated(data), |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, Error::NotCompilable { .. }), "{error}");
    let host = PerReplica::new(vec![
        TensorData::from([1.0_f32]),
        TensorData::from([2.0_f32]),
    ]);
    let error = strategy.run(host, |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, Error::NotCompilable { .. }), "{error}");
    let numbers = PerReplica::new(vec![1.0_f32, 2.0]);
    let error = strategy.run(numbers, |_, x| Ok(x)).unwrap_err();
    assert!(
        matches!(error, Error::UnevenArguments { replica: 1, .. }),
        "{error}"
    );
    let error = strategy
        .run(uneven(&[3, 2]), |_, (x, _)| Ok(x.sum()))
        .unwrap_err();
    assert!(error.to_string().contains("drop_remainder"), "{error}");
}

/// A layer with running statistics of which no compiled step knows anything.
#[test]
fn running_statistics_of_an_unknown_layer() {
    #[derive(Module, Debug)]
    struct Counter {
        seen: RunningState<Tensor<1>>,
    }
    #[derive(Module, Debug)]
    struct Model {
        norm: BatchNorm,
        counter: Counter,
    }
    let strategy = Recording::new(1);
    let build = |device: &Device| {
        let norm = BatchNormConfig::new(4).init(device);
        let seen = RunningState::new(Tensor::zeros([4], device));
        let counter = Counter { seen };
        TrainState::new(Model { norm, counter }, Sgd::new(0.1))
    };
    let mut state = strategy.scope(build).unwrap();
    let mut model = strategy.scope(|device| build(device).model).unwrap();
    let errors = [
        strategy.run(&mut state, |_, _| Ok(())).unwrap_err(),
        strategy.run(&mut model, |_, _| Ok(())).unwrap_err(),
    ];
    for error in errors {
        let text = error.to_string();
        for part in ["the layer `counter`", "`SyncBatchNorm`"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    // Evaluation only reads it.
    strategy
        .run((&state, batch(1, 2)), |_, (state, (x, _))| {
            Ok(state.model.norm.forward(x))
        })
        .unwrap();
}

/// burn moves running statistics to the device of the input, which have autodiff after the first
/// call.
#[test]
fn a_batch_normalization_of_burn_that_is_called_twice() {
    let strategy = Recording::new(1);
    let mut norm = strategy
        .scope(|device| BatchNormConfig::new(4).init(device))
        .unwrap();
    let error = strategy.run((&mut norm, batch(1, 2)), |_, (norm, (x, _))| {
        let x = x * norm.gamma.val().unsqueeze();
        Ok(norm.forward(norm.forward(x)))
    });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::NotCompilable { .. }), "{error}");
}

/// What the second one is divided by depends on the first.
#[test]
fn two_updates_of_one_step_with_a_dynamic_loss_scale() {
    let strategy = Recording::new(2);
    let build = |scale| {
        let build = |device: &Device| {
            TrainState::new(Mlp::new(device), Sgd::new(0.1)).with_loss_scale(scale)
        };
        strategy.scope(build).unwrap()
    };
    let step = |ctx: &ReplicaContext, (state, (x, _)): (&mut TrainState<Mlp>, Batch)| {
        for _ in 0..2 {
            let loss = state.model.forward(x.clone()).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&state.scale_loss(&loss), &state.model)?;
            state.apply_gradients(ctx, gradients)?;
        }
        Ok(())
    };
    let mut state = build(LossScale::dynamic());
    let error = strategy.run((&mut state, batch(2, 4)), step).unwrap_err();
    assert!(matches!(error, Error::NotCompilable { .. }), "{error}");
    assert!(error.to_string().contains("a second update"), "{error}");
    assert!(state.poisoned().is_none(), "nothing has changed");
    // One that never changes is a number of the program.
    let mut state = build(LossScale::fixed(8.0).unwrap());
    strategy.run((&mut state, batch(2, 4)), step).unwrap();
    assert_eq!(state.host_metadata().step(), 2);
}

#[test]
fn an_optimizer_of_burn() {
    let strategy = Recording::new(1);
    let adam = || BurnOptimizer::new(AdamConfig::new(), 0.1);
    let build = |device: &Device| TrainState::new(Mlp::new(device), adam());
    let mut state = strategy.scope(build).unwrap();
    let error = strategy.run(&mut state, |_, _| Ok(())).unwrap_err();
    assert!(
        error.to_string().contains("an optimizer of burn"),
        "{error}"
    );
}

#[test]
fn a_program_that_fails_loses_the_state() {
    let strategy = Recording::new(1);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.1)))
        .unwrap();
    let step = |ctx: &ReplicaContext, (state, (x, _)): (&mut TrainState<Mlp>, Batch)| {
        let loss = state.model.forward(x).sum();
        ctx.loss_is_scaled();
        let gradients = ctx.gradient(&loss, &state.model)?;
        state.apply_gradients(ctx, gradients)
    };
    let step =
        |ctx: &ReplicaContext, args: (&mut TrainState<Mlp>, Batch)| step(ctx, args).map(drop);
    strategy.run((&mut state, batch(1, 4)), step).unwrap();
    *strategy.recorder.fails.lock().unwrap() = true;
    strategy.run((&mut state, batch(1, 4)), step).unwrap_err();
    *strategy.recorder.fails.lock().unwrap() = false;
    let error = strategy.run((&mut state, batch(1, 4)), step).unwrap_err();
    assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    state.resync();
    strategy.run((&mut state, batch(1, 4)), step).unwrap();
}
