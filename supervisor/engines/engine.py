"""What an engine is to the rest of the program: where worker groups run, and how they are reached.

`job.py` chooses an implementation; nobody else names one. `tests/engines/test_contract.py` tries
what is said here on every engine.

**How it speaks.** By events alone (`supervisor.core.events`), posted to the main loop. A method
returns soon: what takes longer than a moment is done by timers, descriptors or threads. Events may
get lost on the way to the core, so the core asks again, and an engine repeats itself:

* `WorkersObserved` has *all* exits of the attempt so far, in the order in which they were seen. It
  is posted when a worker ends, and every few seconds anyway.
* A question that is asked again is answered again.
* Every event of a group has its `attempt`, every `DevicesProbed` the number of its question: the
  core drops those that are late.

**What it tells while an attempt runs.** `WorkerReported` for each message of a worker, before the
`WorkersObserved` that tells of the worker's end; `CheckpointCommitted` for each new newest step of
the phase; `SaveMeasured` for how long a save took (a drain is planned by it); `SilenceExcused` when
what workers said is read late (else they are taken for hung); `RungCompileFailed` for a rung that
the program can never be compiled for; `Noticed` for what a person should know.

**What it must never do.** Decide: it ends no worker that `kill` was not asked for, restarts nothing
and waits for no budget. (One exception: a rank that has left a failure record and hangs in its exit
handlers is killed, because its peers wait for it.) Tell that an attempt is gone while a process of
it lives: the next one would write to the same checkpoints. Have two attempts at once. Show a
secret: texts go through the redaction first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from supervisor.config.plan import PhasePlan
from supervisor.diagnosis.failure import Survivor, WorkerExit
from supervisor.engines.launch import Launch


class Engine(Protocol):
    """Starts, signals and kills the one worker group of a job. It never decides.

    All methods but `pass_on_sigterm` are called in the main loop, and return soon.
    """

    @property
    def directory(self) -> Path | None:
        """The directory that the running attempt writes to: nothing in it is deleted to make room.
        None before the first start, and once the attempt is told to be gone."""
        ...

    def start(self, launch: Launch) -> None:
        """Start the attempt's workers, each of its `world_size` ranks with what `launch` says.

        Answered once: by `WorkersStarted` with a pid for each rank, when all of them run, or by
        `LaunchFailed`, when nothing that was started lives any more. Nothing of an earlier attempt
        lives when this is called.
        """
        ...

    def probe(self, plan: PhasePlan, number: int, units: tuple[str, ...] | None) -> None:
        """Probe these devices or hosts (None: all of the phase). An attempt may run on others.

        Answered once by `DevicesProbed` with this `number`: which units work, which do not and why,
        or the problem that prevented an answer. A newer probe, or `kill`, cancels one that is not
        answered yet: it is never answered.
        """
        ...

    def dump_stacks(self, attempt: int) -> None:
        """Have the attempt's workers write their stacks, by every means available.

        This must not end a worker: one that does not handle the signal does not get it. Does
        nothing if another attempt runs, or none. Not answered; people are told.
        """
        ...

    def terminate(self, attempt: int) -> None:
        """Ask the attempt's workers and their survivors to save and exit.

        The core decides how long they may take: they are not killed here. Does nothing if another
        attempt runs, or none. The only answer is `WorkersObserved` with their exits.
        """
        ...

    def kill(
        self, launch: Launch, exits: tuple[WorkerExit, ...], late: tuple[Survivor, ...] = ()
    ) -> None:
        """Kill all that is left of the attempt, and judge how it ended.

        Answered by `WorkersGone` once no process of it lives: with the `Failure` (None: it
        succeeded), its last reports, and the newest committed step, looked for after that. The core
        asks again every 10 s until the answer has come. A repetition during a kill starts no second
        one; a repetition after it is answered again.

        The attempt may be one that an earlier supervisor started: then `exits` is all that is known
        of its end, and the files in its directory are all the evidence. If a process of `late`
        still runs, the attempt has failed.

        Raises:
            UnkillableError: a process does not die.
        """
        ...

    def pass_on_sigterm(self) -> None:
        """Send SIGTERM to the workers while the main loop hangs, and nothing else. Safe in any
        thread."""
        ...

    def name_holders(self) -> None:
        """Tell people who or what keeps an accelerator busy, by `Noticed` alone."""
        ...
