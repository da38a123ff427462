"""Compiled steps kept as files: a restart loads them, and neither traces nor compiles.

The way to a step is executable -> compilation cache -> compile; each start says which it took, and
its time. A file is found by a key of all that decides the program, and what it says of its
arguments must fit on top. It holds a pickle: see `private_files`.

Loading proves little: XLA on CPU serializes what came out of the compilation cache without some of
its functions, and only the first call fails (jax 0.10.2). So only what was compiled here is kept,
and a loaded one is on trial until its first call has completed: a start that finds the mark of a
trial that went wrong, by an exception or a crash, removes the executable and takes the longer way.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from supervisor.protocol import removal
from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.removal import Place
from trainer import private_files
from trainer.environment_fingerprint import digest, environment_facts
from trainer.log import WorkerLog

_SUFFIX = ".executable"
_TRIAL = ".trial"
_KEPT = 8
"""Executables of one step and rank that are kept: a few rungs, a few versions of the code."""

_Loaded = tuple[Any, float]
"""The compiled step, and the seconds that it took."""

EXECUTABLE = "its executable"
CACHE = "the compilation cache"


class Executables:
    """The compiled steps of one configuration, which run on all devices, for this process; obtained
    in a thread of its own.

    `directory` None: nothing is loaded or kept.
    """

    def __init__(
        self,
        directory: Path | None,
        config: Mapping[str, Any],
        log: WorkerLog,
    ) -> None:
        """`config` is what decides the programs besides `environment_fingerprint`. Needs the
        backend."""
        self._log = log
        self._directory = self._usable(directory) if directory is not None else None
        self._key = digest(json.dumps([environment_facts(), dict(config)], sort_keys=True).encode())
        self._thread = ThreadPoolExecutor(1, "executables")
        self._loading: dict[str, Future[_Loaded | None]] = {}
        self._keeping: list[Future[None]] = []

    def expect(self, name: str) -> None:
        """Begin to load a step that `get` will be asked for."""
        self._loading[name] = self._thread.submit(self._load, name)

    def get(self, name: str, function: Any, *arguments: Any) -> Future[Callable[..., Any]]:
        """`function` of jax.jit, compiled for `arguments` (abstract, with shardings). If it had to
        be compiled, it is kept when it is handed out."""
        compiled: Future[Callable[..., Any]]
        compiled = self._thread.submit(self._obtain, name, function, arguments)
        return compiled

    def close(self) -> None:
        """Wait until what was compiled is kept."""
        self._thread.shutdown()
        for kept in self._keeping:
            kept.result()

    def _obtain(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        expected = self._loading.pop(name, None)
        loaded = self._load(name) if expected is None else expected.result()
        if loaded is not None:
            compiled, seconds = loaded
            if _abstract(compiled.args_info) == _abstract((arguments, {})):
                self._log.obtained(seconds, name, EXECUTABLE)
                return _OnTrial(compiled, self._path(name).with_suffix(_TRIAL))
            self._drop(name, "it takes other arguments")
        began = time.perf_counter()
        lowered = function.lower(*arguments)
        with _CacheHits() as hits:
            compiled = lowered.compile()
        self._log.obtained(time.perf_counter() - began, name, CACHE if hits.found else "")
        if not hits.found and self._directory is not None:
            self._keeping.append(self._thread.submit(self._keep, name, compiled))
        ready: Callable[..., Any] = compiled
        return ready

    # --- files ----------------------------------------------------------------------------------

    def _usable(self, directory: Path) -> Path | None:
        try:
            private_files.make(directory)
        except OSError as error:
            text = f"executables are neither loaded nor kept: {error}"
            self._log.warn(text, NoticeCode.EXECUTABLES_OFF)
            return None
        return directory

    def _path(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{self._prefix(name)}{self._key[:32]}{_SUFFIX}"

    def _prefix(self, name: str) -> str:
        return f"{name.replace(' ', '-')}-rank{jax.process_index()}-"

    def _load(self, name: str) -> _Loaded | None:
        if self._directory is None:
            return None
        path = self._path(name)
        if path.with_suffix(_TRIAL).exists():
            self._drop(name, "the last start with it did not complete a call")
            return None
        began = time.perf_counter()
        try:
            content = private_files.read(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._drop(name, str(error))
            return None
        try:
            serialized, arguments, result = pickle.loads(content)
            compiled = serialize_executable.deserialize_and_load(
                serialized, jax.tree.structure(arguments), jax.tree.structure(result)
            )
        except Exception as error:  # of another version, or of anything else: it can be made anew
            self._drop(name, f"{type(error).__name__}: {error}")
            return None
        with suppress(OSError):
            os.utime(path)  # the least recently used go first
        return compiled, time.perf_counter() - began

    def _drop(self, name: str, why: str) -> None:
        path = self._path(name)
        try:
            for one in (path, path.with_suffix(_TRIAL)):
                removal.file(Place.EXECUTABLE, one, below=path.parent)
        except OSError as error:
            why += f"; it could not be removed: {error}"
        text = f"{name}: the executable is not used, and removed: {why}"
        self._log.warn(text, NoticeCode.EXECUTABLE_REMOVED)

    def _keep(self, name: str, compiled: Any) -> None:
        path = self._path(name)
        try:
            serialized, arguments, result = serialize_executable.serialize(compiled)
            shapes = [
                jax.tree.unflatten(tree, range(tree.num_leaves)) for tree in (arguments, result)
            ]
            private_files.write(path, pickle.dumps((serialized, *shapes)))
        except (OSError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
            text = f"{name}: the executable could not be kept: {error}"
            self._log.warn(text, NoticeCode.EXECUTABLE_NOT_KEPT)
            return
        found = path.parent.glob(f"{self._prefix(name)}*{_SUFFIX}")
        for old in sorted(found, key=lambda one: one.stat().st_mtime, reverse=True)[_KEPT:]:
            removal.file(Place.EXECUTABLE, old, below=old.parent)


class _OnTrial:
    """A loaded executable. Its first call leaves a mark until it is complete."""

    def __init__(self, compiled: Any, mark: Path) -> None:
        self._compiled = compiled
        self._call = self._first
        self._mark = mark

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def _first(self, *arguments: Any) -> Any:
        with suppress(OSError):  # a full disk is no reason not to train
            self._mark.touch()
        result = jax.block_until_ready(self._compiled(*arguments))
        removal.file(Place.EXECUTABLE, self._mark, below=self._mark.parent)
        self._call = self._compiled
        return result


class _CacheHits:
    """Whether this thread finds something in the compilation cache, while this is entered."""

    def __enter__(self) -> _CacheHits:
        self.found = False
        self._thread = threading.get_ident()
        jax.monitoring.register_event_listener(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_listener(self._heard)

    def _heard(self, event: str, **_: str | int) -> None:
        if event == "/jax/compilation_cache/cache_hits" and threading.get_ident() == self._thread:
            self.found = True


def _abstract(tree: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """What must be equal of the arguments of a program: structure, shapes and types. How they lie
    on the devices follows from what is in the key."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
