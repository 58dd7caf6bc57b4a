"""Writes cases.json: what TensorFlow reads of TFRecord files and messages, good and bad.

Run with Python, TensorFlow 2.21 installed: python generate.py
The cases have the form of conformance/golden: inputs, and `expect` or `error`.
"""
import base64
import gzip
import json
import os
import struct
import tempfile
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf  # noqa: E402

CASES = []


def b64(data):
    return base64.b64encode(data).decode()


def error_of(error):
    text = getattr(error, "message", None) or str(error)
    return {"class": type(error).__name__, "message": text.split("}} ")[-1].split(" [Op:")[0][:300]}


def case(name, inputs, run):
    entry = {"name": name, "strategy": {"kind": "none"}, "inputs": inputs}
    try:
        entry["expect"] = run()
    except Exception as error:  # every class is recorded
        entry["error"] = error_of(error)
    CASES.append(entry)


# Protocol buffers by hand.
def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def tag(field, wire):
    return varint(field << 3 | wire)


def sub(field, data):
    return tag(field, 2) + varint(len(data)) + data


def ints(*values):
    return sub(3, sub(1, b"".join(map(varint, values))))


def ints_unpacked(*values):
    return sub(3, b"".join(tag(1, 0) + varint(v) for v in values))


def floats(*values):
    return sub(2, sub(1, struct.pack(f"<{len(values)}f", *values)))


def floats_unpacked(*values):
    return sub(2, b"".join(tag(1, 5) + struct.pack("<f", v) for v in values))


def texts(*values):
    return sub(1, b"".join(sub(1, v) for v in values))


def entry(key, feature):
    return sub(1, sub(1, key.encode()) + sub(2, feature))


def example(*entries):
    return sub(1, b"".join(entries))


# Framing.
def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def read(name, data, compression=""):
    def run():
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            records = tf.data.TFRecordDataset(file.name, compression_type=compression)
            return {"records": [b64(r.numpy()) for r in records]}

    case(name, {"op": "read", "compression": compression, "file": b64(data)}, run)


def write(name, records, compression):
    def run():
        with tempfile.NamedTemporaryFile() as file:
            with tf.io.TFRecordWriter(file.name, options=compression) as writer:
                for record in records:
                    writer.write(record)
            return {"file": b64(open(file.name, "rb").read())}

    case(name, {"op": "write", "records": [b64(r) for r in records]}, run)


def files():
    records = [b"first", b"", b"third one"]
    good = b"".join(map(frame, records))
    write("write", records, "")
    for cut in range(0, len(good) + 1):
        read(f"cut_{cut}", good[:cut])
    for bit in range(0, 8 * len(good), 7):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        read(f"bit_{bit}", bytes(bad))
    for size in (2**64 - 1, 2**64 - 4, 2**64 - 5, 1000, 2**31):
        length = struct.pack("<Q", size)
        if size not in (2**64 - 5,):  # TensorFlow crashes
            read(f"giant_{size}", length + struct.pack("<I", masked(length)) + b"abc")
    packed = {"GZIP": gzip.compress(good, mtime=0), "ZLIB": zlib.compress(good)}
    for kind, data in packed.items():
        for other in ("", "GZIP", "ZLIB"):
            read(f"{kind}_as_{other}", data, other)
            read(f"empty_as_{other}", b"", other)
        read(f"plain_as_{kind}", good, kind)
        read(f"twice_{kind}", data + data, kind)
        read(f"garbage_behind_{kind}", data + b"garbage", kind)
        for cut in (2, 10, 12, 20, 30, len(data) - 9, len(data) - 4, len(data) - 1):
            read(f"{kind}_cut_{cut}", data[:cut], kind)
        for at in (15, len(data) - 6, len(data) - 1):
            bad = bytearray(data)
            bad[at] ^= 0x55
            read(f"{kind}_damaged_{at}", bytes(bad), kind)
    read("html", b"<!DOCTYPE html><html><body>404</body></html>")


