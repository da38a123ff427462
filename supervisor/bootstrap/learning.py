"""Learns in an attempt what the next standby can prepare: what is imported, in which environment.

A library may read the environment when it is imported (`XLA_FLAGS`, `JAX_*`). So each change that
the program makes in its environment is kept with its place among the imports, and a standby makes
it there. Of a variable whose value may be a secret only a hash is kept: a standby imports nothing
that comes after a change of it.
"""

from __future__ import annotations

import json
import os
import sys
from _thread import get_ident
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import asdict, dataclass

from ..protocol.environment import ALL_TOPOLOGY, VISIBLE_DEVICES
from ..protocol.reading import UnreadableError, read_object
from .environment_watch import EnvironmentWatch, is_installed_file

_OF_LIBRARIES = ("JAX_", "KERAS_", "LIBTPU_", "NCCL_", "PJRT_", "TF_", "TPU_", "XLA_")
"""How the names of variables begin whose values are kept: settings of libraries that compute."""
_SECRET = ("AUTH", "CRED", "KEY", "PASS", "SECRET", "TOKEN")
_OF_AN_ATTEMPT = frozenset((*ALL_TOPOLOGY, *VISIBLE_DEVICES))
_MAX_VALUE = 4096


@dataclass(frozen=True)
class Change:
    """A change of a variable in the environment; the value None: it was removed."""

    place: int
    """How many of the learned modules were imported before it."""
    name: str
    digest: str
    """A hash of the value."""
    value: str | None = None
    is_known: bool = False
    """Whether `value` is the value; else only the hash is known."""
    by: str = ""
    """The module whose import makes it; empty: the program makes it."""


@dataclass(frozen=True)
class Learned:
    """What was learned in an attempt: the imports in their order, and the changes between them."""

    modules: Sequence[str] = ()
    changes: Sequence[Change] = ()
    left_out: Sequence[str] = ()
    """The modules that cannot be imported ahead."""

    @classmethod
    def read(cls, file: str) -> Learned:
        """Read what an earlier attempt has learned.

        Raises:
            OSError: it cannot be read, or is not what `Learner` writes.
        """
        body = read_object(file)
        try:
            changes = tuple(Change(**one) for one in body["changes"])
            return cls(tuple(body["modules"]), changes, tuple(body["left_out"]))
        except (KeyError, TypeError) as error:
            raise UnreadableError(file, "does not name modules", "remove it") from error


class Learner:
    """Writes what the program has imported, and in which environment, whenever it has grown."""

    def __init__(self, file: str, prepared: Learned, watch: EnvironmentWatch) -> None:
        """Write to `file`; `prepared` is what was imported before the program began."""
        self._file = file
        self._prepared = prepared
        self._watch = watch
        self._known = (0, 0)
        self._before_use: int | None = None
        """How many changes the program had made when it first used jax."""

    def update(self) -> None:
        """Update the file; cheap if nothing has been imported or set since the last call."""
        known = len(sys.modules), len(self._watch.changes)
        if known == self._known:
            return
        self._known = known
        partial = f"{self._file}.{get_ident()}.tmp"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(asdict(self._learned()), file)
        os.replace(partial, self._file)

    def _learned(self) -> Learned:
        before, made = self._prepared, list(self._watch.changes)
        if self._before_use is None:
            self._before_use = len(made)
        modules = list(before.modules)
        known = {*modules, *before.left_out}
        places: dict[str, int] = {}
        for name, module in list(sys.modules.items()):
            if name not in known and _is_installed(name, module):
                modules.append(name)
            places[name] = len(modules)
        changes = [
            # A standby checks at the first use of jax that the program has made all changes.
            _change(
                places.get(after, len(before.modules)), name, value, by, number < self._before_use
            )
            for number, (after, name, value, by) in enumerate(made)
        ]
        return Learned(modules, (*before.changes, *changes), before.left_out)


def _change(place: int, name: str, value: str | None, by: str, before_use: bool) -> Change:
    """Returns a change that holds the value only if that may be kept and can be checked."""
    keeps = (
        before_use
        and name.startswith(_OF_LIBRARIES)
        and name not in _OF_AN_ATTEMPT
        and not any(word in name for word in _SECRET)
        and len(value or "") <= _MAX_VALUE
    )
    return Change(place, name, digest(value), value if keeps else None, keeps, by)


def digest(value: str | None) -> str:
    """Return a hash of a variable's value. It is written to a file, where a value may be a
    secret."""
    from hashlib import sha256

    return sha256(repr(value).encode()).hexdigest()[:16]


class Replay:
    """Imports what was learned, and makes the changes between the imports as the program does."""

    def __init__(self, learned: Learned, environ: MutableMapping[str, str]) -> None:
        """Change `environ`."""
        self._learned = learned
        self._environ = environ
        self.prepared = learned
        """What of it is done."""
        self.made: dict[str, list[str | None]] = {}
        """The values that were set, and not by an import, by the variable."""
        self.ended_by: str | None = None
        """The variable at whose change it ended early; None: it did not."""
        self.failed: dict[str, BaseException] = {}
        """The errors of the imports that failed, by the module."""

    def run(self, load: Callable[[str], object]) -> None:
        """Import by `load`."""
        learned = self._learned
        changes = sorted(learned.changes, key=lambda change: change.place)
        done = 0
        for place, module in enumerate(learned.modules):
            while done < len(changes) and changes[done].place <= place:
                if not self._make(changes[done]):
                    self.ended_by = changes[done].name
                    self.prepared = Learned(
                        learned.modules[:place], changes[:done], learned.left_out
                    )
                    return
                done += 1
            if module not in learned.left_out:
                try:
                    load(module)
                except BaseException as error:
                    self.failed[module] = error
        self.prepared = Learned(learned.modules, changes[:done], learned.left_out)

    def _make(self, change: Change) -> bool:
        """Make a change, unless an import makes it; False: its value is not known."""
        name = change.name
        if change.by and change.by not in self._learned.left_out:
            return True
        if digest(self._environ.get(name)) == change.digest:
            return True
        if not change.is_known:
            return False
        if change.value is None:
            self._environ.pop(name, None)
        else:
            self._environ[name] = change.value
        self.made.setdefault(name, []).append(change.value)
        return True


def _is_installed(name: str, module: object) -> bool:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if getattr(spec, "name", None) != name or not isinstance(origin, str):
        return False
    return is_installed_file(origin)
