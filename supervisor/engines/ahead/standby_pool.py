"""Keeps processes waiting to become the next workers: their imports done, perhaps the backend too.

There are as many as workers, and each may become any of them. At best that saves the next attempt
most of its start; at worst there is a cold start. So whatever goes wrong with one is told once, and
it is not tried again in the phase. They belong to no attempt: what kills an attempt's processes
leaves them alone, and what ends the supervisor ends them.
`protocol.standby` is the other end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from supervisor.config import placeholders
from supervisor.config.gpus import fits_twice
from supervisor.engines.handles import Process
from supervisor.engines.host_port import Host, MainLoop
from supervisor.engines.launch import Start
from supervisor.engines.python_program import becomes_python, bootstrapped, interpreter_part
from supervisor.host.notice import Notice, Tell
from supervisor.protocol import environment
from supervisor.protocol.removal import Place
from supervisor.protocol.shortening import beginning
from supervisor.protocol.standby import MAX_REASON, READY, UNUSABLE, Mode, StandbyOrders

Choice = Mode | None

_OF_THE_JOB = (
    environment.ADJUST,
    environment.EXECUTABLES,
    environment.JOB,
    environment.LINEAGE,
    environment.NUM_DEVICES,
    environment.PROTOCOL,
    environment.RANK,
    environment.WORLD_SIZE,
)
"""What of the worker protocol's environment is the same in every attempt."""

_OF_ONE_ATTEMPT = {
    "attempt": "have the program read SUPERVISE_ATTEMPT instead",
    "resume_step": "pass it as an argument of the program instead",
}
"""The placeholders that no two attempts have the same values for, and what to do without."""

_MAX_SHOWN = 500
"""Characters of why a standby is of no use."""
_IMPORTS_TAKE = 1 << 30
"""Bytes: jax, flax, optax and orbax hold 181 MB; other people's programs import more."""
_OF_NO_USE = ("stopped", "tracing-stop", "zombie", "dead", "gone")


def choose(
    configured: str | None,
    *,
    platform: str | None,
    knows_how: bool,
    held: int,
    available: int,
    gpu_share: float | None,
) -> Choice:
    """The kind of standby to have; None: none.

    `knows_how`: the program can prepare more than its imports. `held` and `available` are bytes:
    what the worker has, and what is left for others; `gpu_share` is the part of a GPU's memory that
    each process takes when it begins (None: as it needs it). A second backend never disturbs the
    first on the CPU, where nobody owns the device, and on a GPU whose memory is divided; where the
    first has taken most of it there is no room for a second; where each takes what it needs only a
    person can know.
    """
    is_full = platform == "gpu" and gpu_share is not None and not fits_twice(gpu_share)
    if configured is not None:
        return "ready" if configured == "ready" and knows_how and not is_full else "imports"
    is_divided = platform == "gpu" and gpu_share is not None and not is_full
    has_room = available >= max(2 * held, _IMPORTS_TAKE)
    if (platform == "cpu" or is_divided) and knows_how and has_room:
        return "ready"
    return "imports" if available >= _IMPORTS_TAKE else None


def fits(prepared: Start, wanted: Start) -> bool:
    """Whether a standby that was started like `prepared` can become `wanted`.

    The interpreter and the environment decide what its imports are like; a program's own
    arguments, what the worker protocol says and its place among the others are told to it.
    """
    size = interpreter_part(prepared.argv)
    same = prepared.argv[:size] == wanted.argv[:size]
    return same and _deciding(prepared.env) == _deciding(wanted.env)