def feature_json(feature):
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    values = getattr(feature, kind).value
    return {kind: [b64(v) if kind == "bytes_list" else v for v in values]}


def message(name, data, features=None):
    def run():
        parsed = tf.train.Example.FromString(data)
        return {"features": {k: feature_json(v) for k, v in parsed.features.feature.items()}}

    case("example_" + name, {"op": "example", "message": b64(data)}, run)
    for spec_name, spec in (features or {"int": INT, "sparse": SPARSE}).items():
        parse(f"parse_{spec_name}_{name}", data, spec)


INT = {"a": {"fixed": [2], "dtype": "int64"}}
SPARSE = {"a": {"variable": True, "dtype": "int64"}}
FLOAT = {"a": {"fixed": [2], "dtype": "float32"}}
FLOATS = {"a": {"variable": True, "dtype": "float32"}}
TEXT = {"a": {"fixed": [2], "dtype": "string"}}
TEXTS = {"a": {"variable": True, "dtype": "string"}}


def configuration(spec):
    dtype = tf.dtypes.as_dtype(spec["dtype"])
    if "fixed" in spec:
        return tf.io.FixedLenFeature(spec["fixed"], dtype, spec.get("default"))
    if "sequence" in spec:
        missing = spec.get("allow_missing", False)
        return tf.io.FixedLenSequenceFeature(spec["sequence"], dtype, allow_missing=missing)
    if "ragged" in spec:
        parts = []
        for partition in spec["ragged"]:
            if isinstance(partition, int):
                parts.append(tf.io.RaggedFeature.UniformRowLength(partition))
            else:
                kind, key = partition
                kinds = {
                    "row_lengths": tf.io.RaggedFeature.RowLengths,
                    "row_splits": tf.io.RaggedFeature.RowSplits,
                }
                parts.append(kinds[kind](key))
        return tf.io.RaggedFeature(dtype, spec.get("value_key"), partitions=parts)
    return tf.io.VarLenFeature(dtype)


def tensor_json(tensor):
    if isinstance(tensor, tf.SparseTensor):
        tensor = tf.sparse.to_dense(tensor)
    if isinstance(tensor, tf.RaggedTensor):
        found = {"ragged": tensor.to_list()}
        found["ragged"] = json.loads(json.dumps(found["ragged"], default=b64))
        return found
    values = tensor.numpy().reshape(-1).tolist()
    data = [b64(v) if isinstance(v, bytes) else v for v in values]
    return {"dtype": tensor.dtype.name, "shape": list(tensor.shape), "data": data}


def parse(name, data, features):
    def run():
        wanted = {key: configuration(spec) for key, spec in features.items()}
        found = tf.io.parse_single_example(data, wanted)
        return {key: tensor_json(value) for key, value in found.items()}

    case(name, {"op": "parse", "message": b64(data), "features": features}, run)


def sequence(name, data, context, lists):
    def plain():
        parsed = tf.train.SequenceExample.FromString(data)
        every = parsed.feature_lists.feature_list.items()
        return {
            "context": {k: feature_json(v) for k, v in parsed.context.feature.items()},
            "lists": {k: [feature_json(f) for f in v.feature] for k, v in every},
        }

    def run():
        found = tf.io.parse_single_sequence_example(
            data,
            {key: configuration(spec) for key, spec in context.items()},
            {key: configuration(spec) for key, spec in lists.items()},
        )
        parts = [{key: tensor_json(value) for key, value in part.items()} for part in found]
        return {"context": parts[0], "lists": parts[1]}

    case("sequence_" + name, {"op": "sequence_example", "message": b64(data)}, plain)
    inputs = {"op": "parse_sequence", "message": b64(data), "context": context, "lists": lists}
    case("parse_sequence_" + name, inputs, run)


