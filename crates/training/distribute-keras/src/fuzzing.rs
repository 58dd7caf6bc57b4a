//! What the fuzz targets call: any bytes as a Keras model file, and as its weights. A panic is a
//! find.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use crate::layers::{Flatten, LayerNormalization};
use crate::{
    ModelSpec, Plan, Weight, hdf5, model_file, parse_keras_json, parse_safetensors_weights,
    parse_weights,
};

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 3] = [
    ("keras_json", keras_json),
    ("keras_weights", keras_weights),
    ("keras_hdf5", keras_hdf5),
];

/// Shapes of one example: features, a sequence, images without and with channels, a volume.
const SHAPES: [&[usize]; 5] = [&[7], &[5, 3], &[28, 28], &[8, 8, 4], &[4, 6, 6, 2]];

/// The text of a model: an error, or a model that is planned for examples, or says why not.
pub fn keras_json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(model) = parse_keras_json(text, "a.json") else {
        return;
    };
    for input in 0..model.inputs.len() {
        if let Ok(Some(input)) = model.text_input(input) {
            let is_small = input.width().is_none_or(|width| width <= 1 << 16);
            if is_small && input.texts() <= 16 {
                let row = input.encode(&vec!["a word, a b!"; input.texts()]);
                let fits = |row: Vec<f32>| input.width().is_none_or(|width| width == row.len());
                assert!(row.map_or(true, fits));
            }
        }
    }
    for shape in SHAPES {
        if let Ok(plan) = model.plan_all(&vec![shape; model.inputs.len()]) {
            let layers = plan.layers.iter().map(|layer| layer.parameters());
            // Every layer is called, on values that are there before it.
            for (index, call) in plan.calls.iter().enumerate() {
                let there = plan.inputs.len() + index;
                assert!(call.inputs.iter().all(|value| *value < there));
                assert_eq!(call.inputs.len(), call.shapes.len());
            }
            assert_eq!(plan.parameters(), layers.fold(0, usize::saturating_add));
            for output in &plan.outputs {
                assert!(output.value < plan.inputs.len() + plan.calls.len());
                assert!(!output.shape.to_string().is_empty());
            }
            assert!(plan.trained_parameters() <= plan.parameters());
            drop(plan.check_head());
        }
    }
}

/// A model with two weights of three values.
fn small() -> ModelSpec {
    let normalization = LayerNormalization {
        axis: vec![-1],
        rms_scaling: false,
        epsilon: 1e-3,
        beta: Some(crate::Initializer::ZEROS),
        gamma: Some(crate::Initializer::ZEROS),
    };
    ModelSpec::chain("small", vec![Flatten.into(), normalization.into()])
}

/// A safetensors file of weights: an error, or finite numbers for every weight of the model.
pub fn keras_weights(bytes: &[u8]) {
    let Ok(plan) = small().plan(&[3]) else {
        return;
    };
    if let Ok(weights) = parse_safetensors_weights(bytes, "a.safetensors", &plan) {
        check(&plan, &weights);
    }
}

/// Weights that were accepted are finite and have their shapes.
fn check(plan: &Plan, weights: &[Weight]) {
    assert_eq!(plan.weights().count(), weights.len());
    for ((_, planned), weight) in plan.weights().zip(weights) {
        assert!(!planned.name.is_empty());
        assert_eq!(weight.shape, planned.shape);
        assert_eq!(weight.shape.iter().product::<usize>(), weight.values.len());
        assert!(weight.values.iter().all(|x| x.is_finite()));
    }
}

/// A file of HDF5, or an archive with one: an error, or the values of every data set, and weights
/// that fit the model.
pub fn keras_hdf5(bytes: &[u8]) {
    let Ok(plan) = small().plan(&[3]) else {
        return;
    };
    if let Ok(weights) = parse_weights(bytes, "a.h5", &plan) {
        check(&plan, &weights);
    }
    if let Ok(file) = model_file(bytes.to_vec(), "a.h5") {
        drop(parse_keras_json(&file.text, "a.h5"));
    }
    if let Ok(file) = hdf5::File::open(bytes) {
        drop(everything(&file));
    }
}

