//! Training with each of the cross-device ops. Their results are compared with TensorFlow's by the
//! crate `conformance`.

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::Tensor;
use distribute_core::{
    CrossDeviceOps, DirectAllReduce, HierarchicalCopy, MirroredStrategy, ReductionToOneDevice, Sgd,
    StrategyExt, TrainState,
};

/// A step with a hand-made gradient per replica; the weights after three updates, of all copies.
fn trained(replicas: usize, ops: impl CrossDeviceOps + 'static) -> Vec<Vec<f32>> {
    let builder = MirroredStrategy::builder().replicas(replicas);
    let strategy = builder.cross_device_ops(ops).build().unwrap();
    let weights = Initializer::Constant { value: 0.5 };
    let layer = LinearConfig::new(3, 2).with_initializer(weights);
    let mut state = strategy
        .scope(|device| TrainState::new(layer.init(device), Sgd::new(0.25).momentum(0.5)))
        .unwrap();
    for step in 0..3 {
        strategy
            .run(&mut state, |ctx, state| {
                let scale = (ctx.replica_id() + step) as f32;
                let input = Tensor::<2>::ones([4, 3], ctx.device()).mul_scalar(scale);
                let loss = state.model.forward(input).sum();
                let gradients = ctx.gradient(&loss, &state.model)?;
                state.apply_gradients(ctx, gradients)?;
                Ok(())
            })
            .unwrap();
    }
    let copies = state.values().unwrap().iter();
    copies
        .map(|state: &TrainState<Linear>| {
            let tensors = state.to_tensors().unwrap();
            tensors
                .values()
                .flat_map(|data| data.iter::<f32>().collect::<Vec<_>>())
                .collect()
        })
        .collect()
}

/// Whole numbers in every gradient, so that all orders of summation give the same bits.
#[test]
fn training_gives_the_same_weights_with_every_cross_device_ops() {
    for replicas in 1..=9 {
        let expected = trained(replicas, DirectAllReduce);
        assert_eq!(expected, vec![expected[0].clone(); replicas]);
        assert_eq!(trained(replicas, ReductionToOneDevice::default()), expected);
        for num_packs in [0, 1, 3] {
            assert_eq!(trained(replicas, HierarchicalCopy { num_packs }), expected);
        }
    }
}
