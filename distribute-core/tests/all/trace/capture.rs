//! What is captured, when, and where the state is afterwards.

use burn::prelude::*;
use distribute_core::trace::InputRole;
use distribute_core::{
    Adam, Mirrored, PerReplica, ReduceOp, ReplicaContext, Result, Sgd, StrategyExt, TrainState,
    dropout,
};

use crate::trace::support::{Mlp, Recording, batch, operations};

type Batch = (Tensor<2>, Tensor<1, Int>);

fn step(ctx: &ReplicaContext, (state, (x, y)): (&mut TrainState<Mlp>, Batch)) -> Result<Tensor<1>> {
    let logits = state.model.forward(x);
    let picked = burn::tensor::activation::log_softmax(logits, 1).gather(1, y.unsqueeze_dim(1));
    let loss = picked.sum().neg().div_scalar(16.0);
    ctx.loss_is_scaled();
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients)?;
    Ok(loss)
}

fn adam(strategy: &Recording) -> Mirrored<TrainState<Mlp>> {
    let build = |device: &Device| TrainState::new(Mlp::new(device), Adam::new(1e-3));
    strategy.scope(build).unwrap()
}

#[test]
fn a_step_is_captured_once_and_its_state_stays_on_the_device() {
    let strategy = Recording::new(2);
    let mut state = adam(&strategy);
    for _ in 0..3 {
        let loss = strategy.run((&mut state, batch(2, 8)), step).unwrap();
        assert_eq!(loss.values().len(), 2);
        assert_eq!(
            strategy
                .reduce(ReduceOp::Sum, loss)
                .unwrap()
                .into_scalar::<f32>(),
            2.0
        );
    }
    assert_eq!(strategy.compiled(), 1);
    // 4 parameters with 2 slots each, sent once.
    assert_eq!(strategy.uploads(), 12);
    // The losses of 2 replicas in 3 steps, and nothing of the state.
    assert_eq!(strategy.reads(), 6);
    assert_eq!(state.host_metadata().step(), 3);
    assert_eq!(strategy.reads(), 6);

    let weight = state.primary().unwrap().model.first.weight.val();
    assert_eq!(weight.into_data().as_slice::<f32>().unwrap(), [1.0; 32]);
    assert_eq!(state.primary().unwrap().step(), 3);
    assert_eq!(
        strategy.reads(),
        6 + 12,
        "copied once, and only when asked for"
    );

    strategy.run((&mut state, batch(2, 8)), step).unwrap();
    assert_eq!(
        strategy.uploads(),
        12,
        "reading does not send the state again"
    );
    assert_eq!(state.primary().unwrap().step(), 4);
}

#[test]
fn the_program_takes_state_batch_and_coefficients_and_donates_the_state() {
    let strategy = Recording::new(2);
    let mut state = adam(&strategy);
    for _ in 0..2 {
        strategy.run((&mut state, batch(2, 8)), step).unwrap();
    }
    let captured = strategy.last();
    let roles = |role| {
        captured
            .inputs
            .iter()
            .filter(|input| input.role == role)
            .count()
    };
    assert_eq!(roles(InputRole::State), 12);
    assert_eq!(roles(InputRole::Batch), 2);
    assert_eq!(roles(InputRole::Host), 1);
    assert_eq!(captured.outputs.len(), 13);
    let mut donated: Vec<_> = captured
        .outputs
        .iter()
        .filter_map(|out| out.donated_from)
        .collect();
    assert_eq!(donated.len(), 12);
    for (output, input) in captured.outputs.iter().zip(&donated) {
        assert_eq!(output.spec, captured.inputs[*input].spec);
    }
    donated.sort_unstable();
    donated.dedup();
    assert_eq!(donated.len(), 12, "each input is given away once");
    assert!(
        captured.graph.values.is_empty(),
        "no value of a batch is in the program"
    );

    let operations = operations(&captured);
    let reductions = operations.iter().filter(|op| op.starts_with("distribute."));
    assert_eq!(
        reductions.collect::<Vec<_>>(),
        ["distribute.all_reduce_sum/4"]
    );

    // Adam's corrected learning rate of steps 1 and 2.
    let given = strategy.recorder.arguments.lock().unwrap().clone();
    let rate = |step: i32| 1e-3 * (1.0 - 0.999_f64.powi(step)).sqrt() / (1.0 - 0.9_f64.powi(step));
    for (index, step) in [(0, 1), (1, 2)] {
        let found = f64::from(given[index][0].as_slice::<f32>().unwrap()[0]);
        assert!((found / rate(step) - 1.0).abs() < 1e-6, "{found}");
    }
}

#[test]
fn one_replica_reduces_nothing() {
    let strategy = Recording::new(1);
    let mut state = adam(&strategy);
    strategy.run((&mut state, batch(1, 8)), step).unwrap();
    let operations = operations(&strategy.last());
    assert!(!operations.iter().any(|op| op.starts_with("distribute.")));
}

