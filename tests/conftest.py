"""Fixtures that run the real command, and check that no process is left afterwards."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from tests.corpus.cases import judged_file
from tests.corpus_report import report
from tests.emulators import Emulator, gcs_emulator, s3_emulator
from tests.forked import forked
from tests.once import shared_base
from tests.running import (
    JSON,
    Result,
    Start,
    child_pids,
    children,
    eventually,
    leaving_nothing,
    starting,
    written,
)


def _unignore_signals_for_children() -> None:
    """Give the programs that tests start the default action of these signals, even if ours are
    ignored, as behind an `&` in a script or under nohup. We still ignore them ourselves."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_unignore_signals_for_children()

# Compiling takes most of a trainer's short run: the older emitters take half the time of the newer
# ones. `make test-slow` lets XLA optimise.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)

# A slow machine must not fail a test. In CI the examples are the same for the same commit: a search
# that finds an older bug must not refuse a change that has nothing to do with it.
settings.register_profile("here", deadline=None)
settings.register_profile("in CI", deadline=None, derandomize=True)
settings.load_profile("in CI" if os.environ.get("CI") else "here")


# Thousands of collected tests are never garbage: to look through them again and again takes a fifth
# of the time of a collection.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but never look through what was collected of tests."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """If the corpus was judged, show how many verdicts are right."""
    ran = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    if any("tests/corpus/test_corpus.py" in item.nodeid for item in ran):
        terminalreporter.section("verdicts about the corpus of failures")
        for line in report(judged_file()):
            terminalreporter.line(line)


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    """Fail a test that leaves a child process: the guard of a later test would not know that
    child."""
    before = child_pids()
    yield
    if child_pids() <= before:
        return

    def left() -> dict[int, str]:
        return {pid: command for pid, command in children().items() if pid not in before}

    assert eventually(lambda: not left()), f"the test leaves child processes behind: {left()}"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a compilation cache that all tests share, in all worker
    processes."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(shared_base(tmp_path_factory) / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(scope="session")
def gcs() -> Iterator[Emulator]:
    """An emulator of Google Cloud Storage on this host."""
    with gcs_emulator() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def s3() -> Iterator[Emulator]:
    """An emulator of Amazon S3 on this host."""
    with s3_emulator() as emulator:
        yield emulator


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """See `starting`."""
    with starting(tmp_path) as starter:
        yield starter


@pytest.fixture
def supervise(start: Start, tmp_path: Path) -> Iterator[Callable[..., Result]]:
    """Runs `supervise run` on a config until it ends."""

    def run(
        config: object,
        *options: str,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Result:
        if prefix:
            return start(config, *options, env=env, prefix=prefix).result()
        path = written(tmp_path, config)
        done = forked("run", path, *JSON, *options, env={**os.environ, **mark, **(env or {})})
        return Result(done.returncode, done.stdout, done.stderr, tmp_path / "run")

    with leaving_nothing() as mark:
        yield run
