"""Keeps standbys: processes that wait to become the next workers.

A standby has done its imports, and perhaps initialised the backend. There are as many standbys as
workers, and each can become any worker. At best they save the next attempt most of its start; at
worst it starts cold. So if a standby cannot be started or reports a problem, people are told once,
and the phase gets no more standbys.

Standbys belong to no attempt: they live on when an attempt's processes are killed, and end with the
supervisor. `protocol.standby` is the code that runs in a standby.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from supervisor.config import placeholders
from supervisor.config.gpus import two_processes_fit
from supervisor.engines.handles import Process
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.launch import Start
from supervisor.engines.python_program import (
    bootstrapped,
    from_interpreter,
    interpreter_part,
    sets_variables,
    shell_before,
)
from supervisor.engines.python_script import with_interpreter
from supervisor.host.notice import Notice, Tell
from supervisor.protocol import environment
from supervisor.protocol.removal import Place
from supervisor.protocol.shortening import keep_beginning
from supervisor.protocol.standby import (
    END,
    MAX_REASON,
    NOTE,
    READY,
    UNUSABLE,
    Mode,
    StandbyOrders,
)

_VARIABLES_GIVEN_EARLY = (
    environment.ADJUST,
    environment.EXECUTABLES,
    environment.JOB,
    environment.LINEAGE,
    environment.NUM_DEVICES,
    environment.PROTOCOL,
    environment.RANK,
    environment.TOKENS,
    environment.WORLD_SIZE,
)
"""The variables of the worker protocol that a standby gets when it is started. Most often they are
the same in the next attempt. The worker's own values come later, with its orders."""

_CHANGING_PLACEHOLDERS = {
    "attempt": "have the program read SUPERVISE_ATTEMPT instead",
    "resume_step": "pass it as an argument of the program instead",
}
"""The placeholders whose values change from attempt to attempt, and what to use instead."""

_MAX_SHOWN = 500
"""Most characters of a standby's problem that people are shown."""
IMPORTS_NEED = 1 << 30
"""Bytes of memory that must be free for a standby with imports. jax, flax, optax and orbax take
181 MB; other programs import more."""
_UNUSABLE_STATES = ("stopped", "tracing-stop", "zombie", "dead", "gone")
"""The states (see `Processes.state`) in which a standby cannot become a worker."""


def choose(
    configured: str | None,
    *,
    platform: str | None,
    can_warm_up: bool,
    worker_memory: int,
    free_memory: int,
    gpu_share: float | None,
) -> Mode | None:
    """Returns the kind of standby to keep; None: no standby.

    Args:
        configured: the kind that the config asks for; None: the kind that suits.
        platform: the platform of the devices; None: not known.
        can_warm_up: whether the program can prepare more than its imports.
        worker_memory: bytes of memory that a worker holds.
        free_memory: bytes of memory that are free for this standby.
        gpu_share: the part of a GPU's memory that each process takes at its start; None: it takes
            memory as it needs it.

    A ready standby has a backend of its own beside the worker's. On the CPU this never disturbs the
    worker, because no process owns the device; nor on a GPU if each process takes a small enough
    share of its memory. If the worker has taken most of the GPU's memory, there is no room for a
    second backend, even if the config asks for one. If each process takes memory as it needs it, we
    cannot know whether there is room: only the config can ask for a ready standby.
    """
    is_full = platform == "gpu" and gpu_share is not None and not two_processes_fit(gpu_share)
    if configured is not None:
        return "ready" if configured == "ready" and can_warm_up and not is_full else "imports"
    is_divided = platform == "gpu" and gpu_share is not None and not is_full
    has_room = free_memory >= max(2 * worker_memory, IMPORTS_NEED)
    if (platform == "cpu" or is_divided) and can_warm_up and has_room:
        return "ready"
    return "imports" if free_memory >= IMPORTS_NEED else None


def fits(prepared: Start, wanted: Start) -> bool:
    """True if a standby that was started like `prepared` can become the worker `wanted`.

    The interpreter, its options and the environment must be the same, because they decide what the
    imports do. The program's arguments, the variables of the worker protocol, and those about
    devices and other workers may differ: a standby gets them with its orders.
    """
    size = interpreter_part(prepared.argv)
    same = prepared.argv[:size] == wanted.argv[:size]
    return same and _variables_that_must_match(prepared.env) == _variables_that_must_match(
        wanted.env
    )


