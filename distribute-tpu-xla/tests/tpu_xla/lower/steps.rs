//! Whole training steps: forward, loss, gradients and update of an MLP, a CNN and a transformer
//! encoder, on flex and captured.

use std::any::Any;
use std::marker::PhantomData;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig,
};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d,
};
use burn::tensor::{Device, Int, Tensor, TensorData, TensorId, activation};
use burn_flex::Flex;
use distribute_core::burn_internals::autodiff::Autodiff;
use distribute_core::burn_internals::backend::AutodiffBackend;
use distribute_core::burn_internals::capture::CaptureBackend;
use distribute_tpu_xla::lower::{GraphInput, LowerOptions, lower};

use crate::lower::harness::{Data, Tolerance, assert_close, client, execute};
use crate::strategy::models::with_fixed_weights;

/// How a backend's tensors get in and out of autodiff, and what is kept of an output.
trait Engine {
    type Gradients;
    fn track<const D: usize>(t: Tensor<D>) -> Tensor<D>;
    fn plain<const D: usize>(t: Tensor<D>) -> Tensor<D>;
    fn backward<const D: usize>(loss: Tensor<D>) -> Self::Gradients;
    fn gradient<const D: usize>(t: &Tensor<D>, g: &mut Self::Gradients) -> Option<Tensor<D>>;
    fn keep<const D: usize>(t: Tensor<D>) -> Kept;
    fn id_of<const D: usize>(t: &Tensor<D>) -> Option<TensorId>;
    fn id_of_int<const D: usize>(t: &Tensor<D, Int>) -> Option<TensorId>;
}

/// An output: its value, or its place in the graph and what keeps it there.
struct Kept {
    data: Option<TensorData>,
    id: Option<TensorId>,
    _alive: Box<dyn Any>,
}

macro_rules! autodiff {
    ($backend:ty) => {
        type Gradients = <Autodiff<$backend> as AutodiffBackend>::Gradients;

        fn track<const D: usize>(t: Tensor<D>) -> Tensor<D> {
            let t = t.try_into_primitive::<$backend>().unwrap();
            let t = <Autodiff<$backend> as AutodiffBackend>::from_inner(t).require_grad();
            Tensor::from_primitive::<Autodiff<$backend>>(t)
        }

        fn plain<const D: usize>(t: Tensor<D>) -> Tensor<D> {
            match t.clone().try_into_primitive::<Autodiff<$backend>>() {
                Ok(t) => Tensor::from_primitive::<$backend>(Autodiff::<$backend>::inner(t)),
                Err(_) => t,
            }
        }

        fn backward<const D: usize>(loss: Tensor<D>) -> Self::Gradients {
            let loss = loss.try_into_primitive::<Autodiff<$backend>>().unwrap();
            <Autodiff<$backend> as AutodiffBackend>::backward(loss)
        }

        fn gradient<const D: usize>(t: &Tensor<D>, g: &mut Self::Gradients) -> Option<Tensor<D>> {
            let t = t
                .clone()
                .try_into_primitive::<Autodiff<$backend>>()
                .unwrap();
            let g = <Autodiff<$backend> as AutodiffBackend>::grad_remove(&t, g)?;
            Some(Tensor::from_primitive::<$backend>(g))
        }
    };
}

struct OnFlex;

impl Engine for OnFlex {
    autodiff!(Flex);

    fn keep<const D: usize>(t: Tensor<D>) -> Kept {
        Kept {
            data: Some(t.into_data()),
            id: None,
            _alive: Box::new(()),
        }
    }

    fn id_of<const D: usize>(_: &Tensor<D>) -> Option<TensorId> {
        None
    }

    fn id_of_int<const D: usize>(_: &Tensor<D, Int>) -> Option<TensorId> {
        None
    }
}

struct OnCapture;

impl Engine for OnCapture {
    autodiff!(CaptureBackend);

    fn keep<const D: usize>(t: Tensor<D>) -> Kept {
        Kept {
            data: None,
            id: Self::id_of(&t),
            _alive: Box::new(t),
        }
    }

    fn id_of<const D: usize>(t: &Tensor<D>) -> Option<TensorId> {
        let t = Self::plain(t.clone());
        Some(t.try_into_primitive::<CaptureBackend>().unwrap().id())
    }

    fn id_of_int<const D: usize>(t: &Tensor<D, Int>) -> Option<TensorId> {
        Some(
            t.clone()
                .try_into_primitive::<CaptureBackend>()
                .unwrap()
                .id(),
        )
    }
}

/// Every float parameter becomes a leaf of autodiff.
struct Track<E>(PhantomData<E>);

