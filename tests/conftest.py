"""Fixtures that run the real command, the check that no process is left, and how tests are
collected (their order, garbage, groups)."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
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
    PATIENCE,
    UNOPTIMISED,
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

# `make test-slow` lets XLA optimise.
os.environ.setdefault("XLA_FLAGS", UNOPTIMISED)

# A slow machine must not fail a test. In CI the examples are the same for the same commit: a search
# that finds an older bug must not refuse a change that has nothing to do with it.
settings.register_profile("here", deadline=None)
settings.register_profile("in CI", deadline=None, derandomize=True)
settings.load_profile("in CI" if os.environ.get("CI") else "here")


# Thousands of collected tests are never garbage: to look through them again and again takes a fifth
# of the time of a collection.
gc.disable()


_ON_THIS_HOST = ("fleet", "gang")
"""The folders whose clusters are on the network of this host: two of Ray want the same ports."""


def _cluster_of(item: pytest.Item) -> str | None:
    """Return the name of the cluster that a long test needs for itself: those of one run in one
    process, one after the other. Hosts with a network of their own disturb no others."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if folder in _ON_THIS_HOST:
        return "clusters of this host"
    return item.path.stem if folder == "cluster" else None


@pytest.hookimpl(tryfirst=True)  # then pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = [each for each in items if each.get_closest_marker("slow") is not None]
    for item in (*slow, *(each for each in items if each.get_closest_marker("cluster"))):
        if (cluster := _cluster_of(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(cluster))
    files = {each.path for each in slow}
    unseen = [each for each in files if not re.search(r"\bslow\b", each.read_text("utf-8"))]
    assert not unseen, f"`make test-slow` reads only files with the word slow: {unseen}"


def pytest_collection(session: pytest.Session) -> None:
    """Import the test modules, in each worker process beginning with others: to compile them takes
    longer than all else of a collection, and what one process has compiled the others find."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    root = session.config.rootpath
    folders = [Path(each) for each in session.config.args if Path(each).is_dir()]
    found = sorted({path.resolve() for folder in folders for path in folder.rglob("test_*.py")})
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    first = len(found) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in found[first:] + found[:first]:
        with suppress(Exception, pytest.skip.Exception):  # then the collection tells
            import_module(".".join(path.relative_to(root).with_suffix("").parts))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text is no name: each process that a test starts has it in its environment, too."""
    if isinstance(val, str | bytes) and len(val) > 500:
        return f"{argname} of {len(val)}"
    return None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage from now on, but never look through what was collected of tests."""
    if session.config.getoption("loadgroup", False):
        grouped = [each for each in session.items if each.get_closest_marker("xdist_group")]
        assert all("@" in each.nodeid for each in grouped), "pytest-xdist groups no tests"
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


@pytest.fixture(scope="session")
def unoptimised(cache: dict[str, str]) -> dict[str, str]:
    """Return the same for trainers whose programs XLA does not optimise, in slow tests either: for
    all that does not ask whether the bits are those of what users compile."""
    return {**cache, "XLA_FLAGS": UNOPTIMISED}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def unreadable_link() -> Iterator[Path]:
    """A link that nobody may read, not even root: of a process that has ended."""
    with subprocess.Popen(["true"]) as process:  # reaped at the end
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield Path(f"/proc/{process.pid}/cwd")


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
        patience: float = PATIENCE,
    ) -> Result:
        if prefix:
            return start(config, *options, env=env, prefix=prefix).result(patience)
        path = written(tmp_path, config)
        variables = {**os.environ, **mark, **(env or {})}
        done = forked("run", path, *JSON, *options, env=variables, patience=patience)
        return Result(done.returncode, done.stdout, done.stderr, tmp_path / "run")

    with leaving_nothing() as mark:
        yield run
