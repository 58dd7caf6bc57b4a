//! Gradients and thresholds of every float type.

use burn::module::{Module, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use distribute_core::metric::BinaryAccuracy;
use distribute_core::{DefaultStrategy, Gradients, StrategyExt};

#[derive(Module, Debug)]
struct Two {
    left: Param<Tensor<1>>,
    right: Param<Tensor<1>>,
}

/// Gradients with these values, of one model, whose parameters have this type.
fn gradients(dtype: FloatDType, left: [f32; 2], right: [f32; 1]) -> Gradients {
    let device = Device::flex();
    let typed = |data: TensorData| {
        let dtype = DType::from(dtype);
        Tensor::<1>::from_data(data.convert_dtype(dtype), (&device, dtype))
    };
    let tracked = |data| Tensor::from_inner(typed(data)).require_grad();
    let model = Two {
        left: Param::initialized(ParamId::from(1), tracked(TensorData::from(left))),
        right: Param::initialized(ParamId::from(2), tracked(TensorData::from(right))),
    };
    let mut params = GradientsParams::new();
    params.register(model.left.id, typed(TensorData::from(left)));
    params.register(model.right.id, typed(TensorData::from(right)));
    Gradients::from_params(params, &model).unwrap()
}

fn values(gradients: &Gradients) -> Vec<f32> {
    let all = (0..gradients.len()).filter_map(|index| gradients.get(index).unwrap());
    all.flat_map(|data| data.iter::<f32>().collect::<Vec<_>>())
        .collect()
}

const TYPES: [FloatDType; 4] = [
    FloatDType::F64,
    FloatDType::F32,
    FloatDType::F16,
    FloatDType::BF16,
];

#[test]
fn gradients_of_every_float_type_are_added_up_and_clipped() {
    for dtype in TYPES {
        let mut sum = gradients(dtype, [1.0, 2.0], [0.5]);
        sum.accumulate(gradients(dtype, [2.0, 2.0], [-0.5]))
            .unwrap();
        assert_eq!(values(&sum), [3.0, 4.0, 0.0], "{dtype:?}");
        assert_eq!(sum.get(0).unwrap().unwrap().dtype(), DType::from(dtype));
        assert_eq!(sum.global_norm().unwrap(), 5.0);
        assert_eq!(sum.clip_by_global_norm(2.5).unwrap(), 5.0);
        assert_eq!(values(&sum), [1.5, 2.0, 0.0], "{dtype:?}");
    }
    let mut wrong = gradients(FloatDType::F32, [1.0, 2.0], [0.5]);
    let error = wrong.accumulate(gradients(FloatDType::F16, [1.0, 2.0], [0.5]));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("f16") && error.contains("f32"), "{error}");
}

/// As `tf.clip_by_global_norm`, and as a captured step: NaN cannot be left out, so it is in all.
#[test]
fn clipping_by_a_norm_that_is_not_finite_gives_nan_everywhere() {
    for dtype in TYPES {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut found = gradients(dtype, [1.0, wrong], [0.5]);
            let norm = found.clip_by_global_norm(1.0).unwrap();
            assert!(!norm.is_finite());
            let found = values(&found);
            assert!(found.iter().all(|value| value.is_nan()), "{found:?}");
        }
    }
}

#[test]
fn what_is_not_finite_is_found_in_every_float_type() {
    for dtype in TYPES {
        let finite = gradients(dtype, [1.0, -2.0], [0.5]);
        assert!(finite.are_finite().unwrap());
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (left, right) in [([1.0, wrong], [0.5]), ([1.0, 2.0], [wrong])] {
                let found = gradients(dtype, left, right);
                assert!(!found.are_finite().unwrap(), "{dtype:?} {wrong}");
            }
        }
    }
}

#[test]
fn thresholds_are_compared_in_the_type_of_the_predictions() {
    let strategy = DefaultStrategy::new();
    for dtype in TYPES {
        for threshold in [0.1, 0.2, 0.3, 0.5, 0.7] {
            let metric = strategy.metric(BinaryAccuracy::default().threshold(threshold));
            strategy
                .run((), |ctx, ()| {
                    let at = TensorData::from([threshold]).convert_dtype(DType::from(dtype));
                    let options = (ctx.device(), DType::from(dtype));
                    let scores = Tensor::<1>::from_data(at, options);
                    // What is at the threshold is not above it.
                    let labels = Tensor::<1>::zeros([1], ctx.device());
                    metric.update_state(ctx, &labels, &scores)
                })
                .unwrap();
            let found = metric.result().unwrap();
            assert_eq!(found, 1.0, "{threshold} as {dtype:?}");
        }
    }
}