impl<E: Engine> ModuleMapper for Track<E> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, t, mapper) = param.consume();
        Param::from_mapped_value(id, E::track(t), mapper)
    }
}

/// The parameters' places in the graph.
struct Ids<E>(Vec<TensorId>, PhantomData<E>);

impl<E: Engine> ModuleVisitor for Ids<E> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(E::id_of(&param.val()));
    }
}

/// Gradient descent; what it keeps is the new parameters.
struct Descend<'a, E: Engine>(&'a mut E::Gradients, Vec<Kept>);

impl<E: Engine> ModuleVisitor for Descend<'_, E> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let t = param.val();
        if let Some(gradient) = E::gradient(&t, self.0) {
            self.1.push(E::keep(E::plain(t) - gradient * 0.1));
        }
    }
}

/// A model that gives logits for a batch.
trait Classifier: Module {
    type Input: Clone;
    fn logits<E: Engine>(&self, input: &Self::Input, device: &Device) -> Tensor<2>;
    /// The places of the inputs in the graph, after [`Self::logits`] made them.
    fn targets(&self) -> Vec<i64>;
}

fn step<E: Engine, M: Classifier>(
    model: M,
    input: &M::Input,
    device: &Device,
) -> (Vec<TensorId>, Vec<Kept>) {
    let targets = model.targets();
    let model = model.map(&mut Track::<E>(PhantomData));
    let mut ids = Ids::<E>(vec![], PhantomData);
    model.visit(&mut ids);
    let logits = model.logits::<E>(input, device);
    let y = Tensor::<1, Int>::from_data(TensorData::from(targets.as_slice()), device);
    ids.0.extend(E::id_of_int(&y));
    let criterion = CrossEntropyLossConfig::new().init(&logits.device());
    let loss = criterion.forward(logits, y.autodiff());
    let mut kept = vec![E::keep(E::plain(loss.clone()))];
    let mut gradients = E::backward(loss);
    let mut descend = Descend::<E>(&mut gradients, vec![]);
    model.visit(&mut descend);
    kept.append(&mut descend.1);
    (ids.0, kept)
}

/// Runs the step on both sides and compares loss and new parameters.
fn compare<M: Classifier>(name: &str, model: M, input: M::Input) {
    let Some(client) = client() else { return };
    let model = with_fixed_weights(model);
    let (_, expected) = step::<OnFlex, M>(model.clone(), &input, &Device::flex());
    let device = Device::capture();
    let (mut inputs, mut outputs) = (vec![], vec![]);
    let graph = device
        .capture_scope(|scope| {
            let (ids, kept) = step::<OnCapture, M>(model.fork(&device), &input, &device);
            inputs = ids;
            outputs = kept.iter().filter_map(|k| k.id).collect();
            scope.complete(inputs.clone(), outputs.clone())
        })
        .expect("the step can be captured");
    // Each parameter gives its memory to its new value.
    let parameters = outputs.len() - 1;
    let declared: Vec<GraphInput> = inputs
        .iter()
        .enumerate()
        .map(|(i, id)| {
            if i < parameters {
                GraphInput::donated(*id, outputs[i + 1])
            } else {
                GraphInput::new(*id)
            }
        })
        .collect();
    let lowered = lower(&graph, &declared, &outputs, &LowerOptions::default())
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(
        lowered.program.donations.iter().flatten().count(),
        parameters
    );
    let values = inputs.iter().map(|id| graph.values[id].clone()).collect();
    let actual = execute(client, &lowered, &[values]).remove(0);
    assert_eq!(expected.len(), actual.len());
    for (i, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
        let expected = expected.data.as_ref().expect("flex has values");
        assert_close(
            &format!("{name}, {i}"),
            expected,
            actual,
            Tolerance::new(1e-4, 2e-6),
        );
    }
}

fn flat(data: &TensorData) -> Vec<f32> {
    data.iter::<f32>().collect()
}

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    norm: LayerNorm,
    second: Linear,
}

impl Classifier for Mlp {
    type Input = TensorData;

    fn logits<E: Engine>(&self, input: &TensorData, device: &Device) -> Tensor<2> {
        let x = E::track(Tensor::<2>::from_data(input.clone(), device));
        let x = activation::relu(self.first.forward(x));
        let x = activation::gelu(self.norm.forward(x));
        activation::tanh(self.second.forward(x)) * 3.0
    }

    fn targets(&self) -> Vec<i64> {
        vec![0, 3, 1, 2, 2]
    }
}

