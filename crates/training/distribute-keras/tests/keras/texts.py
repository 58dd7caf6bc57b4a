"""Writes the golden family of layers that read texts: what real Keras makes of texts.

    python -m venv venv && venv/bin/pip install tensorflow-cpu==2.21.0
    venv/bin/python texts.py

texts.expected.json has a list of tiny models of one layer: `keras3` is the model as `to_json()` writes
it, `texts` the texts of each example, `outputs` what it gives. The models texts.NAME.keras.gz are
saved with the vocabularies of `adapt`; for them `outputs` is of the whole model.
"""

import gzip
import json
import os
import pathlib

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras  # noqa: E402
import numpy as np  # noqa: E402

HERE = pathlib.Path(__file__).parent
L = keras.layers
TEXTS = ["The cat  sat.", "the DOG, ran! fast\tÄpfel", "", "a cat's [hat]\x0b(x) über dog dog ran"]
WORDS = ["the", "cat", "dog", "ran", "a"]
PLACES = [["cat", "mat"], ["", "a"], ["dog", "dog"], ["Ä", "the"]]


def vectorization(**options):
    options.setdefault("vocabulary", WORDS)
    return L.TextVectorization(**options), [[text] for text in TEXTS]


def lookup(**options):
    return L.StringLookup(vocabulary=WORDS, **options), PLACES


def hashing(bins=10, **options):
    return L.Hashing(bins, **options), PLACES


IDF = [0.5, 0.25, 1.5, 2.0, 0.75]
LAYERS = {
    "words": vectorization(),
    "length": vectorization(output_sequence_length=3),
    "longer": vectorization(output_sequence_length=20, standardize=None),
    "lower": vectorization(standardize="lower"),
    "strip": vectorization(standardize="strip_punctuation"),
    "characters": vectorization(split="character", vocabulary=["a", "t", "ä", " "]),
    "whole": vectorization(split=None, vocabulary=["the cat  sat"]),
    "ngrams": vectorization(ngrams=2, vocabulary=["the cat", "dog", "dog dog", "cat sat"]),
    "chosen_ngrams": vectorization(ngrams=(3, 1), vocabulary=["the dog ran", "dog"]),
    "multi_hot": vectorization(output_mode="multi_hot"),
    "count": vectorization(output_mode="count", max_tokens=8, pad_to_max_tokens=True),
    "tf_idf": vectorization(output_mode="tf_idf", idf_weights=IDF),
    "special": vectorization(vocabulary=["", "[UNK]", *WORDS]),
    "lookup": lookup(),
    "lookup_mask": lookup(mask_token=""),
    "lookup_several": lookup(num_oov_indices=3),
    "lookup_salt": lookup(num_oov_indices=3, salt=[7, 9]),
    "lookup_one_hot": lookup(output_mode="one_hot", mask_token=""),
    "lookup_multi_hot": lookup(output_mode="multi_hot"),
    "lookup_count": lookup(output_mode="count", num_oov_indices=2),
    "lookup_tf_idf": lookup(output_mode="tf_idf", idf_weights=IDF),
    "hashing": hashing(),
    "hashing_salt": hashing(salt=133),
    "hashing_mask": hashing(mask_value=""),
    "hashing_one_hot": hashing(4, output_mode="one_hot"),
    "hashing_multi_hot": hashing(4, output_mode="multi_hot"),
    "hashing_count": hashing(4, output_mode="count", salt=[1, 2]),
}


def saved(name, **options):
    layer = L.TextVectorization(**options)
    layer.adapt(TEXTS)
    head = [L.Embedding(20, 3), L.GlobalAveragePooling1D()] if name == "embedded" else []
    inner = keras.Sequential([keras.Input((1,), dtype="string"), layer])
    given = keras.Input((1,), dtype="string")
    x = inner(given)
    for one in [*head, L.Dense(2)]:
        x = one(x)
    model = keras.Model(given, x)
    path = HERE / f"texts.{name}.keras"
    model.save(path)
    path.with_suffix(".keras.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    path.unlink()
    return model


def numbers(values):
    return {
        "shape": list(np.shape(values)),
        "values": [float(f"{x:.9g}") for x in np.ravel(values)],
    }


def main():
    import tensorflow as tf

    cases = []
    for name, (layer, texts) in LAYERS.items():
        given = keras.Input((len(texts[0]),), dtype="string")
        model = keras.Model(given, layer(given))
        outputs = np.asarray(model(tf.constant(texts)), np.float32)
        entry = {"name": name, "keras3": model.to_json(), "texts": texts}
        cases.append({**entry, "outputs": numbers(outputs)})
    models = []
    for name, options in [
        ("embedded", dict(output_sequence_length=5)),
        ("weighted", dict(output_mode="tf_idf", max_tokens=30, pad_to_max_tokens=True)),
    ]:
        model = saved(name, **options)
        texts = [[text] for text in TEXTS]
        outputs = np.asarray(model(tf.constant(texts)), np.float32)
        models.append({"name": name, "texts": texts, "outputs": numbers(outputs)})
    text = json.dumps({"layers": cases, "models": models})
    (HERE / "texts.expected.json").write_text(text + "\n")


main()
