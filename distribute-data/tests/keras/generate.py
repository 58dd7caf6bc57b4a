"""Writes losses.json and metrics.json: what Keras' losses and metrics give.

    pip install keras==3.15.1 tensorflow-cpu==2.21.0
    KERAS_BACKEND=tensorflow python distribute-data/tests/keras/generate.py

Each loss has its values per example and the gradient of their sum, weighted by 1, 2, 3 and so on;
each metric its result over uneven batches, the second with sample weights. The name is the text
that `LossFunction` and `KerasMetric` read.
"""

import json
import pathlib

import keras
import numpy as np
import tensorflow as tf

HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(5)


def numbers(array):
    return [float(value) for value in np.asarray(array, np.float32).ravel()]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


def inputs(kind):
    n, k = 6, 4
    values = random.normal(size=(n, k)).astype(np.float32) * 2
    if kind == "values":
        return random.normal(size=(n, k)).astype(np.float32) * 2, values
    if kind == "positive":
        target = random.uniform(0.1, 4, (n, k)).astype(np.float32)
        return target, np.abs(values) + np.float32(0.1)
    classes = np.eye(k, dtype=np.float32)[random.integers(0, k, n)]
    binary = random.integers(0, 2, (n, k)).astype(np.float32)
    signs = binary * 2 - 1
    return {
        "classes": (classes, softmax(values)),
        "class_logits": (classes, values * 4),
        "soft": (softmax(random.normal(size=(n, k))), softmax(values)),
        "unnormalised": (classes, random.uniform(0.05, 0.9, (n, k)).astype(np.float32)),
        "binary": (binary, random.uniform(0.01, 0.99, (n, k)).astype(np.float32)),
        "binary_ends": (binary, random.integers(0, 2, (n, k)).astype(np.float32)),
        "binary_logits": (binary, values * 8),
        "signs": (signs, values),
        "binary_scores": (binary, values),
    }[kind]


LOSSES = [
    ("mean_squared_error", {}, ["values"]),
    ("mean_absolute_error", {}, ["values"]),
    ("mean_absolute_percentage_error", {}, ["values", "positive"]),
    ("mean_squared_logarithmic_error", {}, ["positive", "values"]),
    ("huber", {}, ["values"]),
    ("huber", {"delta": 2.5}, ["values"]),
    ("log_cosh", {}, ["values", "binary_logits"]),
    ("binary_crossentropy", {}, ["binary", "binary_ends", "classes"]),
    ("binary_crossentropy", {"from_logits": True}, ["binary_logits"]),
    ("binary_crossentropy", {"label_smoothing": 0.1}, ["binary"]),
    ("binary_crossentropy", {"from_logits": True, "label_smoothing": 0.2}, ["binary_logits"]),
    ("categorical_crossentropy", {}, ["classes", "soft", "unnormalised"]),
    ("categorical_crossentropy", {"from_logits": True}, ["class_logits"]),
    ("categorical_crossentropy", {"label_smoothing": 0.1}, ["classes"]),
    (
        "categorical_crossentropy",
        {"from_logits": True, "label_smoothing": 0.2},
        ["class_logits"],
    ),
    ("sparse_categorical_crossentropy", {}, ["classes", "unnormalised"]),
    ("sparse_categorical_crossentropy", {"from_logits": True}, ["class_logits"]),
    ("binary_focal_crossentropy", {}, ["binary"]),
    ("binary_focal_crossentropy", {"gamma": 3.0, "from_logits": True}, ["binary_scores"]),
    ("binary_focal_crossentropy", {"apply_class_balancing": True, "alpha": 0.4}, ["binary"]),
    ("binary_focal_crossentropy", {"label_smoothing": 0.1}, ["binary"]),
    ("categorical_focal_crossentropy", {}, ["classes", "unnormalised"]),
    ("categorical_focal_crossentropy", {"gamma": 1.5, "alpha": 0.5}, ["classes"]),
    (
        "categorical_focal_crossentropy",
        {"from_logits": True, "label_smoothing": 0.1},
        ["signs_classes"],
    ),
    ("hinge", {}, ["signs", "binary_scores", "values"]),
    ("squared_hinge", {}, ["signs", "binary_scores"]),
    ("categorical_hinge", {}, ["classes", "class_logits"]),
    ("kl_divergence", {}, ["soft", "classes"]),
    ("poisson", {}, ["positive"]),
    ("cosine_similarity", {}, ["values", "positive"]),
]


def text(name, options):
    pairs = []
    for key, value in options.items():
        value = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(
            value, float) else str(value)
        pairs.append(f"{key}={value}")
    return name + (":" + ",".join(pairs) if pairs else "")


def losses():
    cases = []
    for name, options, kinds in LOSSES:
        for kind in kinds:
            if kind == "signs_classes":
                target, predicted = inputs("classes")[0], inputs("signs")[1]
            else:
                target, predicted = inputs(kind)
            given = target
            if name.startswith("sparse"):
                given = target.argmax(-1)
            function = getattr(keras.losses, name)
            variable = tf.Variable(predicted)
            weights = np.arange(1, len(target) + 1, dtype=np.float32)
            with tf.GradientTape() as tape:
                values = function(given, variable, **options)
                total = tf.reduce_sum(values * weights)
            cases.append({
                "loss": text(name, options),
                "inputs": kind,
                "shape": list(target.shape),
                "targets": numbers(target),
                "predictions": numbers(predicted),
                "values": numbers(values),
                "gradient": numbers(tape.gradient(total, variable)),
            })
    return cases


