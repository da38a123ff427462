"""Reads from /proc what a process that outlives its parent is: its name, pipes and handlers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from signal import SIGINT, SIGQUIT, SIGTERM

from supervisor.core.pipes import HeldPipes
from supervisor.host import tree
from supervisor.host.aside import aside
from supervisor.protocol.environment import LINEAGE
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import read

_MAX_COMMAND = 120
_MAX_ARGUMENTS = 1 << 23
"""More bytes than Linux lets a program be started with (6 MiB)."""
_MAX_THREADS = 1000
_ENDED, _STOPPED = ("Z", "X"), ("T", "t")
_SIGWAIT, _WAITS_FOR_CHILD = "do_sigtimedwait", "do_wait"
"""The kernel's names (`wchan`) for where a thread sleeps that is in `sigwait`, or in `wait`."""
_READS, _WRITES = (0,), (1, 2)
_COMPUTES = (b"/jaxlib/", b"/libtpu/", b"/torch/lib/", b"/tensorflow/")
"""Folders of libraries that compute, as they are in the paths of /proc/PID/maps."""
_NUMPY = b"/numpy/"
_LIBPYTHON = b"/libpython"
_MOST_PROGRAMS = 4
"""Of how many programs below a wrapper stacks are taken."""
_MAX_MAPS = 1 << 24
_MAX_ENVIRON = 1 << 22
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "ksh93", "mksh", "sh", "yash", "zsh"})


class SigtermReaction(StrEnum):
    """What SIGTERM does to a process."""

    HANDLED = "handles SIGTERM, so it can save and exit"
    DEFAULT = (
        "has no handler for SIGTERM, so it ends at once and cannot save (a handler, or "
        "command.save_on_sigterm with Orbax, would let it)"
    )
    IGNORED = "ignores SIGTERM, so it runs until SIGKILL"
    BLOCKED = (
        "blocks SIGTERM, so it can save and exit if it waits for it (sigwait, signalfd), and runs "
        "until SIGKILL if it does not"
    )
    STOPPED = "is stopped (SIGSTOP), so it gets SIGTERM only when it is continued (SIGCONT)"
    UNKNOWN = "has ended"

    @property
    def may_save(self) -> bool:
        """True if the process may save its work when it gets SIGTERM."""
        return self in (SigtermReaction.HANDLED, SigtermReaction.BLOCKED)


def sigterm_reaction(pid: int) -> SigtermReaction:
    """Returns what SIGTERM would do to the process now."""
    try:
        facts = _status(Path(f"/proc/{pid}"))
        if facts["State"].startswith(_ENDED):
            return SigtermReaction.UNKNOWN
        if facts["State"].startswith(_STOPPED):
            return SigtermReaction.STOPPED
        if _has_signal(facts["SigCgt"]):
            return SigtermReaction.HANDLED
        if _has_signal(facts["SigIgn"]):
            return SigtermReaction.IGNORED
        return SigtermReaction.BLOCKED if _blocks_sigterm(pid) else SigtermReaction.DEFAULT
    except OSError:
        return SigtermReaction.UNKNOWN