#[test]
fn the_graph_of_a_small_step() {
    let strategy = Recording::new(2);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.1)))
        .unwrap();
    strategy.run((&mut state, batch(2, 8)), step).unwrap();
    insta::assert_snapshot!(operations(&strategy.last()).join("\n"));
}

#[test]
fn other_shapes_other_numbers_and_other_steps_have_their_own_programs() {
    let strategy = Recording::new(2);
    let mut state = adam(&strategy);
    let scaled = |ctx: &ReplicaContext,
                  (state, data, factor): (&mut TrainState<Mlp>, Batch, f32)| {
        Ok(step(ctx, (state, data))?.mul_scalar(factor))
    };
    for factor in [0.5_f32, 0.5, 2.0] {
        strategy
            .run((&mut state, batch(2, 8), factor), scaled)
            .unwrap();
    }
    assert_eq!(
        strategy.compiled(),
        2,
        "a plain number is fixed in the program"
    );
    strategy
        .run((&mut state, batch(2, 5), 2.0_f32), scaled)
        .unwrap();
    assert_eq!(strategy.compiled(), 3, "a short last batch");
    strategy.run((&mut state, batch(2, 5)), step).unwrap();
    assert_eq!(strategy.compiled(), 4, "another step");
    // A step cannot say what it has captured, so another state has programs of its own.
    let mut other = adam(&strategy);
    strategy.run((&mut other, batch(2, 5)), step).unwrap();
    assert_eq!(strategy.compiled(), 5);
}

#[test]
fn a_second_trial_has_its_own_hyper_parameters() {
    let strategy = Recording::new(1);
    let scalars = |factor: f32| {
        let mut state = adam(&strategy);
        strategy
            .run((&mut state, batch(1, 4)), |ctx, (state, data)| {
                Ok(step(ctx, (state, data))?.mul_scalar(factor))
            })
            .unwrap();
        format!("{:?}", strategy.last().graph.graph.operations)
    };
    assert!(scalars(3.25).contains("3.25"));
    let second = scalars(7.75);
    assert!(second.contains("7.75") && !second.contains("3.25"));
}

#[test]
fn a_new_learning_rate_is_not_a_new_program() {
    let strategy = Recording::new(1);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.25)))
        .unwrap();
    strategy.run((&mut state, batch(1, 8)), step).unwrap();
    let changed = state.update(|state| {
        state.set_learning_rate(0.125);
        Ok(())
    });
    changed.unwrap();
    strategy.run((&mut state, batch(1, 8)), step).unwrap();
    assert_eq!(strategy.compiled(), 1);
    let given = strategy.recorder.arguments.lock().unwrap().clone();
    let rates: Vec<f32> = given
        .iter()
        .map(|host| host[0].as_slice::<f32>().unwrap()[0])
        .collect();
    assert_eq!(rates, [0.25, 0.125]);
    assert_eq!(state.primary().unwrap().step(), 2);
}

#[test]
fn a_learning_rate_that_the_step_sets_counts_from_there() {
    let strategy = Recording::new(1);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Sgd::new(0.25)))
        .unwrap();
    for rate in [0.25, 0.5, 0.5, 0.0625, 0.25] {
        strategy
            .run(
                (&mut state, batch(1, 8), rate),
                |ctx, (state, data, rate)| {
                    state.set_learning_rate(rate);
                    step(ctx, (state, data))
                },
            )
            .unwrap();
        assert_eq!(state.host_metadata().learning_rate(), rate);
    }
    let given = strategy.recorder.arguments.lock().unwrap().clone();
    let rates: Vec<f32> = given
        .iter()
        .map(|host| host[0].as_slice::<f32>().unwrap()[0])
        .collect();
    assert_eq!(rates, [0.25, 0.5, 0.5, 0.0625, 0.25]);
}

#[test]
fn micro_batches_have_one_program_for_each_position() {
    let strategy = Recording::new(2);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Adam::new(1e-3)).accumulate(3))
        .unwrap();
    for round in 0..2 {
        for position in 0..3 {
            strategy.run((&mut state, batch(2, 8)), step).unwrap();
            let waiting = position < 2;
            assert_eq!(state.host_metadata().is_accumulating(), waiting);
            let done = round + usize::from(!waiting);
            assert_eq!(state.host_metadata().step(), done as u64);
        }
    }
    assert_eq!(strategy.compiled(), 3);
    let steps = strategy.recorder.steps.lock().unwrap();
    let reductions = |index: usize| {
        let operations = operations(&steps[index]);
        operations
            .iter()
            .filter(|op| op.starts_with("distribute."))
            .count()
    };
    assert_eq!([reductions(0), reductions(1), reductions(2)], [0, 0, 1]);
    drop(steps);
    // In the middle of an accumulation the sums come home with the state and go back.
    strategy.run((&mut state, batch(2, 8)), step).unwrap();
    assert!(state.primary().unwrap().is_accumulating());
    let changed = state.update(|state| {
        state.set_learning_rate(1e-4);
        Ok(())
    });
    changed.unwrap();
    strategy.run((&mut state, batch(2, 8)), step).unwrap();
    assert_eq!(strategy.compiled(), 3);
}