def why_no_standby(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Returns why no standby of a program with the config's `argv` and `env` can become the next
    attempt's worker; None: a standby can.

    Arguments of the program may change between attempts: a standby gets them with its orders.
    """
    if (setter := sets_variables(argv)) is not None:  # too early: a standby has another environment
        return f"{setter} sets variables for Python: set them in command.env instead"
    if (shell := shell_before(argv)) is not None:
        return f"{shell} may set variables for Python: run it without {shell}"
    bootstrapped_argv, _ = bootstrapped(with_interpreter(argv))
    size = interpreter_part(bootstrapped_argv)
    texts = {"the options of its interpreter": " ".join(bootstrapped_argv[:size]), **env}
    for where, text in texts.items():
        for name in placeholders.names(text):
            if name in _CHANGING_PLACEHOLDERS:
                return (
                    f"{where} in the config has {{{name}}}, which differs in each attempt, and may "
                    f"decide what the imports do: {_CHANGING_PLACEHOLDERS[name]}"
                )
    return None


def _variables_of_the_program(env: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in env.items() if not k.startswith(environment.PREFIX)}


def _variables_that_must_match(env: Mapping[str, str]) -> dict[str, str]:
    place = (*environment.ALL_TOPOLOGY, *environment.VISIBLE_DEVICES, environment.SHARES_TPU)
    return {k: v for k, v in _variables_of_the_program(env).items() if k not in place}


class StandbyPool:
    """The standbys of a job."""

    def __init__(
        self,
        reactor: MainLoop,
        machine: Host,
        warn: Tell,
        tell: Tell,
        redact: Callable[[str], str],
    ) -> None:
        """`warn` tells people of problems, `tell` of normal things; `redact` removes secrets from
        what a standby reports."""
        self._reactor = reactor
        self._machine = machine
        self._warn = warn
        self._tell = tell
        self._redact = redact
        self._standbys: list[_Standby] = []
        self._given_up: str | None = None
        self._noted: set[tuple[str, str]] = set()
        """The notes that people were told, each with its phase."""
        self._ending: list[Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the standbys, also of those that were killed and have not ended yet."""
        living = [standby.process for standby in self._standbys]
        return tuple(process.pid for process in [*living, *self._ending])

    @property
    def are_at_work(self) -> bool:
        """True if a standby is still getting ready."""
        return not all(standby.is_ready for standby in self._standbys)

    @property
    def has_ready(self) -> bool:
        """True if a standby is ready."""
        return any(standby.is_ready for standby in self._standbys)

    def missing(self, phase: str, wanted: int) -> int:
        """Returns how many of the `wanted` standbys for `phase` are missing; 0 if the phase gets no
        more. Ends the standbys of another phase."""
        if any(standby.phase != phase for standby in self._standbys):
            self.discard()
        return 0 if self._given_up == phase else max(0, wanted - len(self._standbys))

    def prepare(
        self, phase: str, start: Start, mode: Mode, extra: Mapping[str, str], output: Path
    ) -> None:
        """Start one more standby, which can become a worker like `start`.

        `extra` are further variables for it. Its output goes to the file `output`, until it is a
        worker.
        """
        env = {
            **{name: start.env[name] for name in _VARIABLES_GIVEN_EARLY if name in start.env},
            **_variables_of_the_program(start.env),
            **extra,
        }
        try:
            if not self._standbys:
                self._machine.remove(Place.OUTPUT, output, below=output.parents[2])
            standby = _Standby(self._machine, phase, start, mode, env, output)
        except OSError as error:
            self.give_up(phase, str(error))
            return
        self._standbys.append(standby)
        self._reactor.watch(standby.descriptor, lambda: self._heard(standby))

    def pause(self) -> None:
        """Stop the standbys that are still getting ready, until `resume`."""
        for standby in self._standbys:
            standby.pause()

    def resume(self) -> None:
        """Let the paused standbys run again."""
        for standby in self._standbys:
            standby.resume()

    def take(self, phase: str, start: Start, descriptors: Mapping[str, int]) -> UsedStandby | None:
        """Turn a standby into the worker `start`, with these descriptors (see `protocol.standby`).

        Returns the worker; None: no standby is ready and fits, so the worker needs a cold start.
        """
        for standby in [one for one in self._standbys if one.is_ready and one.phase == phase]:
            standby.resume()
            if (condition := self._machine.state(standby.process.pid)) in _UNUSABLE_STATES:
                self._warn(
                    Notice(
                        "standby-lost",
                        f"the standby is {condition} and cannot be used; the worker starts cold",
                        reason=condition,
                    )
                )
                self._discard(standby)
                continue
            if not fits(standby.start, start):
                self._tell(
                    Notice(
                        "standby-unfit",
                        "the standby does not fit the next attempt; the worker starts cold",
                    )
                )
                self.discard()
                break
            self._reactor.forget(standby.descriptor)
            self._standbys.remove(standby)
            try:
                standby.become(start, descriptors)
            except OSError as error:
                self._warn(
                    Notice(
                        "standby-lost",
                        f"the standby has ended ({error}); the worker starts cold",
                        reason=str(error),
                    )
                )
                self._end(standby.process)
                continue
            return UsedStandby(standby.process, standby.mode)
        return None

    def give_up(self, phase: str, why: str) -> None:
        """Start no more standbys for the rest of the phase, and tell people `why`, once."""
        if self._given_up != phase:
            self._warn(
                Notice("standby-failed", f"no standby is prepared in this phase: {why}", reason=why)
            )
        self._given_up = phase

    def renew(self) -> None:
        """Kill all standbys; a phase that gets no more of them gets new ones all the same."""
        self.discard()
        self._given_up = None

    def discard(self) -> None:
        """Kill all standbys."""
        for standby in list(self._standbys):
            self._discard(standby)

    def _discard(self, standby: _Standby) -> None:
        self._standbys.remove(standby)
        self._reactor.forget(standby.descriptor)
        standby.close()
        self._end(standby.process)

    def _heard(self, standby: _Standby) -> None:
        trouble = standby.read()
        for note in standby.take_notes():
            self._tell_note(standby.phase, keep_beginning(self._redact(note), _MAX_SHOWN))
        if trouble is not None:
            self._discard(standby)
            self.give_up(standby.phase, keep_beginning(self._redact(trouble), _MAX_SHOWN))
        elif standby.is_ready:
            self._tell(
                Notice(
                    "standby-ready",
                    f"a standby is ready ({standby.mode}), pid {standby.process.pid}",
                    kind=standby.mode,
                    pid=standby.process.pid,
                )
            )

    def _tell_note(self, phase: str, note: str) -> None:
        """Tell people what a standby does without, once in a phase."""
        if (phase, note) not in self._noted:
            self._noted.add((phase, note))
            self._tell(
                Notice("standby-limited", f"the standby does without a part: {note}", reason=note)
            )

    def _end(self, process: Process) -> None:
        process.signal(SIGKILL)
        self._ending.append(process)

        def ended() -> None:
            if process.poll(rank=0) is not None:
                self._reactor.forget(process.pidfd)
                self._ending.remove(process)
                process.close()

        self._reactor.watch(process.pidfd, ended)


@dataclass(frozen=True, slots=True)
class UsedStandby:
    """A standby that has become a worker."""

    process: Process
    mode: Mode


class _Standby:
    """The process of a standby, and our end of its socket."""

    def __init__(
        self,
        machine: Host,
        phase: str,
        start: Start,
        mode: Mode,
        env: Mapping[str, str],
        output: Path,
    ) -> None:
        """Start the process. Its output goes to the file `output`, until it is a worker.

        Raises:
            OSError: it cannot be started.
        """
        self.phase = phase
        self.start = start
        self.mode: Mode = mode
        self.is_ready = False
        self._is_paused = False
        self._output = output
        self._said = b""
        self._notes: list[str] = []
        self._connection = machine.connection()
        theirs = self._connection.theirs
        try:
            with machine.opened(output) as file:
                self.process = machine.start(
                    start.argv,
                    env={**env, environment.STANDBY: f"{theirs}:{mode}"},
                    output=file.fileno(),
                    inherit=(theirs,),
                )
        except OSError:
            self._connection.close()
            raise
        finally:
            self._connection.close_theirs()

    @property
    def descriptor(self) -> int:
        """Becomes readable when `read` has something to take."""
        return self._connection.descriptor

    def read(self) -> str | None:
        """Read what the standby reports. Returns why it cannot be used; None: it can."""
        try:
            said = self._connection.receive(1 + 4 * MAX_REASON)
        except BlockingIOError:
            return None
        self._said += said
        while self._said.startswith(NOTE) and END in self._said:
            note, _, self._said = self._said.partition(END)
            self._notes.append(note[1:].decode(errors="replace"))
        if said and self._said == READY:
            self.is_ready = True
            return None
        if said and (not self._said or self._said.startswith(NOTE)):
            return None
        if self._said.startswith(UNUSABLE):
            return self._said[1:].decode(errors="replace")
        return f"it ended by itself, see {self._output.name}"

    def take_notes(self) -> list[str]:
        """Returns what it does without, as far as that was read and not taken yet."""
        notes, self._notes = self._notes, []
        return notes

    def pause(self) -> None:
        """Stop the process, unless it is ready: then it only waits and uses no CPU."""
        if not self.is_ready:
            self._is_paused = True
            self.process.signal(SIGSTOP)

    def resume(self) -> None:
        """Let the process run again if `pause` stopped it; not if somebody else did."""
        if self._is_paused:
            self._is_paused = False
            self.process.signal(SIGCONT)

    def become(self, start: Start, descriptors: Mapping[str, int]) -> None:
        """Make this process the worker `start`, and close the socket.

        Raises:
            OSError: the process has ended, or does not read.
        """
        orders = StandbyOrders(from_interpreter(start.argv), start.env, list(descriptors))
        self._connection.send_orders(orders, list(descriptors.values()))

    def close(self) -> None:
        """Close our end of the socket. A standby that is not a worker yet then ends."""
        self._connection.close()
