"""Writes the files of weights of this folder with real Keras, in every layout that Keras has.

    python -m venv venv && venv/bin/pip install tensorflow-cpu==2.21.0 tf_keras==2.21.0
    venv/bin/python weights.py
    venv/bin/python weights.py --check FOLDER

With `--check` it loads the files that the tests have written (written.NAME.LAYOUT in FOLDER, or
here as .gz) with Keras, and compares the outputs with NAME.expected.json.

Below weights/, NAME.LAYOUT.gz is the file of the model NAME: `keras`, `weights.h5` and `h5` of
Keras 3; `old.keras`, `old.weights.h5`, `old.h5` and `only.h5` (`save_weights("x.h5")`) of Keras 2
(tf_keras). NAME.expected.json has three examples and what the model makes of them. hdf5.*.h5.gz
are files of h5py in its oldest and its newest form, with every way to store a data set that h5py
has; hdf5.expected.json has their numbers. small.* are for the fuzz target, digits.keras for the
tests of the program.
"""

import gzip
import json
import os
import pathlib
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import h5py
import keras as keras3
import numpy as np
import tf_keras as keras2

HERE = pathlib.Path(__file__).parent / "weights"


def chain(keras):
    """A Sequential model, whose layers of one class are counted."""
    L = keras.layers
    return keras.Sequential([
        L.Input((7, 6, 2)),
        L.Conv2D(3, 2, name="zoom", activation="relu"),
        L.BatchNormalization(name="norm"),
        L.Dropout(0.5),
        L.Conv2D(4, 2, name="aim"),
        L.SeparableConv2D(3, 2, name="split"),
        L.Flatten(),
        L.Dense(5, activation="tanh", name="tail"),
        L.Dense(3, activation="softmax", name="head"),
    ], name="chain")


def nested(keras):
    """Models inside of models, of both kinds, a shared layer, a frozen one, and attention."""
    L = keras.layers
    i = L.Input((5,), dtype="int32", name="words")
    inner = keras.Sequential([L.Input((5, 4)), L.LayerNormalization(), L.Dense(4)], name="inner")
    a = L.Input((5, 4), name="a")
    body = L.Dense(4, name="frozen", trainable=False)(a)
    body = L.MultiHeadAttention(2, 3, name="look")(body, body)
    body = L.BatchNormalization(name="even")(inner(body))
    body = keras.Model(a, L.Dense(4, name="last")(body), name="body")
    x = L.Embedding(9, 4, name="table")(i)
    shared = L.Dense(4, name="shared")
    x = shared(body(shared(x)))
    x = keras.Sequential([L.Input((5, 4)), L.Dense(6), L.Dense(4)], name="second")(x)
    x = L.GlobalAveragePooling1D()(x)
    return keras.Model(i, L.Dense(1, activation="sigmoid", name="end")(x), name="nested")


def steps(keras):
    """Recurrent layers, cells in cells, layers around layers and models, layers of sequences."""
    L = keras.layers
    both = L.Bidirectional
    i = L.Input((5, 3), name="days")
    x = L.Conv1D(3, 2, padding="causal", name="look")(i)
    x = L.LSTM(2, return_sequences=True, name="first")(x)
    x = both(L.GRU(2, return_sequences=True, name="ways"), name="both")(x)
    x = both(L.LSTM(2, return_sequences=True),
             backward_layer=L.SimpleRNN(2, return_sequences=True, go_backwards=True, name="back"),
             merge_mode="sum", name="another")(x)
    cells = [L.StackedRNNCells([L.LSTMCell(2), L.LSTMCell(3, use_bias=False)]),
             L.LSTMCell(2, name="own"), L.SimpleRNNCell(2)]
    x = L.RNN(L.StackedRNNCells(cells), return_sequences=True, name="tower")(x)
    x = L.RNN(L.GRUCell(2, reset_after=False), return_sequences=True, name="cell")(x)
    x = L.TimeDistributed(L.Dense(3, activation="tanh"), name="each")(x)
    inner = keras.Sequential([L.Input((3,)), L.Dense(4, name="in"), L.BatchNormalization(),
                              L.Dense(3)], name="small")
    x = L.TimeDistributed(inner, name="model")(x)
    x = L.SeparableConv1D(2, 2, name="split")(x)
    x = L.DepthwiseConv1D(2)(x)
    x = L.Conv1DTranspose(2, 2, name="wide")(x)
    x = both(L.GRU(2), name="last")(x)
    return keras.Model(i, L.Dense(2, name="end")(x), name="steps")


def volumes(keras):
    """Layers of volumes."""
    L = keras.layers
    return keras.Sequential([
        L.Input((4, 3, 3, 2)),
        L.Conv3D(2, 2, name="block", activation="relu"),
        L.BatchNormalization(name="even"),
        L.Conv3DTranspose(2, 2, name="back"),
        L.GlobalAveragePooling3D(),
        L.Dense(3, name="end"),
    ], name="volumes")