def messages():
    two = ints(1, 2)
    message("packed", example(entry("a", two)))
    message("unpacked", example(entry("a", ints_unpacked(1, 2))))
    message("mixed_packing", example(entry("a", sub(3, tag(1, 0) + varint(1) + sub(1, b"\2")))))
    message("packed_twice", example(entry("a", sub(3, sub(1, b"\1") + sub(1, b"\2")))))
    message("list_twice", example(entry("a", ints(1) + ints(2))))
    message("kind_twice", example(entry("a", floats(1.0) + two)))
    message("kind_twice_int_first", example(entry("a", two + floats(1.0))))
    message("key_twice", example(entry("a", ints(7, 8)), entry("a", two)))
    message("key_twice_other_kind", example(entry("a", floats(1.0)), entry("a", two)))
    message("key_twice_then_empty", example(entry("a", two), entry("a", b"")))
    message("merged", example(entry("a", two)) + example(entry("b", ints(3))))
    message("merged_same_key", example(entry("a", two)) + example(entry("a", ints(3, 4))))
    message("value_before_key", example(sub(1, sub(2, two) + sub(1, b"a"))))
    message("no_key", example(sub(1, sub(2, two)), entry("a", two)))
    message("no_value", example(sub(1, sub(1, b"a"))))
    message("key_field_twice", example(sub(1, sub(1, b"b") + sub(1, b"a") + sub(2, two))))
    message("value_field_twice", example(sub(1, sub(1, b"a") + sub(2, two) + sub(2, ints(3)))))
    for wire, body in enumerate([varint(5), b"12345678", varint(3) + b"abc", b"", b"", b"1234"]):
        unknown = tag(9, wire) + body
        message(f"unknown_{wire}_example", unknown + example(entry("a", two)))
        message(f"unknown_{wire}_behind", example(entry("a", two)) + unknown)
        message(f"unknown_{wire}_features", sub(1, unknown + entry("a", two)))
        message(f"unknown_{wire}_entry", example(sub(1, unknown + sub(1, b"a") + sub(2, two))))
        message(f"unknown_{wire}_feature", example(entry("a", unknown + two)))
        message(f"unknown_{wire}_feature_behind", example(entry("a", two + unknown)))
        message(f"unknown_{wire}_list", example(entry("a", sub(3, unknown + sub(1, b"\1\2")))))
        message(f"unknown_{wire}_list_behind", example(entry("a", sub(3, sub(1, b"\1\2") + unknown))))
    message("unknown_group", tag(9, 3) + tag(1, 0) + b"\1" + tag(9, 4) + example(entry("a", two)))
    message("unknown_large", tag(1000, 0) + varint(1 << 40) + example(entry("a", two)))
    message("unknown_long", tag(9, 2) + varint(100) + b"abc")
    message("wire_features", tag(1, 0) + varint(5) + example(entry("a", two)))
    message("wire_entry", sub(1, tag(1, 0) + varint(5) + entry("a", two)))
    message("wire_key", example(sub(1, tag(1, 0) + varint(5) + sub(2, two))))
    message("wire_list", example(entry("a", tag(3, 0) + varint(5))))
    message("wire_values", example(entry("a", sub(3, tag(1, 5) + b"1234"))))
    message("wire_values_64", example(entry("a", sub(3, tag(1, 1) + b"12345678"))))
    message("field_0", b"\0\0" + example(entry("a", two)))
    message("wire_7", tag(9, 7) + example(entry("a", two)))
    message("utf8", example(sub(1, sub(1, b"\xff\xfe") + sub(2, two)), entry("a", two)))
    message("varint_long", example(entry("a", sub(3, sub(1, b"\xff" * 10 + b"\1" + b"\2")))))
    message("varint_ten", example(entry("a", ints(-1, -2))))
    message("empty", b"")
    message("empty_features", example())
    message("one_value", example(entry("a", ints(1))))
    message("three_values", example(entry("a", ints(1, 2, 3))))
    message("three_unpacked", example(entry("a", ints_unpacked(1, 2, 3))))
    message("no_values", example(entry("a", ints())))
    message("empty_list", example(entry("a", sub(3, b""))))
    message("packed_cut", example(entry("a", sub(3, tag(1, 2) + varint(9) + b"\1\2"))))
    whole = example(entry("a", two), entry("b", floats(1.5)))
    for cut in range(len(whole)):
        message(f"cut_{cut}", whole[:cut])
    own = {"float": FLOAT, "floats": FLOATS, "int": INT}
    message("floats", example(entry("a", floats(1.5, -2.0))), own)
    message("floats_unpacked", example(entry("a", floats_unpacked(1.5, -2.0))), own)
    message("floats_mixed", example(entry("a", sub(2, tag(1, 5) + b"\0\0\x80?" + sub(1, b"\0\0\0@")))), own)
    message("floats_packed_twice", example(entry("a", sub(2, sub(1, b"\0\0\x80?") + sub(1, b"\0\0\0@")))), own)
    message("floats_ragged", example(entry("a", sub(2, sub(1, b"\0\0\x80?\0\0")))), own)
    message("floats_one", example(entry("a", floats(1.5))), own)
    message("floats_three", example(entry("a", floats(1.5, 2.0, 3.0))), own)
    message("floats_three_unpacked", example(entry("a", floats_unpacked(1.5, 2.0, 3.0))), own)
    message("floats_none", example(entry("a", floats())), own)
    own = {"text": TEXT, "texts": TEXTS, "sparse": SPARSE}
    message("texts", example(entry("a", texts(b"one", b"\xff"))), own)
    message("texts_one", example(entry("a", texts(b"one"))), own)
    message("texts_three", example(entry("a", texts(b"one", b"", b"3"))), own)
    message("texts_cut", example(entry("a", sub(1, tag(1, 2) + varint(9) + b"ab"))), own)
    message("texts_wire", example(entry("a", sub(1, tag(1, 0) + varint(9)))), own)
    message("texts_unknown", example(entry("a", sub(1, sub(1, b"x") + tag(2, 0) + b"\1" + sub(1, b"y")))), own)


