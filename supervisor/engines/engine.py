"""The interface of an engine: it runs the worker groups, and is the only way to reach them.

`engine_choice.py` chooses an implementation. The agent on each host of a fleet has the local one,
and nobody else names any. `tests/engines/test_contract.py` checks this contract on every engine.

**How it answers.** By events alone (`supervisor.core.events`), posted to the main loop. A method
returns soon; timers, descriptors or threads do what takes longer. Events may get lost on the way to
the core, so the core asks again, and an engine repeats itself:

* `WorkersObserved` has *all* exits of the attempt so far, in the order in which they were seen. It
  is posted when a worker ends, and every few seconds anyway.
* A question that is asked again is answered again.
* Every event of a group has its `attempt`, every `DevicesProbed` the number of its question: the
  core drops those that are late.

**What it posts before the workers start.** `CheckpointSetAside` for each damaged checkpoint that it
moved aside, where the plan says to verify them.

**What it posts while an attempt runs.** `WorkerReported` for each message of a worker, before the
`WorkersObserved` with the worker's end; `CheckpointCommitted` for each new newest step of the
phase, and before it `CheckpointsFound` if the engine had to find the directory of these steps;
`SaveMeasured` for how long a save took (the core plans a drain by it); `SilenceExcused` when
workers' messages are read late (otherwise the workers would count as hung); `WorkersIdle` while
they do nothing; `LossesNotFinite` for each reported loss that is NaN or Inf; `RungCompileFailed`
for a rung that the program can never be compiled for; `DeviceFoundWrong` for one that the workers
found to compute wrongly; `StragglerFound` for a rank that keeps the others waiting; `LossSpiked`
for a loss that stands out; `HostsLeaving` if some of its hosts are about to go, and
`StopRequested` if all are; `Noticed` for what people should know.

**What it must never do.**

* Decide. It ends no running worker unless `kill` asks for it, restarts nothing and waits for no
  budget. (One exception: it kills a rank that has left a failure record and hangs in its exit
  handlers, because the other ranks wait for it.)
* Say that an attempt is gone while a process of it lives: the next attempt would write to the same
  checkpoints.
* Have two attempts at once.
* Show a secret: every text is redacted first.

**What it is not asked.** To kill when the lease is lost, to stop workers when the clock jumps, or
to end with its supervisor. The guard does all that, with the processes of this host only. So an
engine with workers on other hosts needs more than this interface: see CONTRIBUTING.md, "An engine".
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
        None before the first start, and once `WorkersGone` or `LaunchFailed` is posted."""
        ...

    def start(self, launch: Launch) -> None:
        """Start the attempt's workers, one for each of the `world_size` ranks of `launch`.

        Answered once: by `WorkersStarted` with a pid for each rank, when all of them run; or by
        `LaunchFailed`, when they cannot be started, or not be placed on the devices, and all
        processes that were started are gone. The caller makes sure that no
        process of an earlier attempt lives.
        """
        ...

    def probe(
        self,
        plan: PhasePlan,
        number: int,
        units: tuple[str, ...] | None,
        left_out: tuple[str, ...] = (),
    ) -> None:
        """Probe these devices or hosts (None: all of the phase). An attempt may run on others.
        Those `left_out` are in quarantine: others may take their place.

        Answered once by `DevicesProbed` with this `number`: which units work, which do not and why,
        or the problem that prevented an answer. A newer probe, or `kill`, cancels one that is not
        answered yet: it is never answered.
        """
        ...

    def dump_stacks(self, attempt: int) -> None:
        """Have the attempt's workers write their stacks, by every means available.

        This must not end a worker: a worker that does not handle the signal does not get it. Does
        nothing if another attempt runs, or none. Notices tell people. On one host it is answered by
        `NativeStacks` when a tool begins to write native stacks, and when the last one has ended.
        """
        ...

    def cancel_launch(self, attempt: int) -> None:
        """Start no worker of the attempt, if its checkpoint is still being verified: then it is
        answered by `LaunchCancelled`, and `start` is not. Otherwise it does nothing."""
        ...

    def terminate(self, attempt: int, *, interrupt: bool = False) -> None:
        """Ask the attempt's workers and their survivors to save and exit, by SIGTERM. What still
        writes native stacks is ended: a worker that is looked at cannot save.

        `interrupt`: by SIGINT those that have a handler for it, and none for SIGTERM.

        The core decides how long they may take: this does not kill them. Does nothing if another
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
