"""Trees of files that are not ours. They are made of anything that somebody could put there, and
compared afterwards, so that a test knows whether anything in them was changed."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypothesis import strategies as st

from supervisor.protocol.removal import Place


def fingerprint(root: Path) -> dict[str, tuple[object, ...]]:
    """Return a description of each entry below `root`, by its path: type and mode, and the content
    of a file or the target of a link."""
    return dict(_below(root, ""))


def _below(root: Path, path: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    whole = root / path
    status = whole.lstat()
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        yield path, (mode, os.fspath(whole.readlink()))
    elif stat.S_ISREG(mode):
        digest = hashlib.sha256(whole.read_bytes()).hexdigest()
        yield path, (mode, status.st_size, status.st_mtime_ns, digest)
    else:
        yield path, (mode,)
        if stat.S_ISDIR(mode):
            for inner in sorted(whole.iterdir()):
                yield from _below(root, f"{path}/{inner.name}" if path else inner.name)


HEX = "0123456789abcdef" * 2
SAMPLES = {
    Place.TEMPORARY: ".summary.json.tmp",
    Place.PROBE: f".writable.{HEX}",
    Place.REQUEST: f"requests/{HEX}.clear-quarantine.json",
    Place.OUTPUT: "20260101_000000_restartable/attempts/0001/rank0.log",
    Place.RECORD: "20260101_000000_restartable/attempts/0001/rank0.failure.json",
    Place.PREFETCH_RECORD: "20260101_000000_restartable/attempts/prefetch2/rank0.failure.json",
    Place.COMPILED: "live/jit_step-0123-cache",
    Place.EXECUTABLE: f"train-step-rank0-{HEX}.executable",
    Place.TOKENS: f"tokens/{HEX}-{HEX}.tokens",
    Place.READING_MARK: "7/supervise_reading_rank0",
    Place.COMMIT_MARKER: "7/commit_success.txt",
    Place.EARLIER_NOTE: "supervise_saving.txt",
    Place.INSTALLED: f"provision/files/{HEX * 2}/job.yaml",
    Place.SEGMENT: "journal.jsonl.parts/1-0-7",
    Place.LEASE: "lease.json",
    Place.STEP_MANIFEST: f"checkpoint_manifests/{HEX[:16]}/7.json",
    Place.QUEUED_RESOURCE: "3",
    Place.STEP: "7",
    Place.KILLED_SAVE: "7.orbax-checkpoint-tmp",
}
"""One name for each place. A new place needs one here, so that the properties below cover it."""

PARTS = sorted({part for sample in SAMPLES.values() for part in sample.split("/")})
ODD = [
    "2023",
    "007",
    "٣",
    "a\nb",
    "\udcff\udcfe",
    " ",
    "-rf",
    "*",
    "..x",
    "é",
    "corrupt",
    "foreign",
]
NAMES = st.sampled_from(PARTS + ODD)
Entry = tuple[list[str], str, int]
"""Something that somebody puts into the folder: path, kind and mode."""
ENTRIES = st.lists(
    st.tuples(
        st.lists(NAMES, min_size=1, max_size=4),
        st.sampled_from(["file", "folder", "fifo", "inward", "outward", "loop", "hard", "broken"]),
        st.sampled_from([0o400, 0o600, 0o644, 0o755]),
    ),
    max_size=12,
)


def put(root: Path, outside: Path, parts: list[str], kind: str, mode: int) -> None:
    """Make an entry of kind `kind`, unless something has that name. Its parents may be links by
    then."""
    path = root.joinpath(*parts)
    if os.path.lexists(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "file":
            path.write_text("somebody's")
            path.chmod(mode)
        case "folder":
            path.mkdir(mode=mode | 0o700)
        case "fifo":
            os.mkfifo(path, mode)
        case "inward":
            path.symlink_to(root)
        case "outward":
            path.symlink_to(outside)
        case "loop":
            path.symlink_to(path.name)
        case "broken":
            path.symlink_to(outside / "nothing")
        case "hard":
            path.hardlink_to(outside / "file")


@contextmanager
def foreign(entries: list[Entry]) -> Iterator[tuple[Path, Path]]:
    """Yield a folder of ours that contains `entries`, and a folder outside of it whose files have
    the names of `SAMPLES`."""
    with tempfile.TemporaryDirectory() as name:
        root, outside = Path(name) / "root", Path(name) / "outside"
        root.mkdir()
        for sample in SAMPLES.values():
            (outside / sample).parent.mkdir(parents=True, exist_ok=True)
        for sample in SAMPLES.values():
            if not (outside / sample).exists():
                (outside / sample).write_text("outside")
        (outside / "file").write_text("outside")
        for parts, kind, mode in entries:
            with suppress(OSError):
                put(root, outside, parts, kind, mode)
        yield root, outside
