"""The supervisor's client of the guard process (`supervisor/host/guard.py`).

It asks the guard to start and to kill the processes of the job, tells it the cgroup and the lease,
and replaces a guard that has died.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from errno import EMFILE
from pathlib import Path
from typing import Any

from supervisor.host import cgroups, tree
from supervisor.host.birth import become_subreaper
from supervisor.host.guard_process import spawn
from supervisor.host.guard_socket import GuardSilentError, GuardSocket, Started, packed
from supervisor.host.notice import Notice, Tell
from supervisor.host.on_record import OnRecord
from supervisor.host.orphans import Orphans
from supervisor.host.process_record import ProcessRecord
from supervisor.host.standstill import Standstill
from supervisor.host.unkillable import Patience
from supervisor.host.waiting import end_child, has_ended, reaped

_GUARD_END_TIMEOUT = 5.0
"""Seconds to wait for a dismissed guard to end, or for the processes of a dead guard to die."""
_KILL_PAUSE = 0.002
"""Seconds between two attempts to kill what a dead guard left behind."""
_GUARD_KILL_TIMEOUT = 0.1
"""Seconds to wait for the end of a guard that was sent SIGKILL."""
_TEXT_SILENT = (
    "the guard process (pid {}) does not answer: the supervisor kills it, and the workers with it, "
    "and starts another one"
)
_TEXT_KILLED = (
    "the guard process was killed, and the workers with it: the supervisor starts another one"
)
_MAX_UNANSWERED = 60
"""Unanswered requests, since the guard's last message, after which `exit_code` and `orphans` treat
the guard as lost: half a minute of requests, as each waits 0.5 s. (`kill` does so after one request
without an answer.) All processes of a lost guard are killed. We count requests, not seconds,
because this supervisor may have been frozen itself."""


class GuardClient:
    """Starts, kills and watches the processes of the job through the guard, which is their parent.

    A guard that dies is replaced. Other processes may have become our children too: see `Orphans`.
    """

    def __init__(self, tell: Tell) -> None:
        """Start a guard. `tell` gets what a person should know, such as the guard's end."""
        become_subreaper()
        self._tell = tell
        self._lock = threading.RLock()
        self._own_session = os.getsid(0)
        self._our_children = Orphans()
        self._on_record = OnRecord(tell)
        self._cgroup: str | None = None
        self._uses_cgroup = False
        """True if new processes are started below the cgroup; False once that has failed."""
        self._deadline: float | None = None
        self._standstill = Standstill()
        self._dismissed = False
        self._end_is_told = False
        """True once a person was told that this guard was killed, or does not answer."""
        self._losses = 0
        self._patience = Patience(tell)
        self._started: dict[int, int] = {}
        """Start time (clock ticks since boot), by pid, of each process whose exit code
        `exit_code` can still return."""
        self._exits: dict[int, int] = {}
        """Exit codes, by pid, of processes whose guard has died, until `exit_code` returns them."""
        self._spawn_guard()

    def contain(self, record: ProcessRecord, cgroup: str | None) -> None:
        """From now on, record each process in `record`, and start it in a cgroup of its own below
        `cgroup` (None: without cgroups).

        Raises:
            GuardSilentError: the guard is gone, or has read nothing for a while.
        """
        with self._lock:
            self._on_record.use(record)
            self._cgroup, self._uses_cgroup = cgroup, cgroup is not None
            self._socket.send("contain", cgroup or "")

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int,
        inherit: Sequence[int] = (),
    ) -> Started:
        """See `ports.ProcessStarter`."""
        payload = packed(argv, env, inherit)
        try:
            with self._lock:
                if self._dismissed:
                    raise GuardSilentError(0, "the supervisor is ending the job", argv[0])
                if self._is_dead:
                    self._replace_at_once()
                return self._start(argv[0], payload, (output, errors, *inherit))
        finally:
            os.close(payload)

    def exit_code(self, process: Started) -> int | None:
        """Returns the exit code of the process, as `subprocess` has it (-N: signal N).

        Returns None while the process runs, and until the guard has reported its exit code. Returns
        an exit code only once. Safe in any thread.

        Raises:
            ChildProcessError: nobody saw how the process ended, its exit code was returned already,
                or the guard was dismissed.
        """
        with self._lock:
            if self._dismissed:
                raise ChildProcessError(f"process {process.pid} was left to the guard")
            if process.pid not in self._started:  # asking the guard would count as unanswered
                raise ChildProcessError(
                    f"the exit code of process {process.pid} was returned already, or nobody saw it"
                )
            self._socket.hear()
            if process.pid not in self._socket.exits and process.pid not in self._exits:
                if not has_ended(process.pidfd):
                    return None
                if not self._socket.hear_of(process.pid):
                    if not self._is_lost:
                        return None
                    self._kill_leftovers_and_respawn()
            for exits in (self._socket.exits, self._exits):
                if process.pid in exits:
                    self._started.pop(process.pid, None)
                    return exits.pop(process.pid)
        raise ChildProcessError(f"nobody saw how process {process.pid} ended")

    def kill(self, spared: Collection[int] = ()) -> bool:
        """Send SIGKILL to all processes of the job, except `spared` and the members of their
        sessions. If the guard is lost, they are killed too.

        Returns False only if certainly no such process is left. True: call it again.

        Raises:
            UnkillableError: a process was left for too long.
        """
        with self._lock:
            is_left = self._kill(spared)
            self._patience.look(is_left, lambda: self._left(spared))
            return is_left

    def orphans(self) -> list[tuple[int, tree.Stat]] | None:
        """Returns the pids and facts of the job's live processes whose parent has ended; None: the
        guard does not answer, or all that it named have just ended, and may have left others.

        Processes in the session of a live process that `start` has started are left out. If the
        guard is lost, the list is empty, because all processes of a lost guard are killed.
        """
        with self._lock:
            try:
                message, _ = self._socket.ask("orphans", self._socket.next_number())
            except GuardSilentError:
                return [] if self._is_lost else None
            named = [(pid, tree.stat(pid)) for pid in message[2:]]
            found = [
                (pid, seen)
                for pid, seen in named
                if seen and seen.parent == self.pid and seen.state not in tree.GONE
            ]
            for pid, _ in found:
                self._socket.exits.pop(pid, None)  # of an earlier process with this pid
            return found if found or not named else None

    def orphan_exit(self, pid: int) -> int | None:
        """Returns how a process ended that `orphans` named, as `subprocess` has it; None: it has
        not ended, or that is not known."""
        with self._lock:
            self._socket.hear()
            return self._socket.exits.get(pid)

    @property
    def pause(self) -> float:
        """Seconds to wait before `kill` is called again; 0 unless a process does not die."""
        return self._patience.pause

    def give_up_early(self) -> None:
        """Have `kill` give up on processes that do not die after 5 s (`unkillable.TELL_AFTER`),
        because a person waits for the end."""
        self._patience.give_up_early()

    def give_up_early_on_idle(self) -> None:
        """Have `kill` give up after the same 5 s, but only on processes that use no CPU time,
        because a stop was requested before the kill."""
        self._patience.give_up_early_on_idle()

    def refresh(self) -> None:
        """Read the guard's messages, reap foreign children, and update the process record.

        Called periodically, in the main thread.
        """
        with self._lock:
            self._our_children.look(lambda: self._is_dead)
            if not self._is_dead:
                self._socket.hear()
                self._on_record.look(dict(tree.descendants(self.pid, {self._own_session})))

    def replace_if_dead(self) -> bool:
        """If the guard has died, kill what is left of the job, and then start another guard.

        Returns True if there is a live guard now; False: call it again.

        Raises:
            UnkillableError: a process was left for too long.
        """
        with self._lock:
            if not self._is_dead:
                return True
            is_left = self._kill_leftovers_and_respawn()
            self._patience.look(is_left, lambda: self._left(()))
            return not is_left

    def losses(self) -> Callable[[], int]:
        """Returns a function that counts the guards lost from now on, each with all its
        processes."""
        with self._lock:  # a guard that is dead already was lost before
            before = self._losses + self._is_dead

        def lost() -> int:
            with self._lock:
                return self._losses + self._is_dead - before

        return lost

    def kill_unless_renewed(self, seconds: float) -> None:
        """Have the guard kill all processes of the job unless this is called again within
        `seconds`. Safe in any thread."""
        self._deadline = _boottime() + seconds
        self._say("within", seconds)

    def kill_at(self, deadline: float) -> None:
        """Have the guard kill all processes of the job at the time `deadline` of CLOCK_BOOTTIME,
        unless this is called with a later one before. Safe in any thread."""
        self._deadline = deadline
        self._say("until", deadline)

    def request_kill(self) -> None:
        """Have the guard kill all processes of the job; does not wait. Safe in any thread."""
        self._say("kill")

    def stop_workers(self, patience: float = 1.0) -> bool:
        """Send SIGSTOP to all processes of the job. Safe in any thread.

        Returns True once none of them runs any more; False: one still runs after `patience`
        seconds.
        """
        return self._standstill.begin(self.pid, {self._own_session}, patience)

    def continue_workers(self) -> None:
        """Send SIGCONT to the processes that `stop_workers` has stopped. Safe in any thread."""
        self._standstill.end()

    def dismiss(self) -> None:
        """Have the guard kill what is left of the job, and exit. Nothing can be started then.

        Waits at most 5 s for the guard's end, and not at all if `kill` has given up on a process.
        """
        with self._lock:
            self._dismissed = True
            self._socket.close()
            if has_ended(self.pidfd, 0.0 if self._patience.is_over else _GUARD_END_TIMEOUT):
                os.waitpid(self.pid, 0)
            os.close(self.pidfd)
            self._on_record.close()

    # --- starting -------------------------------------------------------------------------------

    def _spawn_guard(self) -> None:
        self.pid, ours = spawn()
        self.pidfd = os.pidfd_open(self.pid)
        self._end_is_told = False
        self._socket = GuardSocket(ours, self._end_late)
        if self._cgroup is not None:
            self._socket.send("contain", self._cgroup)
            if not self._uses_cgroup:  # start nothing in it; the watcher kills what is in it
                self._socket.send("contain", "")
        if self._deadline is not None:
            self._socket.send("until", self._deadline)

    def _start(self, program: str, payload: int, given: Sequence[int]) -> Started:
        place = self._on_record.place()
        descriptors = [payload, *self._on_record.descriptors, *given]
        number = self._socket.next_number()
        try:
            message, came = self._socket.ask("spawn", number, place, descriptors=descriptors)
        except GuardSilentError as error:
            self._on_record.unanswered(number, place)
            why = "has ended" if self._is_dead else "does not answer"
            text = f"the guard process, which starts it, {why}"
            raise OSError(error.errno, text, program) from error
        if message[0] == "started":
            _, _, pid, started = message
            self._started[pid] = started
            self._on_record.written(place, pid, started)
            if not came:  # no descriptor was free for its pidfd: nobody could watch it
                self._say("kill_process", pid)
                raise OSError(EMFILE, os.strerror(EMFILE), program)
            return Started(pid, came[0])
        _, _, code, stage = message
        self._on_record.give_back(place)
        if stage == "cgroup" and self._uses_cgroup:
            self._without_cgroups(code)
            return self._start(program, payload, given)
        where = str(self._on_record.path or program) if stage == "record" else program
        raise OSError(code, os.strerror(code), where)

    def _end_late(self, message: tuple[Any, ...], came: Sequence[int]) -> None:
        """Kill the process of a start that was answered too late: its caller has given up."""
        for pidfd in came:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        if message[0] == "started" and not came:  # no descriptor was free for its pidfd
            self._say("kill_process", message[2])
        self._on_record.answered_late(message[1])

    def _without_cgroups(self, number: int) -> None:
        """Start processes without cgroups from now on, because of the error `number`.

        Processes that are in a cgroup already are still killed by it.
        """
        why = f"{self._cgroup}: {os.strerror(number)}"
        self._tell(
            Notice(
                "cgroups-off",
                f"processes are started without cgroups from now on: {why}",
                reason=why,
            )
        )
        self._socket.send("contain", "")
        self._uses_cgroup = False

    # --- killing --------------------------------------------------------------------------------

    def _kill(self, spared: Collection[int]) -> bool:
        try:
            message, _ = self._socket.ask("end", self._socket.next_number(), sorted(spared))
        except GuardSilentError:
            return self._kill_leftovers_and_respawn()
        if message[2] == 0:
            self._on_record.keep(spared)
        return bool(message[2])

    def _left(self, spared: Collection[int]) -> set[int]:
        """Returns the pids of the job's live processes, except those in the sessions `spared`."""
        kept = {self._own_session, *spared}
        found = tree.descendants(self.pid, kept)
        for each in self._orphans_of_dead_guard() if self._is_dead else ():
            found += [each, *tree.descendants(each[0], kept)]
        left = {pid for pid, seen in found if seen.state not in tree.GONE}
        if self._cgroup is not None:
            inside = ((pid, tree.stat(pid)) for pid in cgroups.members(self._cgroup))
            left |= {pid for pid, seen in inside if seen is not None and seen.session not in kept}
        return left

    # --- without a guard ------------------------------------------------------------------------

    @property
    def _is_dead(self) -> bool:
        return has_ended(self.pidfd)

    @property
    def _is_lost(self) -> bool:
        """True if the guard is dead, or has left too many requests unanswered."""
        return self._is_dead or self._socket.unanswered >= _MAX_UNANSWERED

    def _replace_at_once(self) -> None:
        """Kill what the dead guard left behind, and start another guard at once.

        Raises:
            OSError: a process does not die within 5 s.
        """
        end = time.monotonic() + _GUARD_END_TIMEOUT
        while self._kill_leftovers_and_respawn():
            if time.monotonic() > end:
                raise OSError(0, "what the guard process left behind cannot be killed")

    def _kill_leftovers_and_respawn(self) -> bool:
        """End a lost guard: kill it and the processes that it has left to us.

        Returns True if anything was left: call it again. Once nothing is left, it starts another
        guard and returns False.
        """
        if not self._end_guard():
            return True
        self._socket.hear()
        self._exits |= self._socket.exits
        is_left = self._kill_orphans()
        if self._cgroup is not None:
            cgroups.kill(self._cgroup)
            is_left |= cgroups.populated(self._cgroup)
        if is_left:
            time.sleep(_KILL_PAUSE)
            return True
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self._socket.close()
        watcher = self._socket.watcher
        if self._socket.broken is not None:
            self._tell(
                Notice(
                    "guard-lost",
                    f"the guard process failed: {self._socket.broken}",
                    reason=str(self._socket.broken),
                )
            )
        self._losses += 1
        self._started = {
            pid: started for pid, started in self._started.items() if pid in self._exits
        }
        if self._cgroup is not None:
            for path in Path(self._cgroup).glob("*/"):
                cgroups.remove(str(path))
        self._on_record.lost_guard()
        self._spawn_guard()
        if watcher is not None:  # the new guard has a watcher of its own
            end_child(*watcher)
        return False

    def _end_guard(self) -> bool:
        """Send SIGKILL to the guard if it lives, and tell a person once why it is lost.

        Returns True once the guard has ended; False: it still waits in the kernel.
        """
        lives = not self._is_dead
        if not self._end_is_told:
            self._end_is_told = True
            self._tell(
                Notice(
                    "guard-lost",
                    _TEXT_SILENT.format(self.pid) if lives else _TEXT_KILLED,
                    reason="unheard" if lives else "killed",
                )
            )
        if lives:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        return has_ended(self.pidfd, _GUARD_KILL_TIMEOUT)

    def _kill_orphans(self) -> bool:
        """Kill the job's processes among our children and all below them, and reap those that have
        ended. Returns True if there was any."""
        found = False
        # All are found before any is reaped: a dead session leader still proves its session.
        for pid, seen in self._orphans_of_dead_guard():
            found = True
            for each in [(pid, seen), *tree.descendants(pid, {self._own_session})]:
                tree.send(*each, signal.SIGKILL)
            if (code := reaped(pid)) is not None and pid in self._started:
                self._exits[pid] = code
        return found

    def _orphans_of_dead_guard(self) -> list[tuple[int, tree.Stat]]:
        inside = cgroups.members(self._cgroup) if self._cgroup is not None else ()
        return self._our_children.of_the_job(inside, self._is_known)

    def _is_known(self, pid: int, seen: tree.Stat) -> bool:
        return self._on_record.proves(pid, seen) or self._started.get(pid) == seen.started

    def _say(self, *message: object) -> None:
        with suppress(GuardSilentError):  # the guard is dead, and will be replaced
            self._socket.send(*message)


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
