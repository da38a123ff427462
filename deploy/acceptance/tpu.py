"""Checks for TPUs only."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from pathlib import Path

from deploy.acceptance.bench import DEVICE, Bench, CheckFailedError, CheckSkippedError
from deploy.acceptance.checks import check
from deploy.acceptance.common import run_step, shown_environment, sizes
from supervisor.adapters.platforms import accelerators
from supervisor.protocol.environment import SHARES_TPU

_LOCK = Path("/tmp/libtpu_lockfile")
_NOBODY = 65534
_REFUSED = 60.0
"""Seconds within which a process that wants a busy chip must be refused."""
_ALLOW_SEVERAL_PROCESSES = {SHARES_TPU: "1"}
_LOCK_SOURCE = "openxla, tpu_initialize_util.cc: TryAcquireTpuLock"


@check(
    "chip-files",
    "tpu",
    expected="TPU_VISIBLE_CHIPS=k opens one device file, another for each k; coordinates and "
    "hardware ids tell whether it is the chip with id k",
    source="jax ids run x first, a list of chips in jax/_src/test_multiprocess.py y first: which "
    "of the two holds, no source says",
    seconds=240.0,
)
def chip_files(bench: Bench) -> None:
    """Compares the process that sees all chips with one process for each chip."""
    together = run_step(bench, list(range(bench.count))).up["devices"]
    known = {each["id"]: each["hardware_id"] for each in together}
    bench.see(f"local_hardware_id by id, where all chips are seen: {known}")
    files: dict[int, tuple[str, ...]] = {}
    for place in range(bench.count):
        alone = run_step(bench, [place])
        files[place], first = alone.files, alone.up["devices"][0]
        bench.see(
            f"TPU_VISIBLE_CHIPS={place}: {', '.join(files[place]) or 'no file seen'}, coords "
            f"{first['coords']}, local_hardware_id {first['hardware_id']}"
        )
    opened = [each for those in files.values() for each in those]
    bench.expect(all(len(those) == 1 for those in files.values()), f"not one each: {files}")
    bench.expect(len(set(opened)) == len(opened), f"a file for several chips: {files}")


@check(
    "two-processes",
    "tpu",
    expected="two processes with half of the chips each: side by side with "
    "ALLOW_MULTIPLE_LIBTPU_LOAD; "
    "without it the second is refused where the bounds are 2,2,1",
    source=_LOCK_SOURCE,
    seconds=180.0,
)
def two_processes(bench: Bench) -> None:
    """Tries with ALLOW_MULTIPLE_LIBTPU_LOAD, then without."""
    half = bench.count // 2
    if half not in sizes(bench):
        raise CheckSkippedError(f"half of {bench.count} chips is no part of this host")
    halves = [list(range(half)), list(range(half, bench.count))]
    allowed = _side_by_side(bench, halves, _ALLOW_SEVERAL_PROCESSES)
    bench.see(f"with ALLOW_MULTIPLE_LIBTPU_LOAD: {allowed}")
    refused = _side_by_side(bench, halves, {})
    bench.see(f"without: {refused}")
    bench.expect(allowed == "both hold their chips", "refused although it was allowed")
    is_exclusive = shown_environment(bench, halves[0])["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"
    if is_exclusive:
        bench.expect(refused != "both hold their chips", "libtpu took no lock")


def _side_by_side(bench: Bench, halves: list[list[int]], env: dict[str, str]) -> str:
    outcome = "both hold their chips"
    for places in halves:
        shows = {
            k: v
            for k, v in shown_environment(bench, places).items()
            if k not in _ALLOW_SEVERAL_PROCESSES
        }
        child = bench.device("hold", {**shows, **env})
        try:
            child.wait_for("holding")
        except CheckFailedError as error:
            outcome = str(error)
            break
    bench.end()
    return outcome


@check(
    "lock-file",
    "tpu",
    expected="a lock file that a killed process left is no hindrance to its own user; one of "
    "another user is, although nobody holds a chip: the error names it or says that the TPU is "
    "in use",
    source=f"{_LOCK_SOURCE}: SIGKILL leaves the file, of mode 0600",
    seconds=120.0,
)
def lock_file(bench: Bench) -> None:
    """Tries our own lock file as any user, and another user's lock file only as root."""
    before = _status()
    if before and not _is_ours(before):
        raise CheckSkippedError(f"{_LOCK} is {_described(before)}: it is left as it is")
    try:
        _after_a_kill(bench)
        if os.geteuid() != 0:
            raise CheckSkippedError(
                "own file: no hindrance; another user's file can be made by root alone"
            )
        _with_a_lock_of_root(bench)
    finally:
        bench.end()
        after = _status()
        if not before and after and _is_ours(after):
            _LOCK.unlink()


