"""The guard: a tiny process that starts all processes of a job, and outlives none of them.

It is their parent and, as a subreaper, becomes the parent of what they leave behind: so everything
of the job is below it, whatever a program makes of its environment, its name or its session. When
the supervisor is gone, the guard kills all that is below it until nothing is left, and ends. When
the guard is gone, what it started dies by the kernel's parent-death signal, and the rest comes to
the supervisor, a subreaper too. Where there is a cgroup, the guard forks a *watcher*: it waits for
the supervisor's end, and then kills what is in the cgroup, even if the guard was killed as well.

It is run by a bare interpreter that imports next to nothing (see `guard_process`).
Messages are datagrams on a socket, marshalled tuples. It is told:

    spawn NUMBER PLACE  start a process; PLACE is its place in the record of sessions, or None. As
                        descriptors come its payload (see `birth.Order`), the record where there is
                        a PLACE, and what it inherits; answered by `started` or `failed`
    end NUMBER SPARED   kill all but the processes with these pids, which it started, and the
                        members of their sessions; answered by `ended` with how many are left
    orphans NUMBER      list the processes whose parent has ended, and that were not reaped yet,
                        without those in the session of a living process that it started; answered
                        by `orphans`
    contain PATH        start each process in a cgroup of its own below PATH; "": in none
    until TIME          kill all at this time of CLOCK_BOOTTIME, unless a later one comes before
                        (a fence: where guard and supervisor stood still, so did the message)
    within SECONDS      kill all unless this message comes again within that time (a lease)
    kill                kill all now
    kill_process PID    kill a process that it started, and all below it: the supervisor had no
                        descriptor free for its pidfd, so nobody can watch it

It sends `exited PID CODE` for each process that it started, and for each that it named as an
orphan, `watcher PID STARTED`, and `broken TEXT` before it ends because of an error of its own.
"""

import _signal  # type: ignore[import-not-found]  # `signal` costs the guard a megabyte
import _socket
import marshal
import os
import select
import sys
import time

from supervisor.host import birth, cgroups, tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PAUSE = 0.002
_LONGEST_PAUSE = 1.0
_LONGEST_WAIT = 5.0
"""Longest poll, in seconds. poll's clock stops during sleep; the lease's does not."""
_PATIENCE = 0.01
"""Seconds that `end` waits for killed processes to end."""
_MOST_DESCRIPTORS = 250
_LARGEST = 1 << 16
_MOST_ORPHANS = 1000
"""Most pids in one answer; a message has room for ten times as many."""


