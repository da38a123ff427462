"""A manifest finds every change of what it lists."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.manifest import MANIFEST, DamagedError, read_manifest, write_manifest

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
        write_manifest(directory, {"model.hidden_size": 16, "name": "é"}, {"jax": "0"})
        yield directory


def verify(directory: Path, *, quickly: bool = False) -> None:
    manifest = read_manifest(directory)
    assert manifest is not None
    if quickly:
        manifest.verify_quickly(directory)
    else:
        manifest.verify(directory)


@settings(deadline=None, max_examples=60)
@given(CONTENTS, st.data(), st.booleans())
def test_any_change_is_found(
    contents: tuple[bytes, ...], data: st.DataObject, quickly: bool
) -> None:
    with recorded(contents) as directory:
        verify(directory, quickly=quickly)
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
            verify(directory, quickly=quickly)


@given(st.binary(max_size=80))
def test_garbage_is_no_manifest(garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / MANIFEST).write_bytes(garbage)
        with pytest.raises(DamagedError):
            read_manifest(Path(name))


def test_a_file_more_does_no_harm_and_a_directory_gone_does() -> None:
    with recorded((b"a", b"b", b"c", b"d")) as directory:
        (directory / "notes.txt").touch()
        verify(directory)
        shutil.rmtree(directory / "params")
        with pytest.raises(DamagedError, match="is missing"):
            verify(directory)
    assert read_manifest(directory) is None


def test_a_manifest_of_an_earlier_version_has_no_checksums() -> None:
    with recorded((b"a", b"b", b"c", b"d")) as directory:
        body = json.loads((directory / MANIFEST).read_bytes())
        del body["crc32"], body["sha256"]
        digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
        written = json.dumps(body | {"sha256": digest}, indent=1) + "\n"
        (directory / MANIFEST).write_text(written)
        verify(directory, quickly=True)
        (directory / NAMES[0]).write_bytes(b"b")
        with pytest.raises(DamagedError, match="_METADATA does not have the content"):
            verify(directory, quickly=True)