def wrapped(keras):
    """Layers in layers in layers, frozen ones, and two of a class side by side."""
    L = keras.layers
    i = L.Input((3, 4, 2), name="films")
    x = L.TimeDistributed(L.Bidirectional(L.LSTM(2), name="inner"), name="outer")(i)
    a = L.Input((4,), name="a")
    body = L.Dense(3, name="last")(L.BatchNormalization(name="even", trainable=False)(a))
    x = L.TimeDistributed(keras.Model(a, body, name="body"), name="each")(x)
    x = L.Bidirectional(L.GRU(2, return_sequences=True), name="frozen", trainable=False)(x)
    cells = [L.GRUCell(2), L.GRUCell(2)]
    left = L.Bidirectional(L.RNN(L.StackedRNNCells(cells)), name="left")(x)
    right = L.Bidirectional(L.GRU(2), name="right")(x)
    other = L.Bidirectional(L.GRU(2), name="other")(x)
    x = L.Concatenate(name="all")([left, right, other])
    return keras.Model(i, L.Dense(2, name="end")(x), name="wrapped")


MODELS = {"chain": chain, "nested": nested, "steps": steps, "volumes": volumes,
          "wrapped": wrapped}


def zipped(name, data):
    (HERE / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))


def saved(name, save):
    """What `save` writes to a path that ends with `name`'s layout."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        save(path)
        zipped(name, pathlib.Path(path).read_bytes())


def numbers(model):
    rng = np.random.default_rng(5)
    values = []
    for weight in model.weights:
        value = rng.normal(0, 0.4, weight.shape)
        variance = "variance" in weight.name
        values.append((np.abs(value) + 0.5 if variance else value).astype(np.float32))
    model.set_weights(values)


def inputs(model):
    rng = np.random.default_rng(6)
    shape = (3,) + tuple(model.inputs[0].shape)[1:]
    if len(shape) == 2:
        return rng.integers(0, 9, shape)
    return rng.standard_normal(shape).astype(np.float32)


def models():
    for name, build in MODELS.items():
        model, old = build(keras3), build(keras2)
        numbers(model)
        numbers(old)
        x = inputs(model)
        expected = {"input": x.reshape(-1).tolist(), "shape": list(x.shape)}
        for version, it in (("keras3", model), ("keras2", old)):
            expected[version] = np.asarray(it(x, training=False)).reshape(-1).tolist()
        (HERE / f"{name}.expected.json").write_text(json.dumps(expected) + "\n")
        it = dict(optimizer="adam", loss="mse", metrics=["mae"])
        model.compile(**it)
        old.compile(**it)
        saved(f"{name}.keras", model.save)
        saved(f"{name}.weights.h5", model.save_weights)
        saved(f"{name}.h5", model.save)
        saved(f"{name}.old.keras", old.save)
        saved(f"{name}.old.weights.h5", old.save_weights)
        saved(f"{name}.old.h5", old.save)
        saved(f"{name}.only.h5", old.save_weights)


def forms(file, values):
    """A data set for every type and way of storage, and attributes of every kind."""
    x = values
    for kind in ("<f2", "<f4", "<f8", ">f4", "i1", "<i2", ">i4", "<i8", "u1", "<u2", "<u4", "<u8"):
        file.create_dataset(f"types/{kind[0].replace('<', 'l').replace('>', 'b')}{kind[1:]}",
                            data=np.abs(x * 8).astype(kind))
    file["types"].create_dataset("scalar", data=np.float32(2.5))
    file["types"].create_dataset("empty", shape=(0, 3), dtype="f4")
    more = np.tile(x, (9, 5))
    chunks = file.create_group("chunks")
    chunks.create_dataset("plain", data=more, chunks=(4, 7))
    chunks.create_dataset("whole", data=more, chunks=more.shape)
    chunks.create_dataset("gzip", data=more, chunks=(5, 6), compression="gzip")
    chunks.create_dataset("shuffle", data=more, chunks=(5, 6), compression="gzip", shuffle=True)
    chunks.create_dataset("sum", data=more, chunks=(5, 6), fletcher32=True)
    chunks.create_dataset("grows", data=more, chunks=(5, 6), maxshape=(None, more.shape[1]))
    chunks.create_dataset("grows2", data=more, chunks=(5, 6), maxshape=(None, None))
    part = chunks.create_dataset("part", shape=(12, 12), chunks=(5, 5), dtype="f4", fillvalue=1.5)
    part[6:9, 6:9] = 4.0
    many = chunks.create_dataset("many", data=np.arange(3000.0), chunks=(10,))
    file.create_dataset("unset", shape=(2, 2), dtype="f4", fillvalue=2.0)
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple(x.shape)
    made = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, compact)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(x))
    wide = file.create_group("wide")
    for number in range(60):
        wide.create_group(f"group_{number:02}").create_dataset("x", data=np.float32(number))
    texts = file.create_group("texts")
    texts.attrs["variable"] = "some {\"json\": 1} text"
    texts.attrs["fixed"] = np.bytes_(b"fixed")
    texts.attrs["list"] = np.array([b"one", b"three", b""])
    texts.attrs["names"] = ["eins", "zwei"]
    texts.attrs["number"] = 3.5
    for number in range(20):
        texts.attrs[f"more{number}"] = np.bytes_(b"x" * number + b".")
    if file.libver[0] != "earliest":
        texts.attrs["long"] = "y" * 70000
        texts.attrs["longer"] = np.bytes_(b"z" * 70000)
    return many


def hdf5():
    x = np.random.default_rng(1).normal(0, 1, (3, 4)).astype("f4")
    expected = {}
    for name, libver in (("earliest", "earliest"), ("v108", ("earliest", "v108")),
                         ("latest", "latest")):
        def save(path):
            with h5py.File(path, "w", libver=libver) as file:
                forms(file, x)
            with h5py.File(path) as file:
                def visit(at, item):
                    if isinstance(item, h5py.Dataset):
                        flat = np.asarray(item, dtype="f8").reshape(-1)
                        flat = [float(f"{value:.9g}") for value in flat]
                        expected[at] = {"shape": list(item.shape), "values": flat}
                file.visititems(visit)
        saved(f"hdf5.{name}.h5", save)
    (HERE / "hdf5.expected.json").write_text(json.dumps(expected) + "\n")


def digits():
    """A model of the built-in digits, for the tests of the program; it is not compressed."""
    L = keras3.layers
    model = keras3.Sequential([
        L.Input((8, 8, 1)), L.Conv2D(2, 3, activation="relu"), L.Flatten(), L.Dense(10),
    ], name="digits")
    numbers(model)
    model.save(HERE / "digits.keras")


def small():
    """Files of two weights of three values each, from which fuzzing starts."""
    names = [b"layer_normalization/gamma:0", b"layer_normalization/beta:0"]
    values = {name: np.arange(3, dtype="f4") + 0.5 for name in names}

    def legacy(path):
        with h5py.File(path, "w") as file:
            file.attrs["layer_names"] = [b"flatten", b"layer_normalization"]
            file.create_group("flatten").attrs["weight_names"] = []
            group = file.create_group("layer_normalization")
            for part, name in enumerate(names):
                group.attrs[f"weight_names{part}"] = [name]
                group[name] = values[name]

    def compressed(path):
        with h5py.File(path, "w", libver="latest") as file:
            group = file.create_group("layers/layer_normalization/vars")
            group.attrs["name"] = "layer_normalization"
            for number in range(10):
                group.attrs[f"more{number}"] = "y" * number
            for number, value in enumerate(values.values()):
                group.create_dataset(str(number), data=value, chunks=(2,), compression="gzip",
                                     shuffle=True)
            for number in range(2, 12):
                group.create_group(f"more{number}")

    def trees(path):
        with h5py.File(path, "w") as file:
            group = file.create_group("layers/layer_normalization/vars")
            for number, value in enumerate(values.values()):
                group.create_dataset(str(number), data=value.astype("f2"), chunks=(2,),
                                     fletcher32=True)
            for number in range(20):
                file.create_group(f"layers/dense_{number}")

    saved("small.legacy.h5", legacy)
    saved("small.compressed.h5", compressed)
    saved("small.trees.h5", trees)


def check(folder):
    """Loads what the tests have written."""
    for name, build in MODELS.items():
        expected = json.loads((HERE / f"{name}.expected.json").read_text())
        x = np.array(expected["input"]).reshape(expected["shape"])
        wanted = np.array(expected["keras3"])
        for layout in ("weights.h5", "keras", "npz", "safetensors"):
            path = pathlib.Path(folder) / f"written.{name}.{layout}"
            if not path.exists():
                path.with_name(path.name).write_bytes(
                    gzip.decompress((HERE / f"{path.name}.gz").read_bytes()))
            # Names that Keras makes begin at 0 again.
            keras3.utils.clear_session()
            model = build(keras3)
            numbers(model)
            if layout == "keras":
                model = keras3.models.load_model(path)
            elif layout == "weights.h5":
                model.load_weights(path)
            elif layout == "npz":
                arrays = np.load(path)
                model.set_weights([arrays[f"arr_{n}"] for n in range(len(arrays.files))])
            else:
                from safetensors.numpy import load_file
                # The file has the name of a functional model in TimeDistributed, Keras has not.
                arrays = {key.removeprefix("body/"): v for key, v in load_file(path).items()}
                # A Sequential model's own name begins the paths of Keras.
                own = f"{model.name}/"
                model.set_weights([arrays[w.path.removeprefix(own)] for w in model.weights])
            found = np.asarray(model(x, training=False)).reshape(-1)
            difference = float(np.abs(found - wanted).max())
            print(f"{path.name}: {difference:.1e}")
            assert difference <= 1e-6, path


if sys.argv[1:2] == ["--check"]:
    check(sys.argv[2])
else:
    HERE.mkdir(exist_ok=True)
    models()
    digits()
    small()
    hdf5()
