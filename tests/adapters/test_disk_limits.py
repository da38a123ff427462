"""When the limits of a job are applied, and to what."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.adapters.stores.compile_cache import CompileCache
from supervisor.config.schema import Limits
from supervisor.core.events import WorkersStarted
from supervisor.core.state import JobState
from supervisor.disk_limits import DiskLimits
from supervisor.host.notice import Notice
from supervisor.ports import Transition
from tests.adapters.test_space import attempt, failed, outputs, spaced
from tests.adapters.test_summary import WALL
from tests.running import eventually

NONE = Limits(outputs=0, records=0, compile_cache=0, executables=0)


def began(number: int) -> Transition:
    """An attempt begins."""
    event = WorkersStarted(0.0, number, (7,))
    return Transition(event, JobState(), JobState(), (), WALL)


def test_limits_are_applied_soon_after_an_attempt_began_and_now_and_then(tmp_path: Path) -> None:
    due: list[tuple[float, Callable[[], None]]] = []
    said: list[Notice] = []
    live = tmp_path / "compile_cache" / "live"
    live.mkdir(parents=True)
    for folder in (live, live.parent):
        folder.chmod(0o700)
    space, cache = spaced(tmp_path, said), CompileCache(live.parent, said.append)
    bounds = DiskLimits(
        NONE, space, cache, said.append, lambda delay, call: due.append((delay, call))
    )
    for number in (1, 2):
        attempt(tmp_path, number)
        bounds.observe(began(number))
    (live / "jit_f-0-cache").write_bytes(zlib.compress(b"program"))
    bounds.observe(failed(1))
    assert [delay for delay, _ in due] == [300.0, 5.0], "one look for all that began meanwhile"

    due.pop()[1]()
    assert eventually(lambda: len(said) == 3)
    for thread in threading.enumerate():  # while it lives there is no other look
        if thread.name == "bounds":
            thread.join()
    assert outputs(tmp_path) == [2]
    assert not list(live.iterdir())
    bounds.observe(began(3))
    assert [delay for delay, _ in due] == [300.0, 5.0]

    attempt(tmp_path, 3)
    due.pop(0)[1]()
    assert eventually(lambda: outputs(tmp_path) == [3])
    assert [delay for delay, _ in due] == [5.0, 300.0]


def test_a_moment_without_a_free_thread_is_told_once_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    due: list[Callable[[], None]] = []
    said: list[Notice] = []
    bounds = DiskLimits(
        NONE,
        spaced(tmp_path, said),
        CompileCache(tmp_path / "compile_cache", said.append),
        said.append,
        lambda delay, call: due.append(call),
    )
    for number in (1, 2):
        attempt(tmp_path, number)
    look_again = due.pop()

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refused)
        for _ in range(3):
            bounds.observe(began(2))
            due.pop()()
    assert said == [
        "the limits of model_dir are not applied now (can't start new thread); tried again later"
    ]
    look_again()
    assert eventually(lambda: outputs(tmp_path) == [2])
