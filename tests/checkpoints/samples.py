"""Small checkpoints of every format without a commit, made with as few libraries as possible."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable

import msgpack  # type: ignore[import-untyped]
import numpy as np

_ARRAYS = {"w": np.arange(6.0).reshape(2, 3), "b": np.zeros(3, np.float32)}


def torch_zip() -> bytes:
    """As `torch.save`: stored entries, a pickle first, each storage on its own."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": 1}))
        archive.writestr("archive/byteorder", "little")
        for number, array in enumerate(_ARRAYS.values()):
            archive.writestr(f"archive/data/{number}", array.tobytes())
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


def npz() -> bytes:
    """As `numpy.savez`."""
    file = io.BytesIO()
    np.savez(file, w=_ARRAYS["w"], b=_ARRAYS["b"])
    return file.getvalue()


def zip_in_zip() -> bytes:
    """A stored zip whose last entry is a zip: cut after the inner one, it ends like a zip."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("first", b"x" * 50)
        archive.writestr("inner.npz", npz())
    return file.getvalue()


def safetensors() -> bytes:
    """As `safetensors` writes it: the header is padded with spaces."""
    header: dict[str, object] = {"__metadata__": {"format": "np"}}
    data, at = b"", 0
    for name, array in _ARRAYS.items():
        end = at + array.nbytes
        header[name] = {
            "dtype": "F64" if array.itemsize == 8 else "F32",
            "shape": list(array.shape),
            "data_offsets": [at, end],
        }
        data, at = data + array.tobytes(), end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def flax_msgpack() -> bytes:
    """As `flax.serialization.to_bytes`: arrays are values of an extension."""
    tree = {
        name: msgpack.ExtType(
            1, msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
        )
        for name, array in _ARRAYS.items()
    }
    state = {"params": tree, "step": 100, "rate": 0.5, "name": "a" * 40, "done": None, "rest": []}
    return bytes(msgpack.packb(state, use_bin_type=True))


def npy() -> bytes:
    """As `numpy.save`."""
    file = io.BytesIO()
    np.save(file, _ARRAYS["w"])
    return file.getvalue()


def equinox() -> bytes:
    """As `equinox.tree_serialise_leaves`, after a line of hyperparameters as in its docs."""
    file = io.BytesIO()
    file.write(b'{"width": 3}\n')
    for leaf in (*_ARRAYS.values(), np.array(3), np.array(True), np.zeros((0, 4))):
        np.save(file, leaf)
    return file.getvalue()


def hdf5(version: int = 0) -> bytes:
    """A superblock as h5py writes it, and the rest of a file of 800 bytes that it names."""
    size = 800
    addresses = struct.pack("<QQQQ", 0, (1 << 64) - 1, size, (1 << 64) - 1)
    if version == 0:
        block = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + bytes(8) + addresses
    else:
        block = b"\x89HDF\r\n\x1a\n" + bytes([version, 8, 8, 0]) + addresses
    return block.ljust(size, b"\1")


def hdf5_v3() -> bytes:
    """The same as newer versions of HDF5 write it when they are asked to."""
    return hdf5(3)


def pickled() -> bytes:
    """A pickle of everyday values and arrays."""
    value = {
        "step": 100,
        "w": _ARRAYS["w"],
        "rates": [0.5, 1e300],
        "name": "ä" * 300,
        "big": 1 << 90,
    }
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def pickled_by_protocol_2() -> bytes:
    """The same by the oldest protocol that is known: that of Python 2, and of `torch.save`."""
    return pickle.dumps({"step": 100, "w": _ARRAYS["w"]}, protocol=2)


def tensorflow_index() -> bytes:
    """The end of an index, a table of LevelDB."""
    return b"x" * 100 + bytes(40) + struct.pack("<Q", 0xDB4775248B80FB57)


FILES: dict[str, Callable[[], bytes]] = {
    "ckpt-100.pt": torch_zip,
    "epoch=3-step=100.ckpt": torch_zip,
    "params_100.npz": npz,
    "model.100.keras": zip_in_zip,
    "model-100.safetensors": safetensors,
    "checkpoint_100": flax_msgpack,
    "state_100.msgpack": flax_msgpack,
    "params_100.npy": npy,
    "model-100.eqx": equinox,
    "ckpt-100.weights.h5": hdf5,
    "model_100.hdf5": hdf5_v3,
    "state_100.pkl": pickled,
    "state_100.pickle": pickled_by_protocol_2,
}
"""Formats of one file, by the name of a step."""


def transformers_files() -> dict[str, bytes]:
    """The files of a checkpoint as the Trainer of Hugging Face writes them, in this order."""
    state = {"global_step": 100, "log_history": [{"loss": 1.0, "step": 10}]}
    index = {"metadata": {}, "weight_map": {"w": "model-00001-of-00002.safetensors"}}
    index["weight_map"]["b"] = "model-00002-of-00002.safetensors"
    return {
        "config.json": b"{}",
        "model-00001-of-00002.safetensors": safetensors(),
        "model-00002-of-00002.safetensors": safetensors(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "optimizer.pt": torch_zip(),
        "rng_state.pth": torch_zip(),
        "trainer_state.json": (json.dumps(state, indent=2, sort_keys=True) + "\n").encode(),
    }


def tensorflow_files() -> dict[str, bytes]:
    """The files of a step as clu writes them, in this order."""
    return {
        "ckpt-100.flax": flax_msgpack(),
        "ckpt-100.data-00000-of-00002": b"a",
        "ckpt-100.data-00001-of-00002": b"b",
        "ckpt-100.index": tensorflow_index(),
    }