#[test]
fn mlp() {
    let device = Device::flex();
    let model = Mlp {
        first: LinearConfig::new(7, 16).init(&device),
        norm: LayerNormConfig::new(16).init(&device),
        second: LinearConfig::new(16, 4).init(&device),
    };
    let input = Data::new(91).normal(&[5, 7], burn::tensor::DType::F32);
    compare("mlp", model, input);
}

#[derive(Module, Debug)]
struct Cnn {
    conv1: Conv2d,
    conv2: Conv2d,
    max: MaxPool2d,
    avg: AvgPool2d,
    adaptive: AdaptiveAvgPool2d,
    out: Linear,
}

impl Classifier for Cnn {
    type Input = TensorData;

    fn logits<E: Engine>(&self, input: &TensorData, device: &Device) -> Tensor<2> {
        let x = E::track(Tensor::<4>::from_data(input.clone(), device));
        let x = self.max.forward(activation::relu(self.conv1.forward(x)));
        let x = self.avg.forward(activation::sigmoid(self.conv2.forward(x)));
        self.out.forward(self.adaptive.forward(x).flatten(1, 3))
    }

    fn targets(&self) -> Vec<i64> {
        vec![9, 0, 4]
    }
}

#[test]
fn cnn() {
    let device = Device::flex();
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let model = Cnn {
        conv1: Conv2dConfig::new([2, 8], [3, 3])
            .with_padding(padding)
            .init(&device),
        conv2: Conv2dConfig::new([8, 6], [3, 3])
            .with_groups(2)
            .init(&device),
        max: MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).init(),
        avg: AvgPool2dConfig::new([2, 2]).with_strides([1, 1]).init(),
        adaptive: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
        out: LinearConfig::new(24, 10).init(&device),
    };
    let input = Data::new(92).normal(&[3, 2, 14, 13], burn::tensor::DType::F32);
    compare("cnn", model, input);
}

#[derive(Module, Debug)]
struct Transformer {
    embedding: Embedding,
    encoder: TransformerEncoder,
    out: Linear,
}

impl Classifier for Transformer {
    type Input = Vec<i64>;

    fn logits<E: Engine>(&self, input: &Vec<i64>, device: &Device) -> Tensor<2> {
        let rows = TensorData::new(input.clone(), [2, input.len() / 2]);
        let x = Tensor::<2, Int>::from_data(rows, device).autodiff();
        let x = TransformerEncoderInput::new(self.embedding.forward(x));
        self.out.forward(self.encoder.forward(x)).flatten(0, 1)
    }

    fn targets(&self) -> Vec<i64> {
        (0..12).map(|i| i * 5 % 11).collect()
    }
}

#[test]
fn transformer() {
    let device = Device::flex();
    for norm_first in [false, true] {
        let encoder = TransformerEncoderConfig::new(8, 16, 2, 2)
            .with_dropout(0.0)
            .with_norm_first(norm_first);
        let model = Transformer {
            embedding: EmbeddingConfig::new(11, 8).init(&device),
            encoder: encoder.init(&device),
            out: LinearConfig::new(8, 11).init(&device),
        };
        compare("transformer", model, (0..12).map(|i| i * 7 % 11).collect());
    }
}

#[test]
fn inputs_that_are_not_declared_become_constants() {
    let Some(client) = client() else { return };
    let device = Device::capture();
    let (mut input, mut output) = (vec![], vec![]);
    let host = Data::new(93).normal(&[6, 7], burn::tensor::DType::F32);
    let graph = device
        .capture_scope(|scope| {
            let x = Tensor::<2>::from_data(TensorData::from([[1.0f32, 2.0, 3.0]]), &device);
            let weight = Tensor::<2>::from_data(host.clone(), &device).slice([0..3, 0..7]);
            let y = x.clone().matmul(weight);
            input.extend(OnCapture::id_of(&x));
            output.extend(OnCapture::id_of(&y));
            let done = scope.complete(input.clone(), output.clone());
            drop((x, y));
            done
        })
        .unwrap();
    let inputs = [GraphInput::new(input[0])];
    let lowered = lower(&graph, &inputs, &output, &LowerOptions::default()).unwrap();
    assert_eq!(lowered.constant_bytes, 6 * 7 * 4);
    let values = vec![TensorData::from([[1.0f32, 2.0, 3.0]])];
    let actual = execute(client, &lowered, &[values]).remove(0);
    let weight = flat(&host);
    let expected: Vec<f32> = (0..7)
        .map(|c| (0..3).map(|r| (r + 1) as f32 * weight[r * 7 + c]).sum())
        .collect();
    let expected = TensorData::new(expected, [1, 7]);
    assert_close(
        "constants",
        &expected,
        &actual[0],
        Tolerance::new(1e-5, 1e-6),
    );
}
