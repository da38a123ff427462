"""Compiled steps kept as files: a restart loads them, and neither traces nor compiles.

A step comes from its executable file; if that cannot be used, from JAX's compilation cache; else it
is compiled. Each start logs which of them it was, and how long it took. The file's name has a hash
of everything that decides the program, and the arguments described in the file must fit too. The
file holds a pickle: see `private_files`.

A file that can be loaded may still not work: XLA on CPU serializes a program that came from the
compilation cache without some of its functions, and only the first call fails (jax 0.10.2). So only
programs that were compiled here are kept. And a loaded one is on trial until its first call is
complete: a mark file stands beside it. If that call ends in an exception or a crash, the next start
finds the mark, removes the executable and gets the step in another way.
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
from jax.sharding import Mesh

from supervisor.protocol import removal
from supervisor.protocol.messages import NoticeCode
from supervisor.protocol.removal import Place
from trainer import private_files
from trainer.environment_fingerprint import digest, environment_facts
from trainer.log import WorkerLog

_SUFFIX = ".executable"
_TRIAL = ".trial"
_KEPT = 8
"""How many executables of one step and rank are kept: a few rungs, a few versions of the code."""

_Loaded = tuple[Any, float]
"""A compiled step, and the seconds that loading it took."""

EXECUTABLE = "its executable"
CACHE = "the compilation cache"


class Executables:
    """The compiled steps of one configuration on all devices, for this process. A thread of its own
    loads and compiles them.

    With `directory` None, nothing is loaded from files or kept in files.
    """

    def __init__(
        self,
        directory: Path | None,
        config: Mapping[str, Any],
        log: WorkerLog,
    ) -> None:
        """`config` holds what decides the programs besides `environment_fingerprint`. The backend
        must be initialised."""
        self._log = log
        self._directory = self._usable_directory(directory) if directory is not None else None
        self._key = digest(json.dumps([environment_facts(), dict(config)], sort_keys=True).encode())
        self._thread = ThreadPoolExecutor(1, "executables")
        self._loading: dict[str, Future[_Loaded | None]] = {}
        self._keeping: list[Future[None]] = []

    def begin_loading(self, name: str, mesh: Mesh) -> None:
        """Begin to load the step `name`, for which `get` is called later with arguments on
        `mesh`."""
        self._loading[name] = self._thread.submit(self._load, name, mesh)

    def get(self, name: str, function: Any, *arguments: Any) -> Future[Callable[..., Any]]:
        """Return a future of `function`, a function of jax.jit, compiled for `arguments` (abstract,
        with shardings). If it had to be compiled, its file is written after the future has its
        result."""
        compiled: Future[Callable[..., Any]]
        compiled = self._thread.submit(self._obtain, name, function, arguments)
        return compiled

    def close(self) -> None:
        """Wait until the files of all compiled steps are written."""
        self._thread.shutdown()
        for kept in self._keeping:
            kept.result()

    def _obtain(self, name: str, function: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        expected = self._loading.pop(name, None)
        loaded = self._load(name, _mesh(arguments)) if expected is None else expected.result()
        if loaded is not None:
            compiled, seconds = loaded
            if _abstract(compiled.args_info) == _abstract((arguments, {})):
                self._log.obtained(seconds, name, EXECUTABLE)
                return _OnTrial(compiled, self._path(name).with_suffix(_TRIAL))
            self._remove(name, "it was compiled for other arguments")
        began = time.perf_counter()
        lowered = function.lower(*arguments)
        with _CacheHitListener() as hits:
            compiled = lowered.compile()
        self._log.obtained(time.perf_counter() - began, name, CACHE if hits.found else "")
        if not hits.found and self._directory is not None:
            self._keeping.append(self._thread.submit(self._write, name, compiled))
        ready: Callable[..., Any] = compiled
        return ready

    # --- files ----------------------------------------------------------------------------------

    def _usable_directory(self, directory: Path) -> Path | None:
        try:
            private_files.make_directory(directory)
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

    def _load(self, name: str, mesh: Mesh) -> _Loaded | None:
        if self._directory is None:
            return None
        path = self._path(name)
        if path.with_suffix(_TRIAL).exists():
            self._remove(name, "the last start with it did not complete a call")
            return None
        began = time.perf_counter()
        try:
            content = private_files.read(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._remove(name, str(error))
            return None
        try:
            serialized, arguments, result = pickle.loads(content)
            compiled = serialize_executable.deserialize_and_load(
                serialized,
                jax.tree.structure(arguments),
                jax.tree.structure(result),
                execution_devices=[*mesh.devices.flat],  # the file does not have their order
            )
        except Exception as error:  # another version's, or anything else: compile it again
            self._remove(name, f"{type(error).__name__}: {error}")
            return None
        with suppress(OSError):
            os.utime(path)  # the least recently used are removed first
        return compiled, time.perf_counter() - began

    def _remove(self, name: str, why: str) -> None:
        path = self._path(name)
        try:
            for one in (path, path.with_suffix(_TRIAL)):
                removal.remove_file(Place.EXECUTABLE, one, below=path.parent)
            then = "was removed"
        except OSError as error:
            then = f"could not be removed: {error}"
        text = f"{name}: the executable cannot be used ({why}), and {then}"
        self._log.warn(text, NoticeCode.EXECUTABLE_REMOVED)

    def _write(self, name: str, compiled: Any) -> None:
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
            removal.remove_file(Place.EXECUTABLE, old, below=old.parent)


class _OnTrial:
    """A loaded executable. While its first call runs, a mark file shows that."""

    def __init__(self, compiled: Any, mark: Path) -> None:
        self._compiled = compiled
        self._call = self._first
        self._mark = mark

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def _first(self, *arguments: Any) -> Any:
        with suppress(OSError):  # a full disk does not stop the training
            self._mark.touch()
        result = jax.block_until_ready(self._compiled(*arguments))
        removal.remove_file(Place.EXECUTABLE, self._mark, below=self._mark.parent)
        self._call = self._compiled
        return result


class _CacheHitListener:
    """Context manager: `found` is True if this thread meanwhile found a program in the compilation
    cache."""

    def __enter__(self) -> _CacheHitListener:
        self.found = False
        self._thread = threading.get_ident()
        jax.monitoring.register_event_listener(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_listener(self._heard)

    def _heard(self, event: str, **_: str | int) -> None:
        if event == "/jax/compilation_cache/cache_hits" and threading.get_ident() == self._thread:
            self.found = True


def _mesh(arguments: tuple[Any, ...]) -> Mesh:
    """Return the mesh that all arguments of a program are on."""
    mesh: Mesh = jax.tree.leaves(arguments)[0].sharding.mesh
    return mesh


def _abstract(tree: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """Return what two programs' arguments must have in common: structure, shapes and types. The
    shardings need no comparison: they follow from what is in the key."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
