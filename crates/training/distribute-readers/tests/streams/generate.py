"""Writes small archives as Python's tarfile does, which WebDataset's writer uses, and records of
TensorFlow. Run with Python, TensorFlow 2.21 installed: python generate.py"""
import io
import os
import tarfile

import tensorflow as tf

FOLDER = os.path.dirname(os.path.abspath(__file__))
LONG = "a-name-of-many-letters/" * 8
MEMBERS = [
    ("train/0001.jpg", b"image one"),
    ("train/0001.cls", b"3"),
    ("readme", b"no sample"),
    (LONG + "0002.JPG", b"image two" * 100),
    (LONG + "0002.cls", b""),
    ("\u00e4/0003.seg.png", b"mask"),
]


def archive(name, kind, mode):
    with tarfile.open(os.path.join(FOLDER, name), mode, format=kind) as tar:
        folder = tarfile.TarInfo("train")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for path, data in MEMBERS:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


archive("pax.tar", tarfile.PAX_FORMAT, "w")
archive("gnu.tar.gz", tarfile.GNU_FORMAT, "w:gz")
for name, options in [("plain", ""), ("gzip", "GZIP")]:
    path = os.path.join(FOLDER, f"{name}.tfrecord")
    with tf.io.TFRecordWriter(path, options=options) as writer:
        for number in range(5):
            writer.write(f"{name} {number}".encode())