#[test]
fn clipping_and_several_updates_are_part_of_the_graph() {
    let strategy = Recording::new(2);
    let mut state = strategy
        .scope(|device| TrainState::new(Mlp::new(device), Adam::new(1e-3)).clip_by_global_norm(1.0))
        .unwrap();
    for _ in 0..2 {
        strategy
            .run((&mut state, batch(2, 8)), |ctx, (state, (x, y))| {
                step(ctx, (&mut *state, (x.clone(), y.clone())))?;
                step(ctx, (state, (x, y)))
            })
            .unwrap();
    }
    assert_eq!(state.host_metadata().step(), 4);
    let given = strategy.recorder.arguments.lock().unwrap().clone();
    let rate = |step: i32| 1e-3 * (1.0 - 0.999_f64.powi(step)).sqrt() / (1.0 - 0.9_f64.powi(step));
    for (call, host) in given.iter().enumerate() {
        assert_eq!(host.len(), 2, "one coefficient for each update");
        for (update, data) in host.iter().enumerate() {
            let found = f64::from(data.as_slice::<f32>().unwrap()[0]);
            let step = i32::try_from(2 * call + update + 1).unwrap();
            assert!(
                (found / rate(step) - 1.0).abs() < 1e-6,
                "{found} in step {step}"
            );
        }
    }
}

#[test]
fn a_state_that_is_only_read_is_neither_donated_nor_changed() {
    let strategy = Recording::new(2);
    let mut state = adam(&strategy);
    strategy.run((&mut state, batch(2, 8)), step).unwrap();
    let before = strategy.uploads();
    for _ in 0..2 {
        strategy
            .run((&state, batch(2, 8)), |_, (state, (x, _))| {
                Ok(state.model.forward(x))
            })
            .unwrap();
    }
    assert_eq!(strategy.compiled(), 2);
    assert_eq!(strategy.uploads(), before);
    let captured = strategy.last();
    assert!(
        captured
            .outputs
            .iter()
            .all(|output| output.donated_from.is_none())
    );
    assert_eq!(captured.inputs.len(), 5, "slots and labels are not used");
    assert_eq!(state.primary().unwrap().step(), 1);
}

#[test]
fn results_may_be_arguments_numbers_and_one_tensor_twice() {
    let strategy = Recording::new(2);
    let data = PerReplica::new(vec![
        Tensor::<1>::from_floats([1.0, 2.0], &Device::flex()),
        Tensor::<1>::from_floats([3.0, 4.0], &Device::flex()),
    ]);
    let found = strategy
        .run(data, |_, x| {
            let sum = x.clone().sum();
            let rest = (vec![Some(sum.clone()), None], "text".to_string(), true);
            Ok((x, (sum.clone(), sum), 7_i64, rest))
        })
        .unwrap();
    assert_eq!(strategy.last().outputs.len(), 1);
    for (replica, (x, (first, second), number, (list, text, yes))) in
        found.into_values().into_iter().enumerate()
    {
        let expected = [[1.0, 2.0], [3.0, 4.0]][replica];
        assert_eq!(x.into_data().as_slice::<f32>().unwrap(), expected);
        assert_eq!(first.into_scalar::<f32>(), 1.0);
        assert_eq!(second.into_scalar::<f32>(), 1.0);
        assert_eq!((number, text.as_str(), yes), (7, "text", true));
        assert_eq!(
            list.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, false]
        );
    }
}

#[test]
fn collectives_and_random_numbers_are_operations() {
    let strategy = Recording::new(2);
    let mut state = adam(&strategy);
    let data = || PerReplica::new(vec![Tensor::<2>::ones([2, 4], &Device::flex()); 2]);
    for _ in 0..2 {
        strategy
            .run((&mut state, data()), |ctx, (state, x)| {
                let kept = dropout(x.clone(), 0.5, &mut ctx.rng(1, state.step()));
                let (largest, two) = ctx.all_reduce(ReduceOp::Max, (x.clone(), 2.0_f32))?;
                assert_eq!(two, 2.0);
                let total = ctx.all_reduce_tensor(ReduceOp::Sum, state.model.forward(kept))?;
                let loss = total.sum() + largest.sum();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(ctx.replica_id_tensor())
            })
            .unwrap();
    }
    assert_eq!(strategy.compiled(), 1);
    let operations = operations(&strategy.last());
    let ours: Vec<_> = operations
        .iter()
        .filter(|op| op.starts_with("distribute."))
        .collect();
    let expected = [
        "distribute.all_reduce_max/1",
        "distribute.all_reduce_sum/1",
        "distribute.all_reduce_sum/1",
        "distribute.all_reduce_sum/4",
        "distribute.replica_id/0",
    ];
    assert_eq!(ours, expected);
    let given = strategy.recorder.arguments.lock().unwrap().clone();
    let keys: Vec<_> = given
        .iter()
        .flat_map(|host| {
            host.iter()
                .filter(|data| data.dtype() == burn::tensor::DType::I32)
        })
        .collect();
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1], "every step has its own random numbers");
}
