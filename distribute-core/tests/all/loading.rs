//! Tensors of other programs in a part of a model.

use std::collections::BTreeMap;

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use distribute_core::{
    Adam, MirroredStrategy, StrategyExt, TrainState, checkpoint, load_parameters,
};

#[derive(Module, Debug)]
struct Net {
    body: Linear,
    norm: BatchNorm,
    count: Param<Tensor<1, Int>>,
    head: Linear,
}

fn net(device: &Device) -> Net {
    Net {
        body: LinearConfig::new(3, 4).init(device).no_grad(),
        norm: BatchNormConfig::new(4).init(device),
        count: Param::initialized(ParamId::new(), Tensor::from_data([7], device)),
        head: LinearConfig::new(4, 2).init(device),
    }
}

fn floats(count: usize, shape: &[usize], dtype: DType) -> TensorData {
    let values: Vec<f32> = (0..count).map(|i| i as f32 * 0.25 - 1.0).collect();
    let data = TensorData::new(values, shape.to_vec());
    data.try_cast(dtype).unwrap()
}

fn named(all: &[(&str, &TensorData)]) -> BTreeMap<String, TensorData> {
    let all = all.iter();
    all.map(|(name, data)| (name.to_string(), (*data).clone()))
        .collect()
}

#[test]
fn a_part_is_taken_over_and_the_rest_stays_on_all_replicas() {
    let weight = floats(12, &[3, 4], DType::F16);
    let (bias, variance) = (floats(4, &[4], DType::F32), floats(4, &[4], DType::F64));
    let count = TensorData::from([9_i32]);
    let tensors = named(&[
        ("body.weight", &weight),
        ("body.bias", &bias),
        ("norm.running_var", &variance),
        ("count", &count),
        ("classifier.weight", &bias),
    ]);
    for replicas in [1, 2, 3] {
        let builder = MirroredStrategy::builder().replicas(replicas);
        let strategy = builder.build().unwrap();
        let mut kept = None;
        let state = strategy.try_scope(|device| {
            let fresh = net(device);
            kept = Some(fresh.head.weight.val().into_data());
            let (model, status) = load_parameters(fresh, &tensors)?;
            let loaded = ["body.weight", "body.bias", "norm.running_var", "count"];
            assert_eq!(status.loaded, loaded);
            let missing = [
                "norm.gamma",
                "norm.beta",
                "norm.running_mean",
                "head.weight",
                "head.bias",
            ];
            assert_eq!(status.missing, missing);
            assert_eq!(status.unused, ["classifier.weight"]);
            for error in [
                status.assert_consumed(),
                status.assert_existing_objects_matched(),
            ] {
                let text = error.unwrap_err().to_string();
                let names = text.contains("`classifier.weight`") && text.contains("`head.bias`");
                assert!(names && text.contains("4 were taken over"), "{text}");
            }
            Ok(TrainState::new(model, Adam::new(0.1)))
        });
        let state = state.unwrap();
        for copy in state.values().unwrap() {
            let saved = copy.to_tensors().unwrap();
            let is = |name: &str, data: &TensorData| {
                let data = data.clone().try_cast(DType::F32).unwrap();
                assert_eq!(saved[name], data, "{name}");
            };
            is("model/body.weight", &weight);
            is("model/body.bias", &bias);
            is("model/norm.running_var", &variance);
            is("model/head.weight", kept.as_ref().unwrap());
            assert_eq!(saved["model/count"].iter::<i64>().collect::<Vec<_>>(), [9]);
            // Frozen as before, and the others as before, too.
            let trained = ["norm.gamma", "norm.beta", "head.weight", "head.bias"];
            assert_eq!(copy.parameter_names(), trained);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_name_and_changes_nothing() {
    let device = Device::flex().autodiff();
    let (own, bias) = (net(&device), floats(4, &[4], DType::F32));
    let before = own.clone().into_record().into_bytes().unwrap();
    let transposed = floats(12, &[4, 3], DType::F32);
    let whole = TensorData::from([1_i64, 2, 3, 4]);
    let cases = [
        (
            ("body.weight", &transposed),
            "`body.weight` has shape [4, 3]",
        ),
        (
            ("norm.gamma", &whole),
            "`norm.gamma` has shape [4] and type i64",
        ),
        (("count", &bias), "`count` has shape [4] and type f32"),
        (("model.body.bias", &bias), "of the names `model.body.bias`"),
    ];
    for ((name, data), wanted) in cases {
        let mut tensors = named(&[(name, data)]);
        if name != "model.body.bias" {
            tensors.insert("body.bias".to_string(), bias.clone());
        }
        let error = load_parameters(own.clone(), &tensors).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let after = own.into_record().into_bytes().unwrap();
    assert_eq!(before[..], after[..]);
}

/// A clone shares running statistics in burn; loading changes no other model's.
#[test]
fn the_statistics_of_a_clone_stay() {
    let device = Device::flex().autodiff();
    let own = net(&device);
    let mean = floats(4, &[4], DType::F32);
    let tensors = named(&[("norm.running_mean", &mean)]);
    let (loaded, status) = load_parameters(own.clone(), &tensors).unwrap();
    status.assert_consumed().unwrap();
    let values = |net: &Net| net.norm.running_mean.value().into_data();
    assert_eq!(values(&loaded), mean);
    assert!(values(&own).iter::<f32>().all(|value| value == 0.0));
}

#[test]
fn files_that_are_none_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let missing = checkpoint::read_safetensors(&path).unwrap_err();
    assert!(
        missing.to_string().contains("weights.safetensors"),
        "{missing}"
    );
    for bytes in [
        &b""[..],
        b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
        b"\x02\0\0\0\0\0\0\0{}more",
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = checkpoint::read_safetensors(&path).unwrap_err();
        assert!(error.is_damage(), "{error}");
    }
    assert!(checkpoint::read_safetensors(folder.path()).is_err());
}
