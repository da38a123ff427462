"""What a process of the job does between fork and exec, in the guard's child.

It takes a session of its own, dies with the guard, is in its cgroup and on record before the first
instruction of the program: nothing that the program does later can undo that. Run by the guard, so
it imports next to nothing.
"""

import _ctypes
import _signal  # type: ignore[import-not-found]  # `signal` costs the guard a megabyte
import os

from supervisor.host import cgroups, tree

LINE = 64
"""Bytes of a line in the record of sessions."""
_EINVAL = 22  # `errno` is one more file to load
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_DEFAULT = ("SIGPIPE", "SIGXFSZ", "SIGINT", "SIGQUIT")
"""Signals reset to their default action. Python ignores the first two, which programs expect at
their default; a shell has its background jobs ignore the last two because of the terminal, which a
session of its own does not have."""


class _Function(_ctypes.CFuncPtr):  # `ctypes` itself costs the guard 300 kB
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = None


_ourselves = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
_prctl = _Function(_ctypes.dlsym(_ourselves, "prctl"))


class Order:
    """What is to be started, as the supervisor sent it (`guard_socket.packed`)."""

    __slots__ = ("argv", "candidates", "env", "record", "targets")

    def __init__(
        self,
        argv: list[bytes],
        candidates: list[bytes],
        env: dict[bytes, bytes],
        targets: list[int],
        record: int | None,
    ) -> None:
        """`candidates` are the paths to try as the program, in PATH order; `targets` the numbers
        of the descriptors that it inherits; `record` is the offset of its line in the process
        record (None: there is no record)."""
        self.argv = argv
        self.candidates = candidates
        self.env = env
        self.targets = targets
        self.record = record


def become_subreaper() -> None:
    """Let orphaned descendants become our children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def drain_with_parent(parent: int) -> None:
    """Let the kernel send this process SIGTERM when its parent, the process `parent`, ends."""
    _prctl(_PR_SET_PDEATHSIG, _signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), _signal.SIGTERM)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent, the process `parent`, ends."""
    _prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def line(session: int, started: int) -> bytes:
    """The line of a session in the record."""
    text = b'{"session":%d,"started":%d}' % (session, started)
    return text.ljust(LINE - 1) + b"\n"


def become(
    order: Order, parent: int, cgroup: str | None, descriptors: list[int], status: int
) -> None:
    """In the child: exec the program, or write to `status` why not, as `errno stage`.

    `descriptors` are the process record (only where `order` has an offset in it), stdout, stderr,
    and those that the program inherits. If the process `parent` ends, the kernel kills this one.
    """
    stage = "start"
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        stage = "cgroup"
        if cgroup is not None:
            cgroups.join(cgroup)
        stage = "record"
        if order.record is not None:
            _record(descriptors.pop(0), order.record)
        stage = "start"
        output, errors, *inherited = descriptors
        os.dup2(output, 1)
        os.dup2(errors, 2)
        status = _placed(inherited, order.targets, status)
        for name in _DEFAULT:
            _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        stage = "exec"
        _execute(order)
    except Exception as error:
        number = getattr(error, "errno", None) or _EINVAL
        os.write(status, b"%d %s" % (number, stage.encode()))
    finally:
        os._exit(127)


def _record(descriptor: int, offset: int) -> None:
    seen = tree.stat(os.getpid())
    assert seen is not None
    os.pwrite(descriptor, line(os.getpid(), seen.started), offset)


def _placed(descriptors: list[int], targets: list[int], status: int) -> int:
    """Move each descriptor to its target number and make it inheritable; returns the new number
    of `status`."""
    taken = set(targets)
    while status in taken:
        status = os.dup(status)
    moves = [(one, target) for one, target in zip(descriptors, targets) if one != target]  # noqa: B905
    while moves:
        sources = {one for one, _ in moves}
        ready = next((move for move in moves if move[1] not in sources), None)
        if ready is None:  # a cycle: each target number is another one's present number
            one, target = moves.pop()
            moves.append((os.dup(one), target))
        else:
            moves.remove(ready)
            os.dup2(*ready)
    for target in targets:
        os.set_inheritable(target, True)
    return status


def _execute(order: Order) -> None:
    """Exec the first candidate that can be run, as `execvpe` does.

    Raises:
        OSError: none can be run; as a rule because none exists.
    """
    found: OSError | None = None
    missing: OSError | None = None
    for candidate in order.candidates:
        try:
            os.execve(candidate, order.argv, order.env)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            found = found or error
    raise found or missing or FileNotFoundError(2, "")