def schemas():
    data = example(
        entry("a", ints(1, 2, 3, 4)), entry("f", floats(0.5)), entry("t", texts(b"x", b"yz")),
        entry("n", ints(1, 3)), entry("s", ints(0, 1, 4)),
    )
    one = lambda **spec: {"a": {"dtype": "int64", **spec}}
    parse("schema_fixed", data, one(fixed=[2, 2]))
    parse("schema_fixed_unsized", data, one(fixed=[3]))
    parse("schema_scalar", data, {"f": {"fixed": [], "dtype": "float32"}})
    parse("schema_default_list", data, {"x": {"fixed": [2], "dtype": "int64", "default": [5, 6]}})
    parse("schema_default_scalar", data, {"x": {"fixed": [2], "dtype": "float32", "default": 0.5}})
    parse("schema_default_text", data, {"x": {"fixed": [], "dtype": "string", "default": "z"}})
    parse("schema_default_wrong", data, {"x": {"fixed": [2], "dtype": "int64", "default": [5, 6, 7]}})
    parse("schema_sequence", data, one(sequence=[], allow_missing=True))
    parse("schema_sequence_2", data, one(sequence=[2], allow_missing=True))
    parse("schema_sequence_3", data, one(sequence=[3], allow_missing=True))
    parse("schema_sequence_strict", data, one(sequence=[]))
    parse("schema_sequence_missing", data, {"x": {"dtype": "int64", "sequence": [2], "allow_missing": True}})
    parse("schema_sequence_kind", data, {"f": {"dtype": "int64", "sequence": [], "allow_missing": True}})
    parse("schema_sequence_text", data, {"t": {"dtype": "string", "sequence": [2], "allow_missing": True}})
    parse("schema_ragged", data, one(ragged=[]))
    parse("schema_ragged_missing", data, {"x": {"dtype": "int64", "ragged": []}})
    parse("schema_ragged_lengths", data, one(ragged=[["row_lengths", "n"]]))
    parse("schema_ragged_splits", data, one(ragged=[["row_splits", "s"]]))
    parse("schema_ragged_uniform", data, one(ragged=[2]))
    parse("schema_ragged_uniform_3", data, one(ragged=[3]))
    parse("schema_ragged_bad_lengths", data, {"t": {"dtype": "string", "ragged": [["row_lengths", "n"]]}})
    parse("schema_ragged_no_lengths", data, one(ragged=[["row_lengths", "z"]]))
    parse("schema_ragged_other_key", data, {"r": {"dtype": "int64", "value_key": "a", "ragged": []}})
    parse("schema_wrong_sparse", data, {"f": {"variable": True, "dtype": "string"}})
    parse("schema_dtype", data, {"a": {"fixed": [4], "dtype": "int32"}})
    parse("schema_several", data, {**one(fixed=[4]), "t": {"variable": True, "dtype": "string"},
                                   "z": {"variable": True, "dtype": "float32"}})
    parse("schema_none", data, {})