class Guard:
    """Obeys the messages on a socket; once the socket is closed, kills until nothing is left."""

    def __init__(self, connection: "_socket.socket", supervisor: int) -> None:
        """`supervisor` is the pid of our parent."""
        self._connection = connection
        self._supervisor = os.pidfd_open(supervisor)
        self._ended = os.getppid() != supervisor  # it died before the line above
        self._own = os.getsid(0)
        self._unsent: list[tuple[tuple[int | str, ...], int | None]] = []
        self._starting: dict[int, tuple[int, int]] = {}
        """Starts under way: (number of the request, pid) by the pipe that reports the result."""
        self._started: set[int] = set()
        """Pids whose exit the supervisor has to be told."""
        self._named: set[int] = set()
        """Orphans that it was told of: it is told their exit too."""
        self._cgroup = self._root = ""
        self._cgroups: list[tuple[int, str]] = []
        """(pid, cgroup) of each started process; removed once the cgroup is empty."""
        self._names = 0
        self._watcher: int | None = None
        self._deadline: float | None = None
        self._kills = False
        self._pause = _PAUSE
        woken, wakes = os.pipe()
        self._woken = woken
        os.set_blocking(woken, False)
        os.set_blocking(wakes, False)
        _signal.signal(_signal.SIGCHLD, _nothing)
        _signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGCHLD,))

    def run(self) -> None:
        """Work until the supervisor is gone, and nothing of the job is left."""
        while True:
            if self._deadline is not None and _now() >= self._deadline:
                self._kills = True
                self._deadline = _now() + 1.0  # and again, until the lease is renewed
            if self._kills or self._ended:
                left = self._kill(frozenset())
                self._kills = left > 0
                if self._ended and not left:
                    break
            self._wait()
        if self._root:
            cgroups.remove(self._root)
        if self._watcher is not None:
            os.kill(self._watcher, _signal.SIGKILL)
            os.waitpid(self._watcher, 0)

    # --- waiting --------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for the next message, exit or deadline, and handle it."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for pipe in self._starting:
            poll.register(pipe, select.POLLIN)
        if not self._ended:
            out = select.POLLOUT if self._unsent else 0
            poll.register(self._connection.fileno(), select.POLLIN | out)
        for descriptor, _ in poll.poll(self._patience()):
            if descriptor == self._woken:
                self._reap()
            elif descriptor in self._starting:
                self._answer(descriptor)
            elif descriptor == self._connection.fileno():
                self._send()
                self._hear()

    def _patience(self) -> float | None:
        """Milliseconds until the next deadline; None: there is none."""
        if self._kills or self._ended:
            pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return 1000 * pause
        self._pause = _PAUSE
        if self._deadline is None:
            return None
        return 1000 * min(max(0.0, self._deadline - _now()), _LONGEST_WAIT)

    def _hear(self) -> None:
        try:
            data, told, flags, _ = self._connection.recvmsg(
                _LARGEST,
                _socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS),
                _socket.MSG_CMSG_CLOEXEC | _socket.MSG_DONTWAIT,
            )
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, told, flags = b"", [], 0
        if not data:
            self._ended = True
            return
        descriptors = [one for _, _, raw in told for one in memoryview(raw).cast("i").tolist()]
        what, *values = marshal.loads(data)
        try:
            if what == "spawn":
                lost = flags & _socket.MSG_CTRUNC
                self._spawn(values[0], None if lost else descriptors, recorded=values[1])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._obey(what, values)

    def _obey(self, what: str, values: "list[Any]") -> None:
        """Carry out a message that comes without descriptors."""
        if what == "end":
            self._end(values[0], frozenset(values[1]))
        elif what == "orphans":
            self._tell(("orphans", values[0], *self._orphans()))
        elif what == "contain":
            self._contain(values[0])
        elif what == "until":
            # We may have been frozen beyond the deadline: a new one that waited here spares nobody.
            self._kills |= self._deadline is not None and _now() >= self._deadline
            self._deadline = values[0]
        elif what == "within":
            self._deadline = _now() + values[0]
        elif what == "kill":
            self._kills = True
        elif what == "kill_process":
            self._kill_process(values[0])

    def _tell(self, message: tuple[int | str, ...], descriptor: int | None = None) -> None:
        self._unsent.append((message, descriptor))
        self._send()

    def _send(self) -> None:
        """Send queued messages as far as the socket takes them; never blocks."""
        while self._unsent:
            message, descriptor = self._unsent[0]
            passed = []
            if descriptor is not None:
                raw = descriptor.to_bytes(4, sys.byteorder)
                passed = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, raw)]
            try:
                self._connection.sendmsg([marshal.dumps(message)], passed, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:  # it is gone, as we are about to hear
                pass
            self._unsent.pop(0)
            if descriptor is not None:
                os.close(descriptor)

    # --- starting -------------------------------------------------------------------------------

    def _spawn(self, number: int, descriptors: list[int] | None, recorded: int | None) -> None:
        stage = "start"
        try:
            if descriptors is None:
                raise OSError(24, "some descriptors did not arrive")  # EMFILE: here, not there
            with open(descriptors[0], "rb", closefd=False) as file:
                file.seek(0)
                argv, candidates, env, targets = marshal.load(file)
            order = birth.Order(argv, candidates, env, targets, recorded)
            stage = "cgroup"
            cgroup = self._new_cgroup()
            stage = "start"
            self._fork(number, order, cgroup, descriptors[1:])
        except OSError as error:
            self._tell(("failed", number, error.errno or 0, stage))

    def _new_cgroup(self) -> str | None:
        if not self._cgroup:
            return None
        self._names += 1
        path = f"{self._cgroup}/{self._names}"
        os.mkdir(path)  # noqa: PTH102
        return path

    def _fork(
        self, number: int, order: birth.Order, cgroup: str | None, descriptors: list[int]
    ) -> None:
        parent = os.getpid()
        pipe, status = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                birth.become(order, parent, cgroup, descriptors, status)
        except OSError:
            os.close(pipe)
            if cgroup is not None:
                cgroups.remove(cgroup)
            raise
        finally:
            os.close(status)
        self._starting[pipe] = number, pid
        if cgroup is not None:
            self._cgroups.append((pid, cgroup))

    def _answer(self, pipe: int) -> None:
        """Answer a start: the child has called exec, has written why it cannot, or was killed."""
        number, pid = self._starting.pop(pipe)
        said = os.read(pipe, 100).split()
        os.close(pipe)
        if said:
            self._tell(("failed", number, int(said[0]), said[1].decode()))
            return
        seen = tree.stat(pid)
        assert seen is not None, "nobody has waited for it"
        self._started.add(pid)
        self._tell(("started", number, pid, seen.started), os.pidfd_open(pid))

    # --- ending ---------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap all dead children. Each exit is sent before it is reaped: if we are killed in
        between, the supervisor inherits the zombie and reads the exit code itself."""
        while True:
            try:
                while os.read(self._woken, 512):
                    pass
            except BlockingIOError:
                pass
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            pid = dead.si_pid
            for pipe in [pipe for pipe, (_, one) in self._starting.items() if one == pid]:
                self._answer(pipe)
            if pid in self._started or pid in self._named:
                self._started.discard(pid)
                self._named.discard(pid)
                exited = dead.si_code == os.CLD_EXITED
                self._tell(("exited", pid, dead.si_status if exited else -dead.si_status))
            os.waitpid(pid, 0)
            self._clear(pid)
            if pid == self._watcher:
                self._start_watcher()

    def _clear(self, pid: int) -> None:
        """Remove the cgroups of the process that was started as `pid`, if they are empty."""
        for entry in [entry for entry in self._cgroups if entry[0] == pid]:
            if not cgroups.populated(entry[1]):
                cgroups.remove(entry[1])
                self._cgroups.remove(entry)

    def _end(self, number: int, spared: frozenset[int]) -> None:
        end = _now() + _PATIENCE
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        while (left := self._kill(spared)) and _now() < end:
            poll.poll(1)
        self._tell(("ended", number, left))

    def _orphans(self) -> list[int]:
        """Return the children that we adopted because their parents ended. Only their own parent,
        which is this process, gets a complete list: see `tree.children`. One that has just ended
        is in it, because we may have adopted its children after the list was read."""
        self._reap()
        found = []
        starting = {pid for _, pid in self._starting.values()}
        for pid in tree.children(os.getpid()):
            seen = tree.stat(pid)
            if seen is None or pid in starting:
                continue
            if seen.session != self._own and seen.session not in self._started:
                found.append(pid)
        self._named.update(found[:_MOST_ORPHANS])
        return found[:_MOST_ORPHANS]

    def _kill(self, spared: frozenset[int]) -> int:
        """SIGKILL all processes of the job outside the sessions `spared`; returns how many there
        were. A killed process may just have forked: only 0 means that nothing is left."""
        self._reap()
        left = 0
        for entry in list(self._cgroups):
            if entry[0] not in spared:
                if cgroups.populated(entry[1]):
                    left += 1
                    cgroups.kill(entry[1])
                else:
                    cgroups.remove(entry[1])
                    self._cgroups.remove(entry)
        left += tree.kill_children(spared | {self._own})
        return left + len(self._starting)  # which may not have left our session yet

    def _kill_process(self, pid: int) -> None:
        """SIGKILL a process that we started, and all below it."""
        seen = tree.stat(pid)
        if pid in self._started and seen is not None:  # so it was not reaped: the pid is still its
            for each in [(pid, seen), *tree.descendants(pid, frozenset())]:
                tree.send(*each, _signal.SIGKILL)

    # --- the watcher ----------------------------------------------------------------------------

    def _contain(self, path: str) -> None:
        self._cgroup = path
        if path and self._watcher is None:
            self._root = path
            self._start_watcher()

    def _start_watcher(self) -> None:
        """Have another process see to the cgroup when we and the supervisor are both gone."""
        pid = os.fork()
        if pid == 0:
            try:
                _watch(self._root, self._supervisor)
            finally:
                os._exit(0)
        self._watcher = pid
        seen = tree.stat(pid)
        assert seen is not None, "nobody has waited for it"
        self._tell(("watcher", pid, seen.started))


def _watch(cgroup: str, supervisor: int) -> None:
    """The watcher: when the supervisor is gone, kill what is in the cgroup.

    The guard does so too, unless it is gone as well. While the supervisor lives, it sees to the
    guard's end itself, and replaces guard and watcher.
    """
    os.setpgid(0, 0)
    os.closerange(3, supervisor)
    os.closerange(supervisor + 1, os.sysconf("SC_OPEN_MAX"))
    poll = select.poll()
    poll.register(supervisor, select.POLLIN)
    poll.poll()
    while cgroups.populated(cgroup):
        cgroups.kill(cgroup)
        time.sleep(_PAUSE)
    cgroups.remove(cgroup)


def _nothing(*_: object) -> None:
    """For a signal that only has to wake us."""


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main() -> None:
    """Run as `... SOCKET SUPERVISOR`: the descriptor of our end, and the pid of our parent."""
    descriptor, supervisor = int(sys.argv[1]), int(sys.argv[2])
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))  # what our own parents left open
    os.set_inheritable(descriptor, False)  # nobody else speaks for us, or keeps it open
    birth.become_subreaper()
    connection = _socket.socket(fileno=descriptor)
    guard = Guard(connection, supervisor)
    try:
        guard.run()
    except BaseException as error:
        said = marshal.dumps(("broken", f"{type(error).__name__}: {error}"))
        try:  # noqa: SIM105 (contextlib is a file more to load)
            connection.sendmsg([said], (), _socket.MSG_DONTWAIT)
        except OSError:  # it does not listen: the workers must not live on while we wait for it
            pass
        raise
