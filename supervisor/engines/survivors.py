"""Sends SIGTERM to a whole attempt: to its workers first, then to the survivors of each.

A shell that dies of SIGTERM leaves its trainer behind. So each process whose parent has ended gets
SIGTERM too, once. A shell below a shell dies first, and its trainer comes next. The data loaders of
a trainer still have their parent, so they live until it has saved. A shell with a trap for SIGTERM
does not die: the foreground child that it waits for gets SIGTERM together with it.

Any other wrapper that handles or ignores SIGTERM may pass it on, keep it to itself, or kill what it
has started. So the program below it gets SIGTERM in its place, and the wrapper once that has ended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from signal import SIGINT, SIGTERM

from supervisor.adapters.kernel.exit_info import ExitInfo
from supervisor.adapters.kernel.process_facts import SigtermReaction
from supervisor.core.allowance import Allowance
from supervisor.core.pipes import left_alone
from supervisor.diagnosis.failure import Survivor
from supervisor.engines.group import Member, WorkerGroup
from supervisor.engines.host_port import MainLoop
from supervisor.host import tree
from supervisor.host.notice import Notice, Tell
from supervisor.ports import Clock

_LOOK_AGAIN = 0.05
"""Seconds between two searches for survivors while the supervisor waits for them."""
_END_WITH_INPUT = 2.0
"""Seconds in which a process may end by itself once what fed it has ended: a `tee` has the last
lines of a trainer to copy."""
_MOST_NAMED = 20
_MOST_EXIT_INFOS = 100
"""Each needs a descriptor."""
_SHELL_WAITS = (
    "is a shell that ignores SIGTERM, or cannot run its trap for it before what it waits for has "
    "ended"
)
_IS_INTERRUPTED = (
    "has no handler for SIGTERM, but one for SIGINT: it gets SIGINT, as at a terminal "
    "(KeyboardInterrupt)"
)
_WRAPS = "is a wrapper: the program below it gets SIGTERM in its place"

_ABOVE_OTHERS = {
    SigtermReaction.DEFAULT: (
        "is a shell or wrapper without a handler for SIGTERM, so it ends at once: what it has "
        "started gets SIGTERM then",
        "ends-first",
    ),
    SigtermReaction.HANDLED: (
        "is a shell or wrapper that handles SIGTERM: what it has started gets SIGTERM only if it "
        "passes it on or ends",
        "passes-on",
    ),
}
"""What is said of a process with programs below it: it is not the one that saves."""
_UNASKED = (
    ". SIGTERM went to the wrapper, which neither ended nor, as it seems, passed it on: "
    "then they could not save. Start the program with `exec`, or let the wrapper pass SIGTERM on "
    "and wait"
)


class SurvivorWatch:
    """Finds the survivors of one group, and passes SIGTERM on to them."""

    def __init__(
        self,
        group: WorkerGroup,
        reactor: MainLoop,
        clock: Clock,
        redact: Callable[[str], str],
        tell: Tell,
        changed: Callable[[tuple[Survivor, ...]], None],
    ) -> None:
        """`changed` gets the survivors whenever they differ from the last ones; `tell` is for
        people."""
        self._group = group
        self._processes = group.machine
        self._reactor = reactor
        self._clock = clock
        self._redact = redact
        self._tell = tell
        self._changed = changed
        self._told: set[tuple[int, int]] = set()
        """The processes that got SIGTERM, as pairs of pid and start time."""
        self._wrapped: dict[int, list[tuple[int, tree.Stat]]] = {}
        """The programs that got SIGTERM in place of their wrapper, by its pid."""
        self._fed_at: dict[int, float] = {}
        """When a survivor was last seen to be fed by another, by pid."""
        self._allowance = Allowance()
        self._untold = 0
        self._shells: frozenset[int] = frozenset()
        """The workers and survivors that are shells."""
        self._found: frozenset[int] = frozenset()
        """The pids of all survivors."""
        self._below_shells: dict[int, frozenset[int]] = {}
        """What ran below each worker that was a shell when SIGTERM was sent, by its pid."""
        self._exit_infos: dict[int, ExitInfo] = {}
        """What tells how each of these has ended, by its pid."""
        self._unclosed: tuple[int, ...] = ()
        """What may still write of all these, or was cut off, when it was looked last."""
        self._known: tuple[Survivor, ...] | None = ()
        self._follows = False

    def look(self) -> tuple[Survivor, ...] | None:
        """Returns the survivors; None: not known, because the guard does not answer."""
        if not self._group.exits:
            return ()
        found = self._processes.orphans()
        if found is None:
            self._known = None
            return None
        if self._group.asked_to_stop:
            self._note_shells(pid for pid, _ in found)
            self._found |= {pid for pid, _ in found}
            self._note_unclosed()
            self._pass_on(found)
        named = [
            (pid, self._processes.command_line(pid, self._redact)) for pid, _ in found[:_MOST_NAMED]
        ]
        self._known = tuple(Survivor(pid, name) for pid, name in sorted(named))
        return self._known

    def terminate(self, *, interrupt: bool = False) -> None:
        """Send SIGTERM to the workers, and to the survivors once a worker has ended. For
        `interrupt` see `Engine.terminate`."""
        by_reaction: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        interrupted: list[int] = []
        deaf: list[tuple[int, tree.Stat]] = []
        self._note_shells(each.process.pid for each in self._group.workers)
        self._note_below_shells()
        for worker in self._group.workers:
            pid = worker.process.pid
            if programs := self._programs_below(pid):
                self._tell_reaction([worker.rank], _WRAPS, "wrapper")
                self._pass_on(programs, "runs the program")
                continue
            if foreground := self._processes.foreground_children(pid):
                self._tell_reaction([worker.rank], _SHELL_WAITS, "shell")
                deaf += foreground
            elif interrupt and self._processes.handles_only_sigint(pid):
                interrupted.append(worker.rank)
                worker.process.signal(SIGINT)
                continue
            else:
                by_reaction[self._reaction_in_words(pid)].append(worker.rank)
            worker.process.signal(SIGTERM)
        if interrupted:
            self._tell_reaction(interrupted, _IS_INTERRUPTED, "interrupt")
        for (what, reason), ranks in by_reaction.items():
            if what is not SigtermReaction.UNKNOWN:
                self._tell_reaction(ranks, what, reason)
        self._pass_on(deaf, "is waited for")
        self.follow()

    def tell_unasked(self) -> None:
        """Tell of the programs that are about to be killed although nobody may have told them to
        save: SIGTERM was left to the wrapper above them."""
        if not self._group.asked_to_stop:
            return
        workers = (each.process.pid for each in self._group.workers if each.exit is None)
        above = {*workers, *(pid for pid, _ in self._told)}
        found = {each for pid in above for each in self._processes.unasked_below(pid)}
        unasked = sorted(
            pid for pid, seen in found if pid not in above and (pid, seen.started) not in self._told
        )
        if not unasked:
            return
        named = [
            f"pid {pid} ({self._processes.command_line(pid, self._redact)})"
            for pid in unasked[:_MOST_NAMED]
        ]
        text = f"killed with the wrapper above: {', '.join(named)}{_UNASKED}"
        self._tell(Notice("program-not-asked", text, pids=unasked[:_MOST_NAMED]))

    def close(self) -> None:
        """Note how the processes have ended: none is left."""
        self._note_unclosed()
        for each in self._exit_infos.values():
            each.close()
        self._exit_infos.clear()

    def have_closed_all(self) -> bool:
        """Whether all that the attempt has written is closed: each worker has exited with code 0.
        Asked after `close`.

        A shell writes no steps, and its exit code tells nothing of its programs. So where a worker
        was one when SIGTERM was sent, what ran below it must have exited with code 0.
        """
        below = self._below_shells.values()
        return (not below or (all(below) and not self._unclosed)) and all(
            each.exit is not None and (each.exit.clean or self._was_shell(each))
            for each in self._group.workers
        )

    def writers(self) -> tuple[int, ...]:
        """Returns the pids of the workers that have not exited with code 0, and in place of shells,
        once SIGTERM was sent, those of what ran below them; none if that is not known. Safe in any
        thread."""
        shells = self._below_shells
        if not all(shells.values()):
            return ()
        return self._unclosed + tuple(
            each.process.pid
            for each in (*self._group.workers,)
            if each.process.pid not in shells and (each.exit is None or not each.exit.clean)
        )

    def _was_shell(self, worker: Member) -> bool:
        """Whether the worker was a shell that our SIGTERM has ended."""
        by_sigterm = worker.exit is not None and worker.exit.signal == "SIGTERM"
        return by_sigterm and worker.process.pid in self._below_shells

    def _has_closed_all(self, pid: int) -> bool:
        """Whether the process is known to have closed all when it ended."""
        code = self._processes.orphan_exit(pid) if pid in self._found else None
        if code is None and pid in self._exit_infos:
            code = self._exit_infos[pid].code()
        return code == 0 or (code == -SIGTERM and pid in self._shells)

    def _note_below_shells(self) -> None:
        """Note what runs below the workers that are shells, before the first SIGTERM."""
        if self._below_shells:
            return
        workers = (each.process.pid for each in self._group.workers if each.exit is None)
        run = {pid: self._processes.run_by_shell(pid) for pid in workers if pid in self._shells}
        for pid, seen in list(chain(*run.values()))[:_MOST_EXIT_INFOS]:
            if (info := self._processes.exit_info(pid, seen)) is not None:
                self._exit_infos[pid] = info
        below = {shell: frozenset(pid for pid, _ in found) for shell, found in run.items()}
        self._unclosed = tuple(self._found.union(*below.values()))
        self._below_shells = below  # last: other threads must not see it without the line above

    def _note_unclosed(self) -> None:
        """Note what of the survivors, and of what ran below shells, has not closed all. A process
        of which nobody knows how it ended stays here: a shell may have killed it."""
        known = self._found.union(*self._below_shells.values())
        self._unclosed = tuple(pid for pid in known if not self._has_closed_all(pid))

    def _reaction_in_words(self, pid: int) -> tuple[str, str]:
        """Returns what SIGTERM does to the process, for people and as the reason in the event."""
        reaction = self._processes.sigterm_reaction(pid)
        if reaction in _ABOVE_OTHERS and self._is_above_others(pid):
            return _ABOVE_OTHERS[reaction]
        return reaction, reaction.name.lower()

    def _is_above_others(self, pid: int) -> bool:
        """Whether the process is a shell or wrapper, below which the programs run."""
        if self._processes.is_shell(pid) or self._processes.unasked_below(pid):
            return True
        return any(program != pid for program, _ in self._processes.python_programs(pid))

    def _note_shells(self, pids: Iterable[int]) -> None:
        self._shells |= set(filter(self._processes.is_shell, pids))

    def _programs_below(self, pid: int) -> list[tuple[int, tree.Stat]]:
        """Returns the programs that get SIGTERM in place of the process `pid`, and notes them; none
        if it is no wrapper, or ends on SIGTERM by itself."""
        reaction = self._processes.sigterm_reaction(pid)
        if not (reaction.may_save or reaction is SigtermReaction.IGNORED):
            return []
        if programs := self._processes.programs_below(pid):
            self._wrapped[pid] = programs
        return programs

    def _waits_for_its_program(self, pid: int) -> bool:
        """Whether a program that got SIGTERM in place of the process `pid` still lives."""
        return any(self._processes.lives(program) for program, _ in self._wrapped.get(pid, ()))

    def _end_wrappers(self) -> bool:
        """Send SIGTERM to the workers that are wrappers whose programs have ended; returns whether
        any is left whose program has not."""
        for worker in self._wrappers():
            if not self._waits_for_its_program(worker.process.pid):
                del self._wrapped[worker.process.pid]
                worker.process.signal(SIGTERM)
        return bool(self._wrappers())

    def _wrappers(self) -> list[Member]:
        """Returns the workers that have had no SIGTERM because their program got it."""
        return [
            worker
            for worker in self._group.workers
            if worker.exit is None and worker.process.pid in self._wrapped
        ]

    def _tell_reaction(self, ranks: list[int], what: str, reason: str) -> None:
        text = f"{_ranks(ranks)} {what}"
        self._tell(Notice("sigterm-reaction", text, ranks=ranks, reason=reason))

    def follow(self) -> None:
        """Search for survivors periodically, until there are none or the group is killed."""
        if not self._follows:
            self._follows = True
            self._look_again()

    def _look_again(self) -> None:
        before = self._known
        if self._group.num_ended_before_kill is not None:
            self._follows = False
            return
        found = self.look()
        if found is not None and found != before:
            self._changed(found)
        self._follows = self._end_wrappers() or found != ()
        if self._follows:
            self._reactor.call_later(_LOOK_AGAIN, self._look_again)

    def _pass_on(self, found: list[tuple[int, tree.Stat]], why: str = "lives on") -> None:
        """Send SIGTERM to those that have not had it, except to those that end with their input."""
        now = self._clock.now()
        handling = {pid for pid, _ in found if self._processes.sigterm_reaction(pid).may_save}
        waiting = left_alone({pid: self._processes.pipes(pid) for pid, _ in found}, handling)
        self._fed_at.update(dict.fromkeys(waiting, now))
        for pid, seen in found:
            ends_with_input = now - self._fed_at.get(pid, -math.inf) < _END_WITH_INPUT
            if ends_with_input or (pid, seen.started) in self._told:
                continue
            if self._waits_for_its_program(pid):
                continue
            if pid not in self._wrapped and (programs := self._programs_below(pid)):
                self._pass_on(programs, "runs the program")
                continue
            self._told.add((pid, seen.started))
            foreground, name = (
                self._processes.foreground_children(pid),
                self._processes.command_line(pid, self._redact),
            )
            reaction = self._processes.sigterm_reaction(pid)
            told = (_SHELL_WAITS, "shell") if foreground else (reaction, reaction.name.lower())
            if self._processes.send(pid, seen, SIGTERM):
                self._tell_sent(pid, f"({name}) {why}", *told)
                self._pass_on(foreground, "is waited for")

    def _tell_sent(self, pid: int, who: str, what: str, reason: str) -> None:
        """Tell of a process that got SIGTERM; limited, because processes may follow each other for
        ever."""
        allowed, self._allowance = self._allowance.take(self._clock.now())
        if not allowed:
            self._untold += 1
            if self._untold == 1:
                text = "more processes live on, and get SIGTERM too: not each is told"
                self._tell(Notice("process-lives-on", text, pid=None, reason=None, number=1))
            return
        more, self._untold = self._untold, 0
        before = f", as were {more} before it that were not told" if more else ""
        text = f"pid {pid} {who}, and was sent SIGTERM too{before}: it {what}"
        self._tell(Notice("process-lives-on", text, pid=pid, reason=reason, number=1 + more))


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"each of the {len(ranks)} ranks {ranks[0]} to {ranks[-1]}"