/// Reads all that can be reached, as far as it can be read.
fn everything(file: &hdf5::File<'_>) -> std::result::Result<(), String> {
    let mut seen = std::collections::BTreeSet::new();
    let mut open = vec![file.root_address()];
    while let Some(address) = open.pop() {
        if !seen.insert(address) {
            continue;
        }
        let object = file.object(address)?;
        drop(file.texts(&object, "weight_names"));
        if object.is_dataset() {
            if let Ok(values) = file.numbers(&object) {
                let zero = values.shape.contains(&0);
                let count = values.shape.iter().product::<usize>();
                assert!(zero || count == values.values.len());
            }
        } else if let Ok(links) = file.links(&object) {
            open.extend(links.into_iter().map(|(_, address)| address));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hostile::corpus::Seeds;
    use serde_json::{Value, json};

    use super::*;
    use crate::{WeightFormat, written_weights};

    #[test]
    fn the_corpus_has_the_seeds_and_the_target_fails_with_no_file_of_it() {
        hostile::corpus::check(TARGETS[0], &seeds());
        hostile::corpus::check(TARGETS[1], &weights());
        hostile::corpus::check(TARGETS[2], &files());
    }

    /// The corpus has them too, but changes only shorter files.
    #[test]
    fn no_change_of_a_byte_of_a_file_is_a_panic() {
        let mut random = 1u64;
        for (_, bytes) in files() {
            for _ in 0..400 {
                let mut changed = bytes.clone();
                for _ in 0..3 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let at = (random >> 33) as usize % changed.len();
                    changed[at] = [0, 1, 0x7f, 0xff, (random >> 20) as u8][random as usize % 5];
                }
                keras_hdf5(&changed);
            }
        }
    }

    /// Small files of h5py and of this crate.
    fn files() -> Seeds {
        let plan = small().plan(&[3]).unwrap();
        let weight = || Weight {
            shape: vec![3],
            values: vec![0.5, -1.0, 2.0],
        };
        let text = r#"{"module":"keras","class_name":"Sequential","config":{"layers":[
            {"class_name":"Dense","config":{"units":2}}]}}"#;
        let written = |format| {
            let weights = [weight(), weight()];
            written_weights(format, &plan, &weights, Some(text)).unwrap()
        };
        let stored = |name: &str| hdf5::tests::stored(&format!("small.{name}.h5"));
        Seeds::from([
            ("written", written(WeightFormat::WeightsH5)),
            ("archive", written(WeightFormat::Keras)),
            ("legacy", stored("legacy")),
            ("compressed", stored("compressed")),
            ("trees", stored("trees")),
            ("signature", hdf5::SIGNATURE.to_vec()),
            ("text", text.as_bytes().to_vec()),
        ])
    }

    /// A safetensors file with this header, and this many bytes of data.
    fn safetensors(header: &Value, data: usize) -> Vec<u8> {
        let header = header.to_string().into_bytes();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(vec![0; data]);
        bytes
    }

    fn weights() -> Seeds {
        let tensor = |dtype: &str, shape: Value, begin: usize, end: usize| -> Value {
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})
        };
        let both = |dtype, size: usize| {
            json!({"layer_normalization/gamma": tensor(dtype, json!([3]), 0, 3 * size),
                   "layer_normalization/beta:0": tensor(dtype, json!([3]), 3 * size, 6 * size)})
        };
        let numbered = json!({"arr_1": tensor("F32", json!([3]), 0, 12),
                              "arr_0": tensor("I64", json!([1, 3]), 12, 36)});
        let giant = json!({"arr_0": tensor("F32", json!([u64::MAX, 4]), 0, 16)});
        Seeds::from([
            ("named", safetensors(&both("F32", 4), 24)),
            ("halves", safetensors(&both("BF16", 2), 12)),
            ("bytes", safetensors(&both("U8", 1), 6)),
            ("short", safetensors(&both("F64", 8), 40)),
            ("numbered", safetensors(&numbered, 36)),
            ("giant", safetensors(&giant, 16)),
            ("empty", safetensors(&json!({}), 0)),
            ("no-header", u64::MAX.to_le_bytes().to_vec()),
        ])
    }

    /// A model with these layers, each a class and its configuration.
    fn model(layers: &[(&str, Value)]) -> Vec<u8> {
        let layer =
            |(class, config): &(&str, Value)| json!({"class_name": class, "config": config});
        let layers: Vec<Value> = layers.iter().map(layer).collect();
        let config = json!({"name": "seed", "layers": layers});
        json!({"class_name": "Sequential", "config": config})
            .to_string()
            .into_bytes()
    }

    fn dense(units: Value) -> (&'static str, Value) {
        let kernel = json!({"class_name": "GlorotUniform", "config": {"seed": null}});
        let config = json!({"units": units, "activation": "relu", "use_bias": true,
            "kernel_initializer": kernel});
        ("Dense", config)
    }

    fn convolution(filters: Value, kernel: Value, dilation: Value) -> (&'static str, Value) {
        let config = json!({"filters": filters, "kernel_size": kernel, "strides": [2, 1],
            "padding": "same", "dilation_rate": dilation});
        ("Conv2D", config)
    }

    /// The values of an input.
    const NO_INPUTS: &[&str] = &[];

    /// A functional model in the form of Keras 3, of layers that receive others by their names.
    fn graph(layers: &[(&str, &str, Value, &[&str])]) -> Vec<u8> {
        let tensor = |name: &&str| -> Value {
            json!({"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}})
        };
        let layer = |(class, name, config, inputs): &(&str, &str, Value, &[&str])| {
            let tensors: Vec<Value> = inputs.iter().map(tensor).collect();
            let nodes = match tensors.as_slice() {
                [] => json!([]),
                [one] => json!([{"args": [one], "kwargs": {}}]),
                all => json!([{"args": [all], "kwargs": {}}]),
            };
            json!({"class_name": class, "name": name, "config": config, "inbound_nodes": nodes})
        };
        let (first, last) = (layers[0].1, layers[layers.len() - 1].1);
        let layers: Vec<Value> = layers.iter().map(layer).collect();
        let config = json!({"name": "seed", "layers": layers, "input_layers": [first, 0, 0],
            "output_layers": [[last, 0, 0]]});
        json!({"class_name": "Functional", "config": config})
            .to_string()
            .into_bytes()
    }

    /// A functional model in the form of Keras 2, with a model inside that is called twice.
    fn old_graph() -> Vec<u8> {
        let input = |name: &str| {
            json!({"class_name": "InputLayer", "name": name, "inbound_nodes": [],
                "config": {"batch_input_shape": [null, 4], "name": name}})
        };
        let inner = json!({"class_name": "Functional", "name": "inner", "config": {
            "name": "inner", "layers": [input("b"), {"class_name": "Dense", "name": "d",
                "config": {"units": 4}, "inbound_nodes": [[["b", 0, 0, {}]]]}],
            "input_layers": [["b", 0, 0]], "output_layers": [["d", 0, 0]]},
            "inbound_nodes": [[["a", 0, 0, {}]], [["inner", 1, 0, {"training": false}]]]});
        let add = json!({"class_name": "Add", "name": "s", "config": {},
            "inbound_nodes": [[["inner", 1, 0, {}], ["inner", 2, 0, {}]]]});
        json!({"class_name": "Functional", "keras_version": "2.15.0", "config": {
            "name": "seed", "layers": [input("a"), inner, add],
            "input_layers": [["a", 0, 0]], "output_layers": [["s", 0, 0]]}})
        .to_string()
        .into_bytes()
    }

    fn graphs() -> Seeds {
        let image = || {
            (
                "InputLayer",
                "a",
                json!({"batch_shape": [null, 8, 8, 4]}),
                NO_INPUTS,
            )
        };
        let pads = json!({"padding": [[1, 2], [0, u32::MAX]]});
        let separable = json!({"filters": 4, "kernel_size": 3, "padding": "same"});
        Seeds::from([
            (
                "graph-images",
                graph(&[
                    image(),
                    ("SeparableConv2D", "b", separable, &["a"]),
                    ("BatchNormalization", "c", json!({"axis": 3}), &["b"]),
                    (
                        "GlobalAveragePooling2D",
                        "d",
                        json!({"keepdims": true}),
                        &["c"],
                    ),
                    ("Multiply", "e", json!({}), &["c", "d"]),
                    ("Concatenate", "f", json!({"axis": -1}), &["e", "a"]),
                    ("Reshape", "g", json!({"target_shape": [-1]}), &["f"]),
                    (
                        "Dense",
                        "h",
                        json!({"units": 3, "activation": "softmax"}),
                        &["g"],
                    ),
                ]),
            ),
            (
                "graph-pads-giant",
                graph(&[image(), ("ZeroPadding2D", "b", pads, &["a"])]),
            ),
        ])
    }

    fn more_graphs() -> Seeds {
        let attention = json!({"num_heads": 2, "key_dim": 3});
        let features = || {
            (
                "InputLayer",
                "a",
                json!({"batch_shape": [null, 7]}),
                NO_INPUTS,
            )
        };
        Seeds::from([
            (
                "graph-attention",
                graph(&[
                    features(),
                    (
                        "Embedding",
                        "b",
                        json!({"input_dim": 9, "output_dim": 6}),
                        &["a"],
                    ),
                    ("MultiHeadAttention", "c", attention, &["b"]),
                    ("LayerNormalization", "d", json!({}), &["c"]),
                ]),
            ),
            (
                "graph-circle",
                graph(&[
                    features(),
                    ("Add", "b", json!({}), &["a", "c"]),
                    ("Dense", "c", json!({"units": 7}), &["b"]),
                ]),
            ),
            ("graph-keras2", old_graph()),
        ])
    }

    /// An operation in Keras 3's form.
    fn operation(class: &str, name: &str, config: Value, args: Value) -> Value {
        json!({"module": "keras.src.ops.numpy", "class_name": class, "name": name,
            "config": config, "inbound_nodes": [{"args": args, "kwargs": {}}]})
    }

    fn operations_of_keras3() -> Vec<u8> {
        let tensor = |name: &str| -> Value {
            json!({"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}})
        };
        let slice = |start: i64, step: i64| -> Value {
            json!({"class_name": "__slice__", "config": {"start": start, "stop": null,
                "step": step}})
        };
        let array = json!({"class_name": "__numpy__", "config": {"value": [1, 2, 3, 4],
            "dtype": "float32"}});
        let pads = json!({"pad_width": [[0, 0], [1, 2], [0, 3], [0, 0]], "mode": "reflect"});
        let einsum = json!({"subscripts": "bhwc,b...c->b...h"});
        let items = json!([tensor("c"), [slice(0, 1), slice(-1, -2)]]);
        let of = |name: &str| json!([tensor(name)]);
        let layers = json!([
            {"class_name": "InputLayer", "name": "a", "inbound_nodes": [],
                "config": {"batch_shape": [null, 8, 8, 4]}},
            operation("TrueDivide", "b", json!({}), json!([tensor("a"), 255.0])),
            operation("Subtract", "c", json!({}), json!([tensor("b"), array])),
            operation("GetItem", "d", json!({}), items),
            operation("Split", "e", json!({"indices_or_sections": 2, "axis": -1}), of("d")),
            operation("Pad", "f", pads, of("e")),
            operation("Einsum", "g", einsum, json!([tensor("f"), tensor("f")])),
            operation("Reshape", "h", json!({"newshape": [null, -1, 7]}), of("g")),
            operation("Tile", "i", json!({"repeats": [1, u32::MAX, 3]}), of("h")),
            operation("Mean", "j", json!({"axis": [1, -1], "keepdims": false}), of("h")),
        ]);
        let model = json!({"class_name": "Functional", "config": {"layers": layers,
            "input_layers": ["a", 0, 0], "output_layers": [["j", 0, 0], ["i", 0, 0]]}});
        model.to_string().into_bytes()
    }

    fn operations_of_keras2() -> Vec<u8> {
        let operation = |name: &str, function: &str, node: Value| -> Value {
            json!({"class_name": "TFOpLambda", "name": name, "inbound_nodes": [node],
                "config": {"name": name, "function": function}})
        };
        let constant = json!(["_CONSTANT_VALUE", -1, 2.0, {"y": ["a", 0, 0]}]);
        let sizes = json!({"num_or_size_splits": [1, 3], "axis": -1});
        let layers = json!([
            {"class_name": "InputLayer", "name": "a", "inbound_nodes": [],
                "config": {"batch_input_shape": [null, 8, 8, 4]}},
            operation("b", "math.multiply", constant),
            operation("c", "concat", json!([["b", 0, 0, {"axis": 1}], ["a", 0, 0, {"axis": 1}]])),
            operation("d", "split", json!(["c", 0, 0, sizes])),
            operation("e", "math.reduce_max", json!(["d", 0, 1, {"axis": [1, 2]}])),
        ]);
        let model = json!({"class_name": "Functional", "keras_version": "2.15.0", "config": {
            "layers": layers, "input_layers": [["a", 0, 0]], "output_layers": [["e", 0, 0]]}});
        model.to_string().into_bytes()
    }

    /// Operations on tensors.
    fn operations() -> Seeds {
        Seeds::from([
            ("operations-keras3", operations_of_keras3()),
            ("operations-keras2", operations_of_keras2()),
        ])
    }

    fn seeds() -> Seeds {
        let mut seeds = graphs();
        seeds.extend(operations());
        seeds.extend(images());
        seeds.extend(texts());
        seeds.extend(more_graphs());
        seeds.extend(recurrent());
        seeds.extend(windows());
        seeds.extend(chains());
        seeds
    }

    fn named(class: &str, config: &Value) -> Value {
        json!({"class_name": class, "config": config})
    }

    /// Layers that read steps, and layers around them.
    fn recurrent() -> Seeds {
        let lstm = json!({"units": 3, "return_sequences": true, "recurrent_dropout": 0.5,
            "activation": "tanh", "recurrent_activation": "sigmoid", "implementation": 1});
        let gru = json!({"units": 2, "reset_after": false, "go_backwards": true});
        let cell = |class: &str, units: Value| named(class, &json!({"units": units}));
        let stacked = json!({"cells": [cell("LSTMCell", json!(2)), cell("GRUCell", json!(u64::MAX)),
            cell("SimpleRNNCell", json!(1))]});
        let deep = (0..12).fold(cell("LSTMCell", json!(2)), |inner, _| {
            named("StackedRNNCells", &json!({"cells": [inner]}))
        });
        let both = json!({"layer": named("LSTM", &lstm), "merge_mode": "concat"});
        let dense = named("Dense", &json!({"units": 2, "activation": "softmax"}));
        let each = json!({"layer": named("TimeDistributed", &json!({"layer": dense}))});
        let states = json!({"units": 3, "return_state": true});
        Seeds::from([
            (
                "steps",
                model(&[
                    (
                        "Embedding",
                        json!({"input_dim": 10, "output_dim": 4, "mask_zero": true}),
                    ),
                    ("Bidirectional", both.clone()),
                    (
                        "SimpleRNN",
                        json!({"units": 2, "return_sequences": true, "stateful": false}),
                    ),
                    (
                        "TimeDistributed",
                        json!({"layer": named("Dense", &json!({"units": 2}))}),
                    ),
                    ("Masking", json!({"mask_value": 0.5})),
                    ("GRU", gru),
                ]),
            ),
            (
                "steps-cells",
                model(&[("RNN", json!({"cell": named("StackedRNNCells", &stacked)}))]),
            ),
            ("steps-cells-deep", model(&[("RNN", json!({"cell": deep}))])),
            ("steps-of-steps", model(&[("TimeDistributed", each)])),
            (
                "steps-of-model",
                model(&[(
                    "TimeDistributed",
                    json!({"layer": named("Sequential",
                    &json!({"layers": [named("Flatten", &json!({})), named("Dense",
                        &json!({"units": 4}))]}))}),
                )]),
            ),
            (
                "steps-states",
                graph(&[
                    (
                        "InputLayer",
                        "a",
                        json!({"batch_shape": [null, 5, 3]}),
                        NO_INPUTS,
                    ),
                    ("LSTM", "b", states, &["a"]),
                    ("Bidirectional", "c", both, &["a"]),
                    ("LSTM", "d", lstm, &["c", "b", "b"]),
                ]),
            ),
        ])
    }

    /// Layers with windows over sequences and volumes.
    fn windows() -> Seeds {
        let causal = json!({"filters": 3, "kernel_size": 3, "padding": "causal",
            "dilation_rate": [2]});
        let back = json!({"filters": 2, "kernel_size": 3, "strides": 2, "output_padding": 1});
        let volume = json!({"filters": 2, "kernel_size": [1, 2, 3], "padding": "same"});
        let giant = json!({"filters": 2, "kernel_size": u32::MAX, "strides": u32::MAX});
        let up = json!({"size": [2, 3], "interpolation": "bilinear"});
        Seeds::from([
            (
                "sequences",
                model(&[
                    ("ZeroPadding1D", json!({"padding": [1, 2]})),
                    ("Conv1D", causal),
                    ("SeparableConv1D", json!({"filters": 2, "kernel_size": 2})),
                    (
                        "DepthwiseConv1D",
                        json!({"kernel_size": 2, "depth_multiplier": 2}),
                    ),
                    ("Conv1DTranspose", back.clone()),
                    ("MaxPooling1D", json!({"pool_size": 2})),
                    (
                        "AveragePooling1D",
                        json!({"pool_size": 2, "padding": "same"}),
                    ),
                    ("UpSampling1D", json!({"size": 2})),
                    ("Cropping1D", json!({"cropping": 1})),
                    ("Permute", json!({"dims": [2, 1]})),
                    ("GlobalMaxPooling1D", json!({"keepdims": true})),
                ]),
            ),
            (
                "images-back",
                model(&[("Conv2DTranspose", back.clone()), ("UpSampling2D", up)]),
            ),
            ("images-back-giant", model(&[("Conv2DTranspose", giant)])),
            (
                "volumes",
                model(&[
                    ("Conv3D", volume),
                    ("Conv3DTranspose", back),
                    ("MaxPooling3D", json!({"pool_size": 2})),
                    ("AveragePooling3D", json!({"pool_size": [1, 2, 2]})),
                    ("ZeroPadding3D", json!({"padding": [1, 1, [0, 2]]})),
                    ("Cropping3D", json!({"cropping": 1})),
                    ("UpSampling3D", json!({"size": 2})),
                    ("GlobalAveragePooling3D", json!({})),
                    ("RepeatVector", json!({"n": 3})),
                ]),
            ),
        ])
    }

    /// Layers that change images, normalize along axes, and have their channels first.
    fn images() -> Seeds {
        let input = ("InputLayer", json!({"batch_shape": [null, 8, 8, 4]}));
        let first = json!({"filters": 4, "kernel_size": 3, "data_format": "channels_first"});
        let einsum = json!({"equation": "bhwc,wde->bhde", "output_shape": [null, 2, 3],
            "bias_axes": "de"});
        Seeds::from([(
            "images-changed",
            model(&[
                input,
                ("RandomFlip", json!({"mode": "horizontal", "seed": 3})),
                (
                    "RandomZoom",
                    json!({"height_factor": [-0.2, 0.3], "fill_mode": "wrap"}),
                ),
                ("Conv2D", first),
                ("Resizing", json!({"height": 5, "width": u32::MAX})),
                ("CenterCrop", json!({"height": 4, "width": 3})),
                ("GroupNormalization", json!({"groups": 2, "axis": 2})),
                ("LayerNormalization", json!({"axis": [1, -1]})),
                ("PReLU", json!({"shared_axes": [1, 9]})),
                ("EinsumDense", einsum),
                ("Softmax", json!({"axis": 1})),
            ]),
        )])
    }

    /// Layers that read texts and numbers of classes, losses on outputs, constraints, and LSTMs
    /// over images.
    fn texts() -> Seeds {
        let input = |dtype: &str| {
            let config = json!({"batch_shape": [null, 1], "dtype": dtype});
            ("InputLayer", config)
        };
        let words = json!(["", "[UNK]", "a", "b"]);
        let vectorization = json!({"vocabulary": words, "standardize": null, "split": "character",
            "ngrams": [1, 3], "output_sequence_length": u32::MAX, "output_mode": "int"});
        let lookup = json!({"vocabulary": ["a", "b"], "num_oov_indices": 3, "salt": [1, -2],
            "output_mode": "tf_idf", "idf_weights": [0.5, 2], "pad_to_max_tokens": true,
            "max_tokens": 9});
        let integers = json!({"vocabulary": [5, -7, 1 << 20], "mask_token": 5,
            "output_mode": "count", "num_oov_indices": 2});
        let hashing = json!({"num_bins": 5, "mask_value": "", "salt": 3,
            "output_mode": "one_hot"});
        let norm = |class: &str| named(class, &json!({"axis": [0, -1], "max_value": 2}));
        let ruled = json!({"units": 3, "activity_regularizer": "l1_l2",
            "kernel_constraint": norm("MaxNorm"), "bias_constraint": "non_neg"});
        let lstm = json!({"filters": 2, "kernel_size": [2, u32::MAX], "padding": "same",
            "return_sequences": true, "dropout": 0.5});
        Seeds::from([
            (
                "texts-words",
                model(&[input("string"), ("TextVectorization", vectorization)]),
            ),
            (
                "texts-lookup",
                model(&[input("string"), ("StringLookup", lookup)]),
            ),
            (
                "texts-hashing",
                model(&[input("string"), ("Hashing", hashing)]),
            ),
            (
                "texts-integers",
                model(&[
                    input("int64"),
                    ("IntegerLookup", integers),
                    ("ActivityRegularization", json!({"l2": 0.1})),
                    ("Dense", ruled),
                ]),
            ),
            ("conv-lstm", model(&[("ConvLSTM2D", lstm)])),
        ])
    }

    fn chains() -> Seeds {
        let giant = || json!(u64::MAX);
        let input = ("InputLayer", json!({"batch_shape": [null, 28, 28, 1]}));
        let pool = (
            "MaxPooling2D",
            json!({"pool_size": [2, 2], "padding": "valid"}),
        );
        let flatten = || ("Flatten", json!({}));
        let small = || convolution(json!(4), json!([3, 3]), json!([1, 1]));
        let embedding = ("Embedding", json!({"input_dim": 10, "output_dim": 4}));
        let sequence = ("GlobalAveragePooling1D", json!({}));
        Seeds::from([
            (
                "images",
                model(&[input, small(), pool, flatten(), dense(json!(10))]),
            ),
            (
                "texts",
                model(&[
                    embedding,
                    sequence,
                    ("Dropout", json!({"rate": 0.5})),
                    dense(json!(2)),
                ]),
            ),
            ("units-giant", model(&[dense(giant()), dense(giant())])),
            ("units-negative", model(&[dense(json!(-1))])),
            (
                "filters-giant",
                model(&[
                    convolution(giant(), json!([3, 3]), json!([1, 1])),
                    flatten(),
                ]),
            ),
            (
                "window-giant",
                model(&[
                    convolution(json!(4), json!([3, 3]), json!([u64::MAX, 9])),
                    flatten(),
                ]),
            ),
            (
                "kernel-zero",
                model(&[convolution(json!(4), json!([0, 3]), json!([1, 1]))]),
            ),
            ("not-sequential", br#"{"class_name":"Functional"}"#.to_vec()),
            ("deep", b"[".repeat(1000)),
        ])
    }
}
