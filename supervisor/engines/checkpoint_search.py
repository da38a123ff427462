"""Where a program may save its checkpoints, and what proves that a directory is this job's.

Several jobs may share a working directory. So a directory counts only if one of these holds:

* a process of the attempt writes there: the bootstrap reports it, or a file there is open. In a
  folder that everybody uses, such as the working directory itself, the steps must also have the
  kind of name that the attempt writes there (`seed1_ckpt-#.pt`);
* it is below the job's model_dir, unless that is a folder that everybody uses;
* it is below a folder that the program's arguments or the config's variables name, and they explain
  each folder between the two (`--out runs --name a` explains `runs/a/checkpoints`, not `runs/b`).
  This is for programs without the bootstrap only, because others may write to a folder that is
  named: it may be the teacher's, whose training goes on. Inherited variables say nothing: the
  `OUTPUT_DIR` of a shell may be another job's.

All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.config.usual_names import UsualNames, final_name, kinds_together
from supervisor.protocol.committed import OwnNames, step_of

_GENERIC = re.compile(
    r"(?i)((check_?points?|ckpts?|actor|critic|policy|reward|default|models?|state|params|weights|"
    r"saved?|saves|saved_models?|outputs?|runs?|train|training|last|latest|best|lightning_logs)"
    r"|version_\d+)"
)
"""Names of folders that say nothing about whose they are."""
_LAUNCHERS = frozenset(
    {
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.runner", "horovod.runner"),
    }
)
"""Python programs that start others, which write the checkpoints and have no bootstrap."""
_MAX_WORD = 4096


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an engine knows of an attempt whose checkpoints are to be found."""

    known: Path
    """The directory in which they are looked for first."""
    model_dir: Path
    argv: Sequence[str]
    """The command line of the program."""
    env: Mapping[str, str]
    """The environment of the program."""
    own: Iterable[str]
    """The variables that the config sets."""
    is_bootstrapped: bool
    """Whether the program reports what it writes."""
    layout: OwnNames | None
    """The layout of the checkpoints, if the config describes it; else which names count."""
    writers: Callable[[], Iterable[int]]
    """Returns the pids of the workers that have not exited with code 0. Safe in any thread."""
    pids: Callable[[], Iterable[int]]
    """Returns the pids of the live workers. Safe in any thread."""


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look for the checkpoints of an attempt."""

    known: Path
    """The directory that is watched already."""
    model_dir: Path
    shared: frozenset[Path]
    """Folders in which others write too: the working directory, the home directory, temporary
    folders, and all above them."""
    roots: tuple[Path, ...]
    """The folders to search: all below the first `num_own` is this job's."""
    num_own: int
    words: frozenset[str]
    """What the arguments and the config's variables say, word by word."""
    began: float
    """The Unix time at which the attempt began."""
    pids: Callable[[], Iterable[int]]
    """Returns the pids of its live workers. Safe in any thread."""
    has_own_layout: bool
    """Whether the config describes the layout of the checkpoints."""
    layout: OwnNames | None
    """See `Wanted`: in the known directory."""
    step_of: Callable[[str], int | None]
    """Parses the step from a name; None: the name is not that of a step."""

    def proves(self, directory: Path) -> bool:
        """Whether the place of `directory` alone proves that it is this job's."""
        return any(
            index < self.num_own or all(map(self._explains, directory.relative_to(root).parts))
            for index, root in enumerate(self.roots)
            if directory.is_relative_to(root)
        )

    def is_own(self, directory: Path) -> bool:
        """Whether nobody but this job saves in `directory`: it is below its model_dir, or in the
        default folder there."""
        roots = (*self.roots[: self.num_own], self.model_dir / "checkpoints")
        return any(map(directory.is_relative_to, roots))

    def names_in(self, directory: Path, kinds: Iterable[str]) -> OwnNames | None:
        """Returns which names count in `directory`, where the attempt writes these `kinds`."""
        if self.has_own_layout or self.is_own(directory):
            return self.layout
        known = self.layout.kinds if isinstance(self.layout, UsualNames) else ()
        before = known if directory == self.known else ()
        return UsualNames(kinds_together((*before, *kinds)))

    def steps_in(self, path: str) -> Iterator[Path]:
        """Yields the path of each step that `path` may be in: every part of it that has the name of
        a step, or of one that is being written (then under its final name)."""
        place = Path(path)
        for each in (place, *place.parents):
            name = final_name(each.name)
            if self.step_of(name) is not None:
                yield each.parent / name

    def also(self, argv: Sequence[str], here: Path) -> Search:
        """Returns the search that also looks where a program says to save that the attempt has
        started, by its command line `argv`, in the working directory `here`."""
        named = folders_named(argv, {}, here, self.shared)
        return replace(
            self,
            roots=tuple(dict.fromkeys((*self.roots, *named))),
            words=self.words | words_of(argv, {}),
        )

    def _explains(self, name: str) -> bool:
        return name in self.words or _GENERIC.fullmatch(name) is not None