def sequences():
    step = lambda feature: sub(1, feature)
    steps = lambda key, *all: sub(1, sub(1, key.encode()) + sub(2, b"".join(map(step, all))))
    make = lambda context, *lists: sub(1, b"".join(context)) + sub(2, b"".join(lists))
    context = {"n": {"fixed": [], "dtype": "int64"}}
    sized = {"t": {"sequence": [], "dtype": "int64"}}
    pairs = {"t": {"sequence": [2], "dtype": "int64"}}
    variable = {"t": {"variable": True, "dtype": "int64"}}
    missing = {"t": {"sequence": [], "dtype": "int64", "allow_missing": True}}
    n = entry("n", ints(3))
    good = make([n], steps("t", ints(1), ints(2)))
    sequence("good", good, context, sized)
    sequence("variable", make([n], steps("t", ints(1), ints(2, 3), ints())), context, variable)
    sequence("pairs", make([n], steps("t", ints(1, 2), ints(2, 3))), context, pairs)
    sequence("pairs_odd", make([n], steps("t", ints(1, 2), ints(2))), context, pairs)
    sequence("uneven", make([n], steps("t", ints(1), ints(2, 3))), context, sized)
    sequence("missing_list", make([n]), context, sized)
    sequence("missing_allowed", make([n]), context, missing)
    sequence("missing_variable", make([n]), context, variable)
    sequence("empty_list", make([n], steps("t")), context, sized)
    sequence("missing_context", make([], steps("t", ints(1))), context, sized)
    sequence("context_kind", make([entry("n", floats(1.0))], steps("t", ints(1))), context, sized)
    sequence("context_count", make([entry("n", ints(1, 2))], steps("t", ints(1))), context, sized)
    sequence("context_default", make([], steps("t", ints(1))), {"n": {"fixed": [], "dtype": "int64", "default": 9}}, sized)
    sequence("context_variable", make([n]), {"n": {"variable": True, "dtype": "int64"}}, missing)
    sequence("context_variable_kind", make([n]), {"n": {"variable": True, "dtype": "string"}}, missing)
    sequence("list_kind", make([n], steps("t", floats(1.0))), context, sized)
    sequence("list_kind_variable", make([n], steps("t", ints(1), floats(1.0))), context, variable)
    sequence("list_step_empty", make([n], steps("t", ints(1), b"")), context, sized)
    sequence("list_step_empty_variable", make([n], steps("t", ints(1), b"", ints(5))), context, variable)
    sequence("lists_twice", make([n], steps("t", ints(1)), steps("t", ints(2), ints(3))), context, sized)
    sequence("merged", good + make([], steps("t", ints(9))), context, sized)
    sequence("unknown", tag(9, 0) + b"\1" + good, context, sized)
    sequence("empty", b"", context, sized)
    sequence("nothing_wanted", good, context, {})
    for cut in range(1, len(good), 3):
        sequence(f"cut_{cut}", good[:cut], context, sized)


files()
messages()
schemas()
sequences()
folder = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(folder, "cases.json"), "w") as file:
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in CASES)
    file.write(f'{{"source": "tensorflow {tf.__version__}", "cases": [\n{lines}\n]}}\n')
print(len(CASES))
