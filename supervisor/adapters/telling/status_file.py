"""Writes status.json: the state of the job in a small file, for readers outside of its process.

The journal has all that must last, but not what changes with every step. A reader takes that from
here: `supervise status`, `supervise serve`, and `supervise provision` on another machine. The file
is written after each decision, commit and change of the status, and again after each `period`: its
time tells a reader that the supervisor's main loop still turns.

A thread writes the file, because a disk may be slow or hang and the main loop must not wait for it.
It takes the newest content only.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from math import isfinite

from supervisor.core.events import WorkerReported
from supervisor.core.policy import RestartPolicy
from supervisor.core.state import JobState
from supervisor.files.live_status import MAX_SIZE, STATUS, LiveProgress, LiveStatus, is_ours
from supervisor.host.identity import Identity
from supervisor.host.invocation import Invocation
from supervisor.host.notice import Tell
from supervisor.host.outlet import FLUSH_PATIENCE
from supervisor.host.unwritable import UnwritableOnce
from supervisor.narrative.pace import PaceWatch
from supervisor.narrative.standing import standing
from supervisor.ports import CallLater, Clock, Storage, Transition
from supervisor.protocol.messages import SavesOnRequestMessage

ON_DISK, IN_BUCKET = 3.0, 45.0
"""Seconds between two writes of the file. With the time that a write takes, the file is at most 5 s
old on a disk; with the pause and the time of a copy, at most 60 s in a bucket."""


class StatusFile:
    """Replaces status.json as a whole; see `ports.Observer`."""

    def __init__(
        self,
        storage: Storage,
        policy: RestartPolicy,
        clock: Clock,
        period: float,
        on_error: Tell,
        call_later: CallLater,
        invocation: Invocation | None = None,
        unseen: Callable[[], str | None] = lambda: None,
        checkpoints: Callable[[JobState], str | None] = lambda state: None,
    ) -> None:
        """`invocation` is the command that started this supervisor, `unseen` returns
        `LiveStatus.checkpoints_unseen`, and `checkpoints` returns `LiveStatus.checkpoints`, all
        without secrets."""
        self._policy = policy
        self._clock = clock
        self._progress = PaceWatch()
        self._period = period
        self._call_later = call_later
        self._supervisor = Identity.of_this_process().to_json()
        self._invocation = invocation
        self._unseen = unseen
        self._checkpoints = checkpoints
        self._state = JobState()
        self._listens_in: int | None = None
        """The attempt whose program has told that it saves on request; None: none has."""
        self._writer = _NewestWriter(storage, on_error)

    def restore(self, transitions: Iterable[Transition]) -> None:
        """Take in what earlier supervisors saw."""
        self._progress.restore(transitions)

    def observe(self, transition: Transition) -> None:
        """See `ports.Observer`."""
        self._progress.observe(transition)
        before, self._state = transition.before, transition.after
        is_news = False
        match transition.event:
            case WorkerReported(attempt=attempt, message=SavesOnRequestMessage()):
                self._listens_in, is_news = attempt, True
        if not self._writer.has_started:
            self._writer.start()
            if self._writer.has_started:
                self._tick()
        elif is_news or transition.decisions or _lasting(transition.after) != _lasting(before):
            self._write()

    def close(self) -> None:
        """Write what is left, waiting for some seconds at most."""
        if self._writer.has_started:
            self._writer.close()

    def _tick(self) -> None:
        self._write()
        self._call_later(self._period, self._tick)

    def _write(self) -> None:
        now = standing(self._state, self._policy)
        max_steps = self._policy.phases[self._state.phase].success.step
        progress = self._progress.pace().at(self._clock.now(), max_steps)
        is_nan = progress.loss is not None and not isfinite(progress.loss)
        status = LiveStatus(
            job=now.job,
            status=now.status,
            exit_code=now.exit_code,
            phase=now.phase,
            attempt=now.attempt,
            stage=now.stage,
            num_devices=now.num_devices,
            step=now.highest_committed,
            committed_at=self._progress.committed_at,
            max_steps=max_steps,
            saves_on_request=self._listens_in == now.attempt,
            command=None if self._invocation is None else self._invocation.command,
            directory=None if self._invocation is None else self._invocation.directory,
            checkpoints=self._checkpoints(self._state),
            checkpoints_unseen=self._unseen(),
            live=LiveProgress(**asdict(progress), loss_not_finite=is_nan),
            supervisor=self._supervisor,
            period=self._period,
            time=self._clock.wall(),
        )
        self._writer.write(status.encoded())


def _lasting(state: JobState) -> tuple[object, ...]:
    """Returns what readers want to know at once if it changes."""
    return state.status, state.newest


class _NewestWriter:
    """A thread that writes status.json: of several contents that wait, only the newest."""

    def __init__(self, storage: Storage, on_error: Tell) -> None:
        self._storage = storage
        self._file = UnwritableOnce(STATUS, "cannot be written: {}", on_error)
        self._newest = b""
        self._written = b""
        self._is_closing = False
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=STATUS, daemon=True)

    @property
    def has_started(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Start the thread; where none can be started, that is told, and the next call tries
        again."""
        self._file.attempt(self._start)

    def _start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # pids.max, RLIMIT_NPROC, RLIMIT_AS
            raise OSError(errno.EAGAIN, str(error)) from error

    def write(self, data: bytes) -> None:
        """Write `data` soon; never waits."""
        self._newest = data
        self._wanted.set()

    def close(self) -> None:
        """Write what waits, and end the thread; waits for some seconds at most."""
        self._is_closing = True
        self._wanted.set()
        self._thread.join(FLUSH_PATIENCE)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wanted.wait()
            self._wanted.clear()
            is_last = self._is_closing  # read first: what was written before it is written out
            if self._newest != self._written:
                self._file.attempt(self._replace)

    def _replace(self) -> None:
        data = self._newest
        try:
            before = self._storage.read(STATUS, MAX_SIZE)
        except FileNotFoundError:
            pass
        else:
            if not is_ours(before):
                raise FileExistsError(errno.EEXIST, "it is there, and no supervisor wrote it")
        self._storage.replace(STATUS, data)
        self._written = data