def handles(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal `number` now."""
    try:
        return _has_signal(_status(Path(f"/proc/{pid}"))["SigCgt"], number)
    except OSError:
        return False


def handles_only_sigint(pid: int) -> bool:
    """True if the process is a Python program that handles SIGINT, and not SIGTERM.

    Shells handle SIGINT too, but keep it to themselves: the program that they wait for would hear
    nothing.
    """
    try:
        program = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False
    is_python = program.startswith(("python", "pypy"))
    return is_python and sigterm_reaction(pid) is SigtermReaction.DEFAULT and handles(pid, SIGINT)


def _status(place: Path) -> dict[str, str]:
    lines = (place / "status").read_text(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _has_signal(mask: str, number: int = SIGTERM) -> bool:
    return bool(int(mask, 16) & 1 << (number - 1))


def _blocks_sigterm(pid: int) -> bool:
    """True if every thread of the process blocks SIGTERM, or one thread waits in `sigwait`.

    The kernel shows the signal as not blocked in a thread that waits for it.
    """
    blocked = []
    for thread in islice(Path(f"/proc/{pid}/task").iterdir(), _MAX_THREADS):
        with suppress(OSError):  # it has ended
            if (thread / "wchan").read_text(errors="replace").startswith(_SIGWAIT):
                return True
            blocked.append(_has_signal(_status(thread)["SigBlk"]))
    return bool(blocked) and all(blocked)


def command_line(pid: int, redact: Callable[[str], str]) -> str:
    """Returns the redacted command line of a process, or its short name if the command line cannot
    be read; empty if the process is gone.

    The kernel reads the command line from the memory of the process. That may block for ever if the
    process waits for a disk. The short name can always be read.
    """
    place = Path(f"/proc/{pid}")
    name = ""
    with suppress(OSError):
        name = _argv(pid).replace(b"\0", b" ").decode(errors="replace").strip()
    with suppress(OSError):
        name = name or (place / "comm").read_text(errors="replace").strip()
    name = redact(name)  # before it is cut: redaction does not recognise half a secret
    return printable(name if len(name) <= _MAX_COMMAND else f"{name[:_MAX_COMMAND]}...")


def foreground_children(pid: int) -> list[tuple[int, tree.Stat]]:
    """Returns the children of `pid` that it cannot have passed SIGTERM on to, if it is a shell that
    outlives SIGTERM; else none.

    A shell with a trap runs it only after its foreground children have ended. A shell that waits
    for a background job (`wait`) runs its trap at once, and may pass SIGTERM on itself. A shell
    that ignores SIGTERM, as an interactive one does (`bash -ic`), passes it on to no child.

    A background job is recognised by this: without job control (scripts have none) a shell starts
    it with SIGINT and SIGQUIT ignored (POSIX 2.11); with job control, each job has a process group
    of its own.
    """
    reaction = sigterm_reaction(pid) if is_shell(pid) else SigtermReaction.UNKNOWN
    if reaction not in (SigtermReaction.HANDLED, SigtermReaction.IGNORED):
        return []
    found = []
    for child in tree.children(pid):
        seen = tree.stat(child)
        if seen is None or seen.state in tree.GONE:
            continue
        if reaction is SigtermReaction.IGNORED or _is_in_foreground(child, pid):
            found.append((child, seen))
    return found


def programs_below(pid: int) -> list[tuple[int, tree.Stat]]:
    """Returns the processes that run the program, if `pid` is only a wrapper around them; else
    none.

    They compute: they have loaded one of `_COMPUTES`, and the processes between them and `pid`, and
    `pid` itself, have not. They may save when they get SIGTERM. They are programs of their own, no
    parts of their parent, as its data loaders are. A launcher that has loaded such a library
    itself, as torchrun has, is no wrapper in this sense: it passes SIGTERM on. Nor is another
    supervisor, which has workers of its own.

    Helpers load NumPy, too. So a program that has loaded it, and none of `_COMPUTES`, counts only
    where it is the one process that the wrapper has.
    """
    if is_shell(pid) or _computes(pid):
        return []
    found = _outermost_below(pid, _computes) or _only_program_below(pid)
    return [(child, seen) for child, seen in found if sigterm_reaction(child).may_save]


def run_by_shell(pid: int) -> list[tuple[int, tree.Stat]]:
    """Returns the processes below the shell `pid` that are no shells, without what is below them;
    those that have ended and that no shell has reaped yet are among them."""
    found = []
    shells = [pid]
    while shells:
        for child in tree.children(shells.pop()):
            if is_shell(child):
                shells.append(child)
            elif (seen := tree.stat(child)) is not None:
                found.append((child, seen))
    return found


def unasked_below(pid: int) -> list[tuple[int, tree.Stat]]:
    """Returns the outermost programs below `pid` that may save when they get SIGTERM, if `pid` is a
    shell or another wrapper, which may have kept SIGTERM to itself; else none."""
    if _loads(pid, (*_COMPUTES, _NUMPY)):
        return []
    return _outermost_below(pid, lambda child: sigterm_reaction(child).may_save)


def python_programs(pid: int) -> list[tuple[int, tree.Stat]]:
    """Returns the processes whose Python stacks show what `pid` does; none: it runs no Python.

    These are the outermost Python programs below `pid`, at most four, if it is a shell or another
    wrapper; else `pid` itself. A wrapper is no Python program, or waits for its child and has
    loaded no library that computes.
    """
    found: list[tuple[int, tree.Stat]] = []
    if _is_wrapper(pid):
        found = _outermost_below(pid, lambda child: not _is_wrapper(child), _is_inner_part)
        found = found or _outermost_below(pid, _is_python, _is_inner_part)
    if not found and _is_python(pid) and (seen := tree.stat(pid)) is not None:
        found = [(pid, seen)]
    return found[:_MOST_PROGRAMS]


def _is_inner_part(child: int, parent: int) -> bool:
    """True if a process is a part of its parent, and runs no programs, as a subshell does."""
    return not is_shell(child) and _is_part(child, parent)


def _is_wrapper(pid: int) -> bool:
    if not _is_python(pid):
        return True
    return _waits_for_child(pid) and not _loads(pid, (*_COMPUTES, _NUMPY))


def _is_python(pid: int) -> bool:
    """True if the process runs Python: the rule of py-spy, which takes the stacks."""
    try:
        name = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:  # it has ended, or belongs to another user
        return False
    return "python" in name or _loads(pid, (_LIBPYTHON,))


def _waits_for_child(pid: int) -> bool:
    """True if the main thread of the process waits for a child to end."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text(errors="replace").startswith(_WAITS_FOR_CHILD)
    except OSError:
        return False


def _outermost_below(
    pid: int, is_one: Callable[[int], bool], is_part: Callable[[int, int], bool] | None = None
) -> list[tuple[int, tree.Stat]]:
    """Returns the programs below `pid` of which `is_one` says yes, without what is below them, and
    without what is no program but a part of its parent, by `is_part` (by default `_is_part`)."""
    is_part = is_part or _is_part
    supervisor = _supervisor(pid)
    found = []
    parents = [pid]
    while parents:
        parent = parents.pop()
        for child, seen in _live_children(parent):
            if is_part(child, parent) or _supervisor(child) != supervisor:
                continue
            if is_one(child):
                found.append((child, seen))
            else:
                parents.append(child)
    return found


def _only_program_below(pid: int) -> list[tuple[int, tree.Stat]]:
    """Returns the program below `pid` that has loaded NumPy, if each process from `pid` down to it
    has one child alone, and has not loaded NumPy; else none."""
    if _loads(pid, (_NUMPY,)):
        return []
    parent = pid
    while len(children := _live_children(parent)) == 1:
        ((child, seen),) = children
        if _is_part(child, parent) or _supervisor(child) != _supervisor(pid):
            break
        if _loads(child, (_NUMPY,)):
            return [(child, seen)]
        parent = child
    return []


def _live_children(pid: int) -> list[tuple[int, tree.Stat]]:
    children = ((child, tree.stat(child)) for child in tree.children(pid))
    return [(child, seen) for child, seen in children if seen and seen.state not in tree.GONE]


def _supervisor(pid: int) -> str | None:
    """Returns what the environment of a process tells of its supervisor; None: nothing."""
    return variable_of(pid, LINEAGE)


def variable_of(pid: int, name: str) -> str | None:
    """Returns a variable of the environment that a process was started with; None: it has none, or
    cannot be looked at."""
    try:
        environ = aside("/proc").ask(lambda: read(Path(f"/proc/{pid}/environ"), _MAX_ENVIRON))
    except OSError:
        return None
    begin = f"{name}=".encode()
    found = (each for each in environ.split(b"\0") if each.startswith(begin))
    return next((each[len(begin) :].decode(errors="replace") for each in found), None)


def _is_part(child: int, parent: int) -> bool:
    """True if a process was forked to do a part of its parent's work: it is no other program."""
    try:
        argv, of_parent = _argv(child), _argv(parent)
    except OSError:  # one of them has ended
        return True
    return argv == of_parent or b"multiprocessing" in argv


def _argv(pid: int) -> bytes:
    return aside("/proc").ask(lambda: read(Path(f"/proc/{pid}/cmdline"), _MAX_ARGUMENTS))


def _computes(pid: int) -> bool:
    """True if the process has loaded a library that only a program loads that computes."""
    return _loads(pid, _COMPUTES)


def _loads(pid: int, libraries: Iterable[bytes]) -> bool:
    try:
        maps = aside("/proc").ask(lambda: read(Path(f"/proc/{pid}/maps"), _MAX_MAPS))
    except OSError:  # it has ended, or belongs to another user
        return False
    return any(library in maps for library in libraries)


def is_shell(pid: int) -> bool:
    """Whether the process runs a shell; False if it has ended, or is another user's."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _SHELLS  # noqa: PTH115, PTH119
    except OSError:  # it has ended, or belongs to another user
        return False


def _is_in_foreground(child: int, shell: int) -> bool:
    number = SIGINT if is_shell(child) else SIGQUIT  # bash always ignores SIGQUIT
    try:
        ignored = _has_signal(_status(Path(f"/proc/{child}"))["SigIgn"], number)
        return os.getpgid(child) == os.getpgid(shell) and not ignored
    except OSError:  # it has ended
        return False


def pipes(pid: int) -> HeldPipes:
    """Returns the pipes that are stdin, stdout and stderr of a process; none if it has ended."""
    return HeldPipes(_pipes(pid, _READS), _pipes(pid, _WRITES))


def _pipes(pid: int, descriptors: Iterable[int]) -> frozenset[str]:
    found = set()
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH115 (not a path)
        except OSError:
            continue
        if target.startswith("pipe:"):
            found.add(target)
    return frozenset(found)
