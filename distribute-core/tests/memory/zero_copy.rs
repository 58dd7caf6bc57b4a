//! Gradients reach the reduction, and come back from it, in the buffers that burn's backward
//! pass allocated: shown by counting large allocations and by the buffers' addresses.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use distribute_core::collectives::{Buffer, Communicator};
use distribute_core::{
    CrossDeviceOps, DirectAllReduce, Gradients, MirroredStrategy, ReduceOp, Result, Sgd,
    StrategyExt, TrainState,
};

use crate::counting::{LARGE, LARGE_BYTES, alone};

/// Nothing else in a step is as large as the weight.
const INPUTS: usize = 256;
const OUTPUTS: usize = LARGE_BYTES / 4 / INPUTS;

fn large_allocations<R>(body: impl FnOnce() -> R) -> (usize, R) {
    let before = LARGE.with(Cell::get);
    let result = body();
    (LARGE.with(Cell::get) - before, result)
}

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            linear: LinearConfig::new(INPUTS, OUTPUTS).init(device),
        }
    }

    fn loss(&self, device: &Device) -> Tensor<1> {
        self.linear
            .forward(Tensor::<2>::ones([4, INPUTS], device))
            .sum()
    }
}

/// Passes on to the default and notes where the buffers are.
#[derive(Debug, Clone, Default)]
struct Recording {
    seen: Arc<Mutex<Vec<usize>>>,
}

impl CrossDeviceOps for Recording {
    fn name(&self) -> &str {
        "recording"
    }

    fn all_reduce(
        &self,
        communicator: &mut dyn Communicator,
        op: ReduceOp,
        buffers: &mut [Buffer<'_>],
    ) -> Result<()> {
        let addresses = buffers.iter_mut().map(|buffer| match buffer {
            Buffer::F32(values) => values.as_ptr() as usize,
            _ => 0,
        });
        self.seen.lock().unwrap().extend(addresses);
        DirectAllReduce.all_reduce(communicator, op, buffers)
    }
}

fn address(gradients: &Gradients, index: usize) -> usize {
    gradients
        .get(index)
        .unwrap()
        .unwrap()
        .as_slice::<f32>()
        .unwrap()
        .as_ptr() as usize
}

#[test]
fn gradients_are_reduced_where_backward_put_them() {
    let _alone = alone();
    let ops = Recording::default();
    let strategy = MirroredStrategy::builder()
        .replicas(2)
        .cross_device_ops(ops.clone())
        .build()
        .unwrap();
    let mut state = strategy
        .scope(|device| TrainState::new(Net::new(device), Sgd::new(0.1)))
        .unwrap();
    let found = strategy
        .run(&mut state, |ctx, state| {
            let plain_loss = state.model.loss(ctx.device());
            let (plain, _gradients) = large_allocations(|| plain_loss.backward());
            let loss = state.model.loss(ctx.device());
            let (ours, gradients) = large_allocations(|| ctx.gradient(&loss, &state.model));
            let mut gradients = gradients?;
            assert!(
                plain > 0,
                "the counter sees burn's own allocation of the gradient"
            );
            assert_eq!(
                ours, plain,
                "taking the gradients out of burn copies nothing"
            );

            let before = [address(&gradients, 0), address(&gradients, 1)];
            let (copies, reduced) = large_allocations(|| gradients.all_reduce(ctx, ReduceOp::Sum));
            reduced?;
            assert_eq!(copies, 0, "the all-reduce copies nothing");
            assert_eq!(before, [address(&gradients, 0), address(&gradients, 1)]);

            let data = gradients.get(0)?.cloned();
            let from = Tensor::<2>::from_data(data.unwrap(), &ctx.device().clone().inner());
            assert_eq!(
                from.into_data().as_slice::<f32>().unwrap()[0],
                8.0,
                "2 replicas x 4"
            );
            Ok(before.to_vec())
        })
        .unwrap();
    let mut seen = ops.seen.lock().unwrap().clone();
    for address in found.into_values().into_iter().flatten() {
        let position = seen.iter().position(|other| *other == address);
        seen.remove(position.expect("the reduction worked on burn's buffer"));
    }
    assert_eq!(seen.len(), 2, "besides, each replica reduces its flags");
}

#[test]
fn reduced_gradients_enter_burn_without_a_copy() {
    let _alone = alone();
    let device = Device::flex();
    let (_, data) = large_allocations(|| Tensor::<2>::ones([INPUTS, OUTPUTS], &device).into_data());
    let at = data.as_slice::<f32>().unwrap().as_ptr() as usize;
    let (copies, tensor) = large_allocations(|| Tensor::<2>::from_data(data, &device));
    assert_eq!(copies, 0);
    let back = tensor.into_data();
    assert_eq!(back.as_slice::<f32>().unwrap().as_ptr() as usize, at);
}

#[test]
fn gradients_leave_burns_own_type_and_return_to_it_without_a_copy() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let model = Net::new(&device);
    let params = GradientsParams::from_grads(model.loss(&device).backward(), &model);
    let (copies, gradients) = large_allocations(|| Gradients::from_params(params, &model));
    assert_eq!(copies, 0);
    let gradients = gradients.unwrap();
    let at = address(&gradients, 0);
    let (copies, mut params) = large_allocations(|| gradients.into_params(&model).unwrap());
    assert_eq!(copies, 0);
    let back: Tensor<2> = params.remove(model.linear.weight.id).unwrap();
    let back = back.into_data();
    assert_eq!(back.as_slice::<f32>().unwrap().as_ptr() as usize, at);
}
