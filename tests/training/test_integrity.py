"""A manifest finds every change of what it lists."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.integrity import MANIFEST, DamagedError, read, record

NAMES = ("_METADATA", "params/d/0a", "params/manifest.ocdbt", "progress/état")
CONTENTS = st.tuples(*(st.binary(max_size=80) for _ in NAMES))


@contextmanager
def recorded(contents: tuple[bytes, ...]) -> Iterator[Path]:
    """A directory of `NAMES` with these contents and their manifest."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for path, content in zip(NAMES, contents, strict=True):
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
        record(directory, {"model.hidden_size": 16, "name": "é"}, {"jax": "0"})
        yield directory


def verify(directory: Path) -> None:
    manifest = read(directory)
    assert manifest is not None
    manifest.verify(directory)


@settings(deadline=None, max_examples=60)
@given(CONTENTS, st.data())
def test_any_change_is_found(contents: tuple[bytes, ...], data: st.DataObject) -> None:
    with recorded(contents) as directory:
        verify(directory)
        path = directory / data.draw(st.sampled_from((*NAMES, MANIFEST)))
        content = bytearray(path.read_bytes())
        kinds = ["append"]
        kinds += ["byte", "truncation"] if content else []
        kinds += ["deletion"] if path.name != MANIFEST else []
        match data.draw(st.sampled_from(kinds)):
            case "byte":
                content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(
                    st.integers(1, 255)
                )
                path.write_bytes(content)
            case "truncation":
                path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
            case "append":
                path.write_bytes(bytes(content) + data.draw(st.binary(min_size=1, max_size=3)))
            case "deletion":
                path.unlink()
        with pytest.raises(DamagedError):
            verify(directory)


@given(st.binary(max_size=80))
def test_garbage_is_no_manifest(garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / MANIFEST).write_bytes(garbage)
        with pytest.raises(DamagedError):
            read(Path(name))


def test_a_file_more_does_no_harm_and_a_directory_gone_does() -> None:
    with recorded((b"a", b"b", b"c", b"d")) as directory:
        (directory / "notes.txt").touch()
        verify(directory)
        shutil.rmtree(directory / "params")
        with pytest.raises(DamagedError, match="is missing"):
            verify(directory)
    assert read(directory) is None
