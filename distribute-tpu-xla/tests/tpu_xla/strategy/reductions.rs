//! Reductions over the replicas inside a step, with their gradients, and outside.

use burn::prelude::*;
use distribute_core::{
    MirroredStrategy, PerReplica, ReduceOp, Result, Sgd, Strategy, StrategyExt, TrainState,
};

use crate::strategy::models::Mlp;
use crate::strategy::support::{Data, assert_close, strategy, within};

#[test]
fn reductions_inside_and_outside_of_a_step() {
    within(120, || {
        let Some(tpu) = strategy(4) else {
            return;
        };
        let part = |id: usize| Tensor::<1>::from_floats([id as f32, 1.0], &Device::flex());
        let input = || PerReplica::new((0..4).map(part).collect());
        let found = tpu
            .run(input(), |ctx, x| {
                let sum = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
                let mean = ctx.all_reduce(ReduceOp::Mean, x.clone())?;
                let largest = ctx.all_reduce(ReduceOp::Max, x)?;
                Ok(((sum, mean), (largest, ctx.replica_id_tensor()), 2_i64))
            })
            .unwrap();
        for (replica, ((sum, mean), (largest, id), two)) in
            found.into_values().into_iter().enumerate()
        {
            assert_eq!(sum.into_data().try_to_vec::<f32>().unwrap(), [6.0, 4.0]);
            assert_eq!(mean.into_data().try_to_vec::<f32>().unwrap(), [1.5, 1.0]);
            assert_eq!(largest.into_data().try_to_vec::<f32>().unwrap(), [3.0, 1.0]);
            assert_eq!(id.into_scalar::<i64>(), replica as i64);
            assert_eq!(two, 2);
        }
        let doubled = |value: Tensor<1>| -> Result<Tensor<1>> { Ok(value * 2.0) };
        let found = tpu.run(input(), |_, x| doubled(x)).unwrap();
        let gathered = tpu.gather(found, 0).unwrap().into_data();
        assert_eq!(
            gathered.try_to_vec::<f32>().unwrap(),
            [0.0, 2.0, 2.0, 2.0, 4.0, 2.0, 6.0, 2.0]
        );
    });
}

/// Every operation, of floats and integers, as under `MirroredStrategy`.
#[test]
fn every_operation_inside_of_a_step() {
    fn results<S: Strategy>(strategy: &S, op: ReduceOp) -> Vec<Vec<f64>> {
        let device = Device::flex();
        let part = |id: usize| {
            let id = id as f32;
            let floats = [[id - 1.5, 0.5 * id + 1.0, -id], [2.0, f32::NAN, id]];
            let ints = [id as i64 - 1, 3, -(id as i64) - 1];
            (
                Tensor::<2>::from_floats(floats, &device),
                Tensor::<1, Int>::from_ints(ints, &device),
            )
        };
        let parts = (0..strategy.num_replicas_in_sync()).map(part);
        let input = PerReplica::new(parts.collect());
        let step = move |ctx: &distribute_core::ReplicaContext,
                         ((x, y),): ((Tensor<2>, Tensor<1, Int>),)| {
            let x = ctx.all_reduce(op, x)?;
            // The mean of integers is none, so it is refused in a compiled step.
            let y = match op {
                ReduceOp::Mean => y,
                op => ctx.all_reduce(op, y)?,
            };
            Ok((x, y))
        };
        let found = strategy.run((input,), step).unwrap().into_values();
        let numbers = |(x, y): (Tensor<2>, Tensor<1, Int>)| {
            let x: Vec<f64> = x.into_data().iter::<f64>().collect();
            [x, y.into_data().iter::<f64>().collect()].concat()
        };
        found.into_iter().map(numbers).collect()
    }
    within(120, || {
        for replicas in [1, 4] {
            let cpu = MirroredStrategy::builder()
                .replicas(replicas)
                .build()
                .unwrap();
            for op in ReduceOp::ALL {
                // A step keeps what it captured in its first call, so each has its own strategy.
                let Some(tpu) = strategy(replicas) else {
                    return;
                };
                let (found, expected) = (results(&tpu, op), results(&cpu, op));
                let pairs = found.iter().flatten().zip(expected.iter().flatten());
                for (a, b) in pairs {
                    let same = (a.is_nan() && b.is_nan()) || (a - b).abs() < 1e-6;
                    assert!(same, "{op}: {found:?}, expected {expected:?}");
                }
            }
        }
    });
}

/// A loss that depends on the mean over all replicas, as synchronized normalization does.
#[test]
fn gradients_flow_through_an_all_reduce() {
    within(120, || {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let Some(tpu) = strategy(4) else { return };
            let cpu = MirroredStrategy::builder().replicas(4).build().unwrap();
            let model = Mlp::new(&Device::flex().autodiff());
            let step = move |ctx: &distribute_core::ReplicaContext,
                             (state, (x, _)): (
                &mut TrainState<Mlp>,
                (Tensor<2>, Tensor<1, Int>),
            )| {
                let y = state.model.forward(x);
                let center = ctx.all_reduce_tensor(op, y.clone().mean_dim(0))?;
                let loss = (y - center.mul_scalar(0.3)).powi_scalar(2).mean();
                ctx.loss_is_scaled();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(loss)
            };
            let mut ends = Vec::new();
            let build = || TrainState::new(model.clone(), Sgd::new(0.05));
            for strategy in [&tpu as &dyn Strategy, &cpu] {
                let state = build();
                let mut state = strategy
                    .scope(|device| distribute_core::Replicate::replicate(&state, device))
                    .unwrap();
                let mut data = Data::new(5, 4, &[12], 5);
                for _ in 0..5 {
                    strategy
                        .run((&mut state, data.batch::<2>(6)), step)
                        .unwrap();
                }
                ends.push(state.primary().unwrap().to_tensors().unwrap());
            }
            assert_close(&ends[0], &ends[1], 1e-5);
        }
    });
}