def _after_a_kill(bench: Bench) -> None:
    child = bench.device("train")
    child.wait_for("step")
    child.kill()
    child.wait()
    bench.see(f"after SIGKILL {_LOCK}: {_described(_status())}")
    again = bench.device("hold")
    again.wait_for("holding")
    again.kill()
    again.wait()


def _with_a_lock_of_root(bench: Bench) -> None:
    """Use root's lock file if there is one, else make one; never change an existing file."""
    there = _status()
    if not there:
        os.close(os.open(_LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    elif not _is_ours(there) or there.st_mode & 0o077:
        raise CheckSkippedError(
            f"own file: no hindrance; {_LOCK} is {_described(there)}: it is left so"
        )
    _by_another_user(bench)


def _by_another_user(bench: Bench) -> None:
    bench.work.chmod(0o711)
    try:
        argv = [sys.executable, "-P", str(DEVICE), '{"do": "hold"}']
        child = bench.start(argv, user=_NOBODY, group=_NOBODY)
    except OSError as error:
        raise CheckSkippedError(
            f"another user cannot start {sys.executable}: {error.strerror}"
        ) from error
    try:
        child.wait_for("holding")
    except CheckFailedError as error:
        bench.see(f"another user: {error}")
        bench.expect(_LOCK.name in child.text or "in use" in child.text, "the lock is not named")
    else:
        raise CheckFailedError("another user can use the TPU in spite of the file")


def _status() -> os.stat_result | None:
    """Returns the status of the lock file, or of the symlink in its place; None if there is
    none."""
    try:
        return _LOCK.lstat()
    except FileNotFoundError:
        return None


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _described(status: os.stat_result | None) -> str:
    if status is None:
        return "not there"
    owner = "ours" if status.st_uid == os.geteuid() else "of another user"
    kind = "a file" if stat.S_ISREG(status.st_mode) else "no regular file"
    return f"{kind}, {owner}, mode {status.st_mode & 0o777:o}"


@check(
    "memory-ahead",
    "tpu",
    expected="what is compiled ahead for this topology without a chip takes the same bytes as the "
    "step that the chip compiles; the peak of `memory_stats()` is shown beside it",
    source="`compiled.memory_analysis()` and `device.memory_stats()` of jax 0.10.2",
    seconds=180.0,
)
def memory_ahead(bench: Bench) -> None:
    """Compiles with this machine's libtpu, in a process that sees no chip."""
    if bench.slice is None or bench.slice.topology is None:
        raise CheckSkippedError("it is not known which TPU this is")
    done = run_step(bench, list(range(bench.count))).done
    topology = bench.slice.described()
    env = {"JAX_PLATFORMS": "tpu,cpu", "TPU_SKIP_MDS_QUERY": "1", **_ALLOW_SEVERAL_PROCESSES}
    ahead = bench.device("ahead", env, topology=topology).wait_for("done")
    bench.see(
        f"{topology['topology']}: ahead {ahead['planned']} bytes, on the chip {done['planned']}, "
        f"peak {done['peak']}"
    )
    bench.expect(ahead["planned"] == done["planned"], "they differ")


@check(
    "busy",
    "tpu",
    expected="a second process on chips that another one holds is refused within "
    f"{_REFUSED:g} s, and the supervisor names the holder with its device files",
    source="supervisor/adapters/platforms/accelerators.py; message texts of libtpu 0.0.42.1",
    seconds=120.0,
)
def busy(bench: Bench) -> None:
    """Holds all chips with one process, and starts a second one."""
    holder = bench.device("hold")
    holder.wait_for("holding")
    named = [one for one in accelerators.holders() if one.pid == holder.pid]
    bench.see(f"named: {', '.join(named[0].devices) if named else 'nobody'}")
    began = time.monotonic()
    second = bench.device("hold")
    code = second.wait()
    took = time.monotonic() - began
    bench.see(f"the second ended with {code} after {took:.1f} s")
    for line in dict.fromkeys(re.findall(r".*(?:in use|busy).*", second.text)):
        bench.see(line[:300])
    bench.expect(code != 0, "two processes had the same chips")
    bench.expect(named, "the holder is not named")
    bench.expect(took <= _REFUSED, f"it took {took:.1f} s, not {_REFUSED:g} s at most")