def why_never(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Why nothing started with the config's `argv` and `env` can become the next attempt's worker,
    if so. An argument of the program may differ: it is told to a standby."""
    if becomes_python(argv):  # a standby is told its environment; this command would set it first
        return f"{argv[0]} starts Python: set variables in command.env instead"
    bootstrapped_argv, _ = bootstrapped(argv)
    size = interpreter_part(bootstrapped_argv)
    texts = {"the options of its interpreter": " ".join(bootstrapped_argv[:size]), **env}
    for where, text in texts.items():
        for name in placeholders.names(text):
            if name in _OF_ONE_ATTEMPT:
                return (
                    f"{where} in the config has {{{name}}}, which differs in each attempt, and may "
                    f"decide what the imports do: {_OF_ONE_ATTEMPT[name]}"
                )
    return None


def _foreign(env: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in env.items() if not k.startswith(environment.PREFIX)}


def _deciding(env: Mapping[str, str]) -> dict[str, str]:
    place = (*environment.PLACED, *environment.VISIBLE_DEVICES, environment.SHARES_TPU)
    return {k: v for k, v in _foreign(env).items() if k not in place}


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
        """`warn` a person of what is not as it should be, `tell` what is; `redact` takes the
        secrets out of what a standby says."""
        self._reactor = reactor
        self._machine = machine
        self._warn = warn
        self._tell = tell
        self._redact = redact
        self._standbys: list[_Standby] = []
        self._given_up: str | None = None
        self._ending: list[Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are of no attempt."""
        living = [standby.process for standby in self._standbys]
        return tuple(process.pid for process in [*living, *self._ending])

    @property
    def are_at_work(self) -> bool:
        """Whether one is still getting ready."""
        return not all(standby.is_ready for standby in self._standbys)

    def missing(self, phase: str, wanted: int) -> int:
        """How many are missing of the standbys that `phase` wants."""
        if any(standby.phase != phase for standby in self._standbys):
            self.discard()
        return 0 if self._given_up == phase else max(0, wanted - len(self._standbys))

    def prepare(
        self, phase: str, start: Start, mode: Mode, extra: Mapping[str, str], output: Path
    ) -> None:
        """Have one more that can become a worker like `start`; `extra` is environment for it."""
        env = {
            **{name: start.env[name] for name in _OF_THE_JOB if name in start.env},
            **_foreign(start.env),
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

    def hold(self) -> None:
        """Have those that are still getting ready take no CPU until `release`."""
        for standby in self._standbys:
            standby.hold()

    def release(self) -> None:
        """Let those that are held get ready."""
        for standby in self._standbys:
            standby.release()

    def take(self, phase: str, start: Start, descriptors: Mapping[str, int]) -> Taken | None:
        """Make a standby the worker `start`, with these descriptors (see `protocol.standby`).

        None: there is none that is ready and fits, and `start` must be started itself.
        """
        for standby in [one for one in self._standbys if one.is_ready and one.phase == phase]:
            standby.release()
            if (condition := self._machine.state(standby.process.pid)) in _OF_NO_USE:
                self._warn(
                    Notice(
                        "standby-lost",
                        f"the standby is {condition}: a cold start",
                        reason=condition,
                    )
                )
                self._discard(standby)
                continue
            if not fits(standby.start, start):
                self._tell(
                    Notice(
                        "standby-unfit", "the standby does not fit the next attempt: a cold start"
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
                        f"the standby is gone ({error}): a cold start",
                        reason=str(error),
                    )
                )
                self._end(standby.process)
                continue
            return Taken(standby.process, standby.mode)
        return None

    def give_up(self, phase: str, why: str) -> None:
        """Do without more of them for the rest of the phase."""
        if self._given_up != phase:
            self._warn(Notice("standby-failed", f"no standby: {why}", reason=why))
        self._given_up = phase

    def discard(self) -> None:
        """End them."""
        for standby in list(self._standbys):
            self._discard(standby)

    def _discard(self, standby: _Standby) -> None:
        self._standbys.remove(standby)
        self._reactor.forget(standby.descriptor)
        standby.close()
        self._end(standby.process)

    def _heard(self, standby: _Standby) -> None:
        trouble = standby.read()
        if trouble is not None:
            self._discard(standby)
            self.give_up(standby.phase, beginning(self._redact(trouble), _MAX_SHOWN))
        elif standby.is_ready:
            self._tell(
                Notice(
                    "standby-ready",
                    f"a standby is ready ({standby.mode}), pid {standby.process.pid}",
                    kind=standby.mode,
                    pid=standby.process.pid,
                )
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
class Taken:
    """A standby that has become a worker."""

    process: Process
    mode: Mode


class _Standby:
    """The process, and the socket that leads to it."""

    def __init__(
        self,
        machine: Host,
        phase: str,
        start: Start,
        mode: Mode,
        env: Mapping[str, str],
        output: Path,
    ) -> None:
        """Start it; what it says before it is a worker goes to the file `output`.

        Raises:
            OSError: it cannot be started.
        """
        self.phase = phase
        self.start = start
        self.mode: Mode = mode
        self.is_ready = False
        self._is_held = False
        self._output = output
        self._said = b""
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
        """Can be read when `read` has something to tell."""
        return self._connection.descriptor

    def read(self) -> str | None:
        """Hear it: None while all is well, else why it is of no use."""
        try:
            said = self._connection.receive(1 + 4 * MAX_REASON)
        except BlockingIOError:
            return None
        self._said += said
        if said and self._said == READY:
            self.is_ready = True
            return None
        if self._said.startswith(UNUSABLE):
            return self._said[1:].decode(errors="replace")
        return f"it ended by itself, see {self._output.name}"

    def hold(self) -> None:
        """Have it take no CPU, unless it is ready and takes none anyway."""
        if not self.is_ready:
            self._is_held = True
            self.process.signal(SIGSTOP)

    def release(self) -> None:
        """Let it run again; what somebody else has stopped stays so."""
        if self._is_held:
            self._is_held = False
            self.process.signal(SIGCONT)

    def become(self, start: Start, descriptors: Mapping[str, int]) -> None:
        """Make it the worker `start`.

        Raises:
            OSError: it is gone, or does not listen.
        """
        orders = StandbyOrders(start.argv, start.env, list(descriptors))
        self._connection.send_orders(orders, list(descriptors.values()))

    def close(self) -> None:
        """Let go of the socket: a standby that is not the worker by then ends."""
        self._connection.close()
