"""Makes a wheel of the files of this package, so that a slice runs the same code as this loop.

The slice asks no package index for the name `supervise-jax`: whoever registered it there could run
code as root on the slice. The wheel is in the bucket of the job, under its digest, which is also in
the startup script. In an editable install the files are those of the checkout. The same files give
the same bytes: names are sorted, times are constant, and nothing is compressed.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from supervisor.provision.boot import File

_NAME = "supervise-jax"
_PACKAGES = ("supervisor", "trainer")
_WHEEL = b"Wheel-Version: 1.0\nGenerator: supervise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_DESCRIBED_BY = ("METADATA", "entry_points.txt")


def own_wheel() -> File:
    """Returns the wheel of this package.

    Raises:
        OSError: the files cannot be read, or this package is not installed.
    """
    try:
        installed = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        text = f"{_NAME} is not installed here, so that no wheel can be made: pip install -e ."
        raise OSError(text) from None
    stem = f"{_NAME.replace('-', '_')}-{installed.version}"
    info = f"{stem}.dist-info"
    licences = (f"licenses/{name}" for name in installed.metadata.get_all("License-File") or [])
    described = ((name, installed.read_text(name)) for name in (*_DESCRIBED_BY, *licences))
    files = {
        **dict(_sources()),
        **{f"{info}/{name}": text.encode() for name, text in described if text is not None},
        f"{info}/WHEEL": _WHEEL,
    }
    record = "".join(
        f"{name},{_digest(files[name])},{len(files[name])}\n" for name in sorted(files)
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    return File(f"{stem}-py3-none-any.whl", _zipped(files))


def _sources() -> Iterator[tuple[str, bytes]]:
    """Yields the files of our packages: name in the wheel, and content. Links are left out, because
    our packages have none."""
    root = Path(__file__).parents[2]
    for package in _PACKAGES:
        for path in (root / package).rglob("*"):
            compiled = path.suffix == ".pyc" or "__pycache__" in path.parts
            if path.is_file() and not path.is_symlink() and not compiled:
                yield path.relative_to(root).as_posix(), path.read_bytes()


def _digest(data: bytes) -> str:
    """Returns the digest of `data` in the form that RECORD needs."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # its time is 1980-01-01
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()
