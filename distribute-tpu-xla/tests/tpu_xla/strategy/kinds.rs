//! Parameters of every kind in a compiled step, and clipping by norms that are no ordinary numbers:
//! as under `MirroredStrategy`.

use burn::module::{Param, ParamId};
use burn::prelude::*;
use burn::tensor::DType;
use burn::tensor::FloatDType::{self, BF16, F16, F32, F64};
use distribute_core::{
    Adam, MirroredStrategy, PerReplica, ReplicaContext, Replicate, Result, Sgd, Strategy,
    StrategyExt, TensorData, TrainState,
};

use crate::strategy::support::{Data, assert_close, strategy, within};

/// Rows of `weight` are chosen by `ids`, columns are left out by `mask`.
#[derive(Module, Debug)]
struct Kinds {
    weight: Param<Tensor<2>>,
    frozen: Param<Tensor<1>>,
    ids: Param<Tensor<1, Int>>,
    mask: Param<Tensor<1, Bool>>,
}

impl Kinds {
    fn new(device: &Device) -> Self {
        let weight: Vec<f32> = (0..12).map(|i| 0.3 * i as f32 - 1.5).collect();
        let weight = Tensor::from_data(TensorData::new(weight, [4, 3]), device);
        let frozen = Tensor::from_floats([0.5, -1.0, 2.0], device).set_require_grad(false);
        let mask = TensorData::from([true, false, false]);
        Self {
            weight: Param::from_tensor(weight),
            frozen: Param::initialized(ParamId::new(), frozen),
            ids: Param::initialized(ParamId::new(), Tensor::from_ints([3, 1], device)),
            mask: Param::initialized(ParamId::new(), Tensor::from_data(mask, device)),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let rows = self.weight.val().select(0, self.ids.val());
        let y = x.matmul(rows) + self.frozen.val().unsqueeze();
        let left_out = self.mask.val().unsqueeze::<2>().expand(y.shape());
        y.mask_fill(left_out, 0.25)
    }
}

type Batch = (Tensor<2>, Tensor<1, Int>);

/// Trains the chosen rows; the next step chooses the rows behind them and leaves out the others.
fn step(
    ctx: &ReplicaContext,
    (state, (x, _)): (&mut TrainState<Kinds>, Batch),
) -> Result<Tensor<1>> {
    let y = state.model.forward(x);
    let loss = (y.clone() * y).sum();
    ctx.loss_is_scaled();
    let gradients = ctx.gradient(&loss, &state.model)?;
    state.apply_gradients(ctx, gradients)?;
    let model = &mut state.model;
    model.ids = model
        .ids
        .clone()
        .map(|ids| ids.add_scalar(1).remainder_scalar(4));
    model.mask = model.mask.clone().map(Tensor::bool_not);
    Ok(loss)
}

fn chosen_and_left_out(replicas: usize) {
    let Some(tpu) = strategy(replicas) else {
        return;
    };
    let cpu = MirroredStrategy::builder().replicas(replicas);
    let cpu = cpu.build().unwrap();
    let device = Device::flex().autodiff();
    let state = TrainState::new(Kinds::new(&device), Adam::new(0.05));
    let mut ends = Vec::new();
    for strategy in [&tpu as &dyn Strategy, &cpu] {
        let mut state = strategy.scope(|device| state.replicate(device)).unwrap();
        let mut data = Data::new(11, replicas, &[2], 2);
        for _ in 0..5 {
            let batch = data.batch::<2>(4);
            strategy.run((&mut state, batch), step).unwrap();
        }
        ends.push(state.primary().unwrap().to_tensors().unwrap());
    }
    assert_close(&ends[0], &ends[1], 1e-5);
    // Changed five times, from 3 and 1, and from left out, kept, kept.
    let numbers = |name: &str| ends[0][name].iter::<i64>().collect::<Vec<_>>();
    assert_eq!(numbers("model/ids"), [0, 2]);
    assert_eq!(numbers("model/mask"), [0, 1, 1]);
}

#[test]
fn integers_and_bools_are_used_and_changed() {
    within(120, || [1, 2].into_iter().for_each(chosen_and_left_out));
}

/// The gradient of `sum(x^3)` with respect to an argument that was made a leaf before the step.
#[test]
fn an_argument_that_is_given_away_stays_a_leaf() {
    within(120, || {
        let Some(tpu) = strategy(2) else { return };
        let device = Device::flex().autodiff();
        let part = |x: [f32; 2]| Tensor::<1>::from_floats(x, &device).require_grad();
        let parts = PerReplica::new(vec![part([1.0, 2.0]), part([-1.0, 0.5])]);
        let gradient = |ctx: &ReplicaContext, x: Tensor<1>| {
            let leaf = vec![Param::initialized(ParamId::new(), x.clone())];
            ctx.gradient(&x.powi_scalar(3).sum(), &leaf)
        };
        let found = tpu.run(parts, gradient).unwrap().into_values();
        let found = found.iter().map(|one| one.get(0).unwrap().unwrap());
        let found: Vec<Vec<f32>> = found.map(|one| one.iter().collect()).collect();
        assert_eq!(found, [[3.0, 12.0], [3.0, 0.75]]);
    });
}

#[derive(Module, Debug)]
struct Weight {
    weight: Param<Tensor<1>>,
}

/// The weights, from ones, after one update with the summed gradient `each` from each replica.
fn updated(strategy: &dyn Strategy, dtype: FloatDType, each: [f32; 3], clip: f64) -> Vec<f32> {
    let build = |device: &Device| {
        let ones = Tensor::<1>::ones([3], (device, DType::from(dtype)));
        let weight = Param::from_tensor(ones);
        TrainState::new(Weight { weight }, Sgd::new(0.5)).clip_by_global_norm(clip)
    };
    let mut state = strategy.scope(build).unwrap();
    let x = Tensor::<1>::from_floats(each, &Device::flex()).cast(dtype);
    let x = PerReplica::new(vec![x; strategy.num_replicas_in_sync()]);
    strategy
        .run((&mut state, x), |ctx, (state, x)| {
            let loss = (state.model.weight.val() * x).sum();
            ctx.loss_is_scaled();
            let gradients = ctx.gradient(&loss, &state.model)?;
            state.apply_gradients(ctx, gradients).map(drop)
        })
        .unwrap();
    let tensors = state.primary().unwrap().to_tensors().unwrap();
    tensors["model/weight"].iter::<f32>().collect()
}

/// What is clipped: type, gradient of each of two replicas, largest norm, expected weights.
type Clipped = (FloatDType, [f32; 3], f64, Option<[f32; 3]>);

const NAN: Option<[f32; 3]> = Some([f32::NAN; 3]);

/// The norm is the square root of a sum of squares, which f16 and f32 cannot always hold.
const NORMS: [Clipped; 11] = [
    (F16, [300.0, 400.0, 0.0], 1.0, Some([0.7, 0.6, 1.0])),
    (BF16, [300.0, 400.0, 0.0], 1.0, Some([0.7, 0.6, 1.0])),
    // Squares that are 0 in f16, and a norm that is not reached.
    (F16, [3e-4, 4e-4, 0.0], 1e-4, None),
    (F16, [3.0, -4.0, 0.0], 20.0, None),
    // The sum over the replicas is infinite.
    (F16, [6e4, 1.0, 0.0], 1.0, NAN),
    (F32, [f32::INFINITY, 1.0, 0.0], 1.0, NAN),
    (BF16, [f32::NEG_INFINITY, 1.0, 0.0], 1.0, NAN),
    (F32, [0.0, f32::NAN, 1.0], 1.0, NAN),
    // Squares that are infinite in f32.
    (F32, [3e25, 4e25, 0.0], 1.0, Some([0.7, 0.6, 1.0])),
    (F64, [3e25, 4e25, 0.0], 1.0, Some([0.7, 0.6, 1.0])),
    (F32, [0.0; 3], 1.0, Some([1.0; 3])),
];

fn clipped((dtype, each, clip, expected): Clipped) {
    let Some(tpu) = strategy(2) else { return };
    let cpu = MirroredStrategy::builder().replicas(2).build().unwrap();
    let found = updated(&tpu, dtype, each, clip);
    let eager = updated(&cpu, dtype, each, clip);
    let tolerance = match dtype {
        BF16 => 8e-3,
        F16 => 1e-3,
        _ => 1e-6,
    };
    let close = |expected: &[f32]| {
        let same = |a: f32, b: f32| (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance;
        let mut pairs = found.iter().zip(expected);
        pairs.all(|(a, b)| same(*a, *b))
    };
    assert!(
        close(&eager),
        "{dtype:?} {each:?}: {found:?}, eager {eager:?}"
    );
    if let Some(expected) = expected {
        assert!(close(&expected), "{dtype:?} {each:?}: {found:?}");
    }
}

#[test]
fn clipping_by_norms_that_are_no_ordinary_numbers() {
    within(300, || NORMS.into_iter().for_each(clipped));
}