def metric_batches(kind):
    batches = []
    for n, weighted in [(7, False), (4, False), (1, False)]:
        k = {"one": 1, "value": 1}.get(kind, 3)
        if kind in ("value", "values"):
            target = random.normal(size=(n, k)).astype(np.float32) + 1
            predicted = (target + random.normal(size=(n, k)) * 0.7).astype(np.float32)
        elif kind == "classes":
            target = np.eye(k, dtype=np.float32)[random.integers(0, k, n)]
            predicted = softmax(random.normal(size=(n, k)))
        else:
            target = random.integers(0, 2, (n, k)).astype(np.float32)
            predicted = np.round(random.uniform(0, 1, (n, k)), 2).astype(np.float32)
        batches.append((target, predicted))
    return batches


M = keras.metrics
METRICS = [
    ("binary_accuracy", M.BinaryAccuracy, {}, ["one", "labels"]),
    ("binary_accuracy", M.BinaryAccuracy, {"threshold": 0.3}, ["one", "labels"]),
    ("categorical_accuracy", M.CategoricalAccuracy, {}, ["classes", "labels"]),
    ("top_k_categorical_accuracy", M.TopKCategoricalAccuracy, {"k": 2}, ["classes"]),
    ("auc", M.AUC, {}, ["one", "labels", "classes"]),
    ("auc", M.AUC, {"curve": "PR"}, ["one", "labels", "classes"]),
    ("auc", M.AUC, {"num_thresholds": 11}, ["one"]),
    ("auc", M.AUC, {"curve": "PR", "multi_label": True}, ["labels"]),
    ("auc", M.AUC, {"multi_label": True}, ["labels"]),
    ("precision", M.Precision, {}, ["one", "labels", "classes"]),
    ("precision", M.Precision, {"thresholds": 0.25}, ["one"]),
    ("precision", M.Precision, {"class_id": 1}, ["labels", "classes"]),
    ("recall", M.Recall, {}, ["one", "labels", "classes"]),
    ("recall", M.Recall, {"class_id": 2}, ["classes"]),
    ("true_positives", M.TruePositives, {}, ["labels"]),
    ("true_negatives", M.TrueNegatives, {}, ["labels"]),
    ("false_positives", M.FalsePositives, {}, ["labels"]),
    ("false_negatives", M.FalseNegatives, {}, ["labels"]),
    ("f1_score", M.F1Score, {"average": "macro"}, ["classes"]),
    ("f1_score", M.F1Score, {"average": "micro"}, ["classes"]),
    ("f1_score", M.F1Score, {"average": "weighted"}, ["classes"]),
    ("f1_score", M.F1Score, {"average": "macro", "threshold": 0.5}, ["labels", "one"]),
    ("fbeta_score", M.FBetaScore, {"average": "macro", "beta": 2.0}, ["classes"]),
    ("mse", M.MeanSquaredError, {}, ["value", "values"]),
    ("mae", M.MeanAbsoluteError, {}, ["value", "values"]),
    ("mape", M.MeanAbsolutePercentageError, {}, ["values"]),
    ("rmse", M.RootMeanSquaredError, {}, ["value", "values"]),
    ("r2_score", M.R2Score, {}, ["value", "values"]),
    ("cosine_similarity", M.CosineSimilarity, {}, ["values"]),
    ("logcosh", M.LogCoshError, {}, ["values"]),
    ("binary_crossentropy", M.BinaryCrossentropy, {}, ["labels"]),
    ("categorical_crossentropy", M.CategoricalCrossentropy, {}, ["classes"]),
    ("kl_divergence", M.KLDivergence, {}, ["classes"]),
    ("hinge", M.Hinge, {}, ["one"]),
]


def metrics():
    cases = []
    for name, metric_class, options, kinds in METRICS:
        for kind in kinds:
            batches = metric_batches(kind)
            plain, weighted = metric_class(**options), metric_class(**options)
            given = []
            for target, predicted in batches:
                weights = random.integers(1, 5, len(target)).astype(np.float32) / 2
                plain.update_state(target, predicted)
                weighted.update_state(target, predicted, sample_weight=weights)
                given.append({
                    "shape": list(target.shape),
                    "labels": numbers(target),
                    "predictions": numbers(predicted),
                    "weights": numbers(weights),
                })
            cases.append({
                "metric": text(name, options),
                "inputs": kind,
                "batches": given,
                "result": float(plain.result()),
                "weighted": float(weighted.result()),
            })
    return cases


def write(name, cases):
    head = {"source": f"keras {keras.__version__}, tensorflow {tf.__version__}", "cases": cases}
    (HERE / name).write_text(json.dumps(head, separators=(",", ":")) + "\n")


write("losses.json", losses())
write("metrics.json", metrics())