def search_for(wanted: Wanted, here: Path, others: Iterable[Path], began: float) -> Search:
    """Returns the search for what is `wanted` by an attempt that begins now, at the Unix time
    `began`, in the working directory `here`. Everybody writes in `others`."""
    env = {name: wanted.env[name] for name in wanted.own if name in wanted.env}
    shared = shared_folders((here, *others))
    is_own = wanted.model_dir not in shared
    is_reported = wanted.is_bootstrapped and _LAUNCHERS.isdisjoint(wanted.argv)
    is_described = wanted.layout is not None and wanted.layout.is_described
    named = () if is_reported else folders_named(wanted.argv, env, here, shared)
    return Search(
        known=wanted.known,
        model_dir=wanted.model_dir,
        shared=shared,
        roots=(wanted.model_dir, *named) if is_own else named,
        num_own=int(is_own),
        words=words_of(wanted.argv, env),
        began=began,
        pids=wanted.pids,
        has_own_layout=is_described,
        layout=wanted.layout,
        step_of=step_of if not is_described or wanted.layout is None else wanted.layout.step_of,
    )


def words_of(argv: Sequence[str], env: Mapping[str, str]) -> frozenset[str]:
    """Returns the words of a command line and an environment: options without their dashes, and
    both sides of a `=`."""
    found: set[str] = set()
    for text in (*argv[1:], *(f"{name}={value}" for name, value in env.items())):
        found.update(_parts(text))
    return frozenset(found)


def shared_folders(places: Iterable[Path]) -> frozenset[Path]:
    """Returns `places` and all folders above them."""
    return frozenset(folder for place in places for folder in (place, *place.parents))


def folders_named(
    argv: Sequence[str], env: Mapping[str, str], here: Path, shared: frozenset[Path]
) -> tuple[Path, ...]:
    """Returns the paths that a command line and an environment name: an argument, the value of an
    option (`--workdir=out`), of a key (`workdir=out`) and of a variable.

    Relative ones are in the working directory `here`. The `shared` folders are left out.
    """
    found: dict[Path, None] = {}
    for value in (*(part for text in argv[1:] for part in _parts(text)), *env.values()):
        if value and len(value) <= _MAX_WORD and "://" not in value and value.isprintable():
            path = Path(_normal(here / value))
            if path not in shared:
                found[path] = None
    return tuple(found)


def _parts(text: str) -> Iterator[str]:
    """Yields the words of an argument: `--a=b` has `a` and `b`."""
    text = text.lstrip("-")
    yield text
    if "=" in text:
        yield from text.split("=", 1)


def _normal(path: Path) -> str:
    """Returns an absolute path without `.` and `..`, by its text alone."""
    parts: list[str] = []
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif len(parts) > 1:
            parts.pop()
    return str(Path(*parts))
