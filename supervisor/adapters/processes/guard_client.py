"""Our end of the guard process (`supervisor/host/guard.py`): has it start and kill what is the
job's, tells it what to do when we are gone, and replaces it should it die."""

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
from supervisor.host.guard_socket import GuardSocket, NoGuardError, Started, packed
from supervisor.host.notice import Notice, Tell
from supervisor.host.on_record import OnRecord
from supervisor.host.orphans import Orphans
from supervisor.host.process_record import ProcessRecord
from supervisor.host.standstill import Standstill
from supervisor.host.unkillable import Patience
from supervisor.host.waiting import end_child, has_ended, reaped

_LAST_LOOK = 5.0
_LOOK_AGAIN = 0.002
_TO_DIE = 0.1
"""Seconds that a guard which does not answer gets to die before it is looked at again."""
_UNHEARD = "the guard process (pid {}) does not answer: it is killed"
_KILLED = "the guard process was killed, and the workers with it: another one is started"
_MOST_UNANSWERED = 60
"""How often a guard may not answer before it is given up: for half a minute. What it has started
dies with it. Answers are counted, not seconds: we may have been frozen ourselves."""


class GuardClient:
    """The process that is the parent of everything of the job: see `guard_process`."""

    def __init__(self, tell: Tell) -> None:
        """`tell` a person of what is not as it should be."""
        become_subreaper()
        self._tell = tell
        self._lock = threading.RLock()
        self._own = os.getsid(0)
        self._others = Orphans()
        self._on_record = OnRecord(tell)
        self._cgroup: str | None = None
        self._uses_cgroup = False
        """Whether what is started from now on is put into the cgroup."""
        self._deadline: float | None = None
        self._standstill = Standstill()
        self._dismissed = False
        self._end_is_told = False
        """Whether a person knows of the guard's end, and whose doing it is."""
        self._losses = 0
        self._patience = Patience(tell)
        self._started: dict[int, int] = {}
        """When each process was started whose end nobody has asked for."""
        self._exits: dict[int, int] = {}
        """Of those whose guard has died."""
        self._begin()

    def contain(self, record: ProcessRecord, cgroup: str | None) -> None:
        """From now on, have each process on record, and in a cgroup of its own below `cgroup`."""
        with self._lock:
            self._on_record.use(record)
            self._cgroup, self._uses_cgroup = cgroup, cgroup is not None
            self._line.send("contain", cgroup or "")

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        output: int,
        errors: int,
        inherit: Sequence[int] = (),
    ) -> Started:
        """See `ports.Starter`."""
        payload = packed(argv, env, inherit)
        try:
            with self._lock:
                if self._dismissed:
                    raise NoGuardError(0, "the job ends", argv[0])
                if self._is_dead:
                    self._replace()
                return self._start(argv[0], payload, (output, errors, *inherit))
        finally:
            os.close(payload)

    def exit_code(self, process: Started) -> int | None:
        """How it ended, as `subprocess` has it; None while it runs, and until the guard tells how
        it ended. In any thread.

        Raises:
            ChildProcessError: nobody saw how it ended.
        """
        with self._lock:
            if self._dismissed:
                raise ChildProcessError(f"process {process.pid} was left to the guard")
            self._line.hear()
            if process.pid not in self._line.exits and process.pid not in self._exits:
                if not has_ended(process.pidfd):
                    return None
                if not self._line.hear_of(process.pid):
                    if not self._is_lost:
                        return None
                    self._bury()
            for exits in (self._line.exits, self._exits):
                if process.pid in exits:
                    self._started.pop(process.pid, None)
                    return exits.pop(process.pid)
        raise ChildProcessError(f"nobody saw how process {process.pid} ended")

    def kill(self, spared: Collection[int] = ()) -> bool:
        """SIGKILL all of the job but the processes `spared`, with what is in their sessions;
        whether anything was left. Nothing is, for certain, once this returns False.

        Raises:
            UnkillableError: something has been left for too long.
        """
        with self._lock:
            is_left = self._kill(spared)
            self._patience.look(is_left, lambda: self._left(spared))
            return is_left

    def orphans(self) -> list[tuple[int, tree.Stat]] | None:
        """Returns what lives although its parent has ended, but for what is in the session of a
        living process that `start` has started; None while the guard does not answer.

        It returns an empty list once the guard is lost: all of these die with it.
        """
        with self._lock:
            try:
                message, _ = self._line.ask("orphans", self._line.next_number())
            except NoGuardError:
                return [] if self._is_lost else None
            found = [(pid, tree.stat(pid)) for pid in message[2:]]
            return [(pid, seen) for pid, seen in found if seen and seen.parent == self.pid]

    @property
    def pause(self) -> float:
        """Seconds to wait before `kill` is called again: none, unless something does not die."""
        return self._patience.pause

    def shorten_wait(self) -> None:
        """Somebody waits: `kill` gives up what is left as soon as it would be named."""
        self._patience.shorten_wait()

    def stop_was_requested(self) -> None:
        """Somebody waits since before `kill`: it gives up what does not move any more so early."""
        self._patience.stop_was_requested()

    def look(self) -> None:
        """Take note of what has changed: from time to time, in the main thread."""
        with self._lock:
            self._others.look(lambda: self._is_dead)
            if not self._is_dead:
                self._line.hear()
                self._on_record.look(dict(tree.descendants(self.pid, {self._own})))

    def mend(self) -> bool:
        """After the guard's end: kill what is left of the job; True once there is another one.

        Raises:
            UnkillableError: something has been left for too long.
        """
        with self._lock:
            if not self._is_dead:
                return True
            is_left = self._bury()
            self._patience.look(is_left, lambda: self._left(()))
            return not is_left

    def losses(self) -> Callable[[], int]:
        """Counts the guards that are lost from now on, with all that they have started."""
        with self._lock:  # one that is dead already is lost to what was before
            before = self._losses + self._is_dead

        def lost() -> int:
            with self._lock:
                return self._losses + self._is_dead - before

        return lost

    def kill_unless_renewed(self, seconds: float) -> None:
        """Kill all of the job unless this is called again within `seconds`. In any thread."""
        self._deadline = _boottime() + seconds
        self._say("within", seconds)

    def kill_now(self) -> None:
        """Kill all of the job. In any thread; waits for nothing."""
        self._say("kill")

    def stop_workers(self, patience: float = 1.0) -> bool:
        """SIGSTOP every process of the job; whether none of them runs any more, `patience` seconds
        later at most. In any thread."""
        return self._standstill.begin(self.pid, {self._own}, patience)

    def continue_workers(self) -> None:
        """SIGCONT to those that `stop_workers` has stopped. In any thread."""
        self._standstill.end()

    def dismiss(self) -> None:
        """Tell the guard to kill the rest and exit. Waits at most 5 s, and not for what `kill` has
        given up."""
        with self._lock:
            self._dismissed = True
            self._line.close()
            if has_ended(self.pidfd, 0.0 if self._patience.is_over else _LAST_LOOK):
                os.waitpid(self.pid, 0)
            os.close(self.pidfd)
            self._on_record.close()

    # --- starting -------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.pid, ours = spawn()
        self.pidfd = os.pidfd_open(self.pid)
        self._end_is_told = False
        self._line = GuardSocket(ours, self._end_late)
        if self._cgroup is not None:
            self._line.send("contain", self._cgroup)
            if not self._uses_cgroup:  # but what is in it dies with us
                self._line.send("contain", "")
        if self._deadline is not None:
            self._line.send("within", self._deadline - _boottime())

    def _start(self, program: str, payload: int, given: Sequence[int]) -> Started:
        place = self._on_record.place()
        descriptors = [payload, *self._on_record.descriptors, *given]
        number = self._line.next_number()
        try:
            message, came = self._line.ask("spawn", number, place, descriptors=descriptors)
        except NoGuardError as error:
            self._on_record.unanswered(number, place)
            why = "has ended" if self._is_dead else "does not answer"
            text = f"the guard process, which starts it, {why}"
            raise OSError(error.errno, text, program) from error
        if message[0] == "started":
            _, _, pid, started = message
            self._started[pid] = started
            self._on_record.written(place, pid, started)
            if not came:  # there is no number left for it: who asked kills what was started
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
        """A request is answered when nobody waits for it any more: what was started, ends."""
        for pidfd in came:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        self._on_record.answered_late(message[1])

    def _without_cgroups(self, number: int) -> None:
        """Start without cgroups from now on. What is in one already is still killed by it."""
        why = f"{self._cgroup}: {os.strerror(number)}"
        self._tell(
            Notice(
                "cgroups-off",
                f"processes are started without cgroups from now on: {why}",
                reason=why,
            )
        )
        self._line.send("contain", "")
        self._uses_cgroup = False

    # --- killing --------------------------------------------------------------------------------

    def _kill(self, spared: Collection[int]) -> bool:
        try:
            message, _ = self._line.ask("end", self._line.next_number(), sorted(spared))
        except NoGuardError:
            return self._bury()
        if message[2] == 0:
            self._on_record.keep(spared)
        return bool(message[2])

    def _left(self, spared: Collection[int]) -> set[int]:
        """The pids of what is not dead yet."""
        kept = {self._own, *spared}
        found = tree.descendants(self.pid, kept)
        for each in self._orphans() if self._is_dead else ():
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
        return self._is_dead or self._line.unanswered >= _MOST_UNANSWERED

    def _replace(self) -> None:
        """Have another guard at once.

        Raises:
            OSError: what is left of the job does not die.
        """
        end = time.monotonic() + _LAST_LOOK
        while self._bury():
            if time.monotonic() > end:
                raise OSError(0, "what the guard process left behind cannot be killed")

    def _bury(self) -> bool:
        """SIGKILL all that the guard has left to us; whether there was anything. If not, there is
        another guard now."""
        if not self._dies():
            return True
        self._line.hear()
        self._exits |= self._line.exits
        is_left = self._kill_orphans()
        if self._cgroup is not None:
            cgroups.kill(self._cgroup)
            is_left |= cgroups.populated(self._cgroup)
        if is_left:
            time.sleep(_LOOK_AGAIN)
            return True
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self._line.close()
        watcher = self._line.watcher
        if self._line.broken is not None:
            self._tell(
                Notice(
                    "guard-lost",
                    f"the guard process failed: {self._line.broken}",
                    reason=str(self._line.broken),
                )
            )
        self._losses += 1
        if self._cgroup is not None:
            for path in Path(self._cgroup).glob("*/"):
                cgroups.remove(str(path))
        self._on_record.lost_guard()
        self._begin()
        if watcher is not None:  # the new guard has another one
            end_child(*watcher)
        return False

    def _dies(self) -> bool:
        """End the guard where it does not answer; False while it waits in the kernel, and lives."""
        lives = not self._is_dead
        if not self._end_is_told:
            self._end_is_told = True
            self._tell(
                Notice(
                    "guard-lost",
                    _UNHEARD.format(self.pid) if lives else _KILLED,
                    reason="unheard" if lives else "killed",
                )
            )
        if lives:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        return has_ended(self.pidfd, _TO_DIE)

    def _kill_orphans(self) -> bool:
        """SIGKILL what is the job's among our children, and reap it; whether there was any."""
        found = False
        for pid, seen in self._orphans():  # while a dead leader still tells of its session
            found = True
            for each in [(pid, seen), *tree.descendants(pid, {self._own})]:
                tree.send(*each, signal.SIGKILL)
            if (code := reaped(pid)) is not None and pid in self._started:
                self._exits[pid] = code
        return found

    def _orphans(self) -> list[tuple[int, tree.Stat]]:
        inside = cgroups.members(self._cgroup) if self._cgroup is not None else ()
        return self._others.of_the_job(inside, self._is_known)

    def _is_known(self, pid: int, seen: tree.Stat) -> bool:
        return self._on_record.proves(pid, seen) or self._started.get(pid) == seen.started

    def _say(self, *message: object) -> None:
        with suppress(NoGuardError):  # it is dead, and about to be replaced
            self._line.send(*message)


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
