"""Starts the workers of an attempt.

Each worker gets a pipe for its output, a progress pipe and, if the phase has snapshots, the memory
for them. A command also finds the module `supervise_worker`. If a standby fits, it becomes the
worker; otherwise a new process is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from supervisor.adapters.processes.output import OutputPatterns
from supervisor.bootstrap import below_shell
from supervisor.config.patterns import Pattern
from supervisor.engines.ahead.preparing import Preparations
from supervisor.engines.group import Member, WorkerGroup
from supervisor.engines.handles import Memory, Output, Process
from supervisor.engines.host_port import Compilations, Host
from supervisor.engines.launch import Launch, Start
from supervisor.engines.python_program import has_bootstrap
from supervisor.engines.step_recognition import StepRecognition, metrics_of
from supervisor.host.notice import Notice, Tell
from supervisor.protocol import environment, worker_path
from supervisor.protocol.messages import Message, SigtermMessage, StepMessage
from supervisor.protocol.standby import OUTPUT, Mode

_PYTHONPATH = "PYTHONPATH"
_WORKER_PATH = str(Path(worker_path.__file__).absolute().parent)
"""The folder of the module `supervise_worker`, which holds nothing else."""
_BELOW_SHELL = str(Path(below_shell.__file__).absolute().parent)
"""The folder of the `sitecustomize` that reports what a program below a shell writes."""

_JAX_TOOK = (
    ": jax.distributed keeps SIGTERM to itself, so the program ends only if it asks jax whether to "
    "stop (multihost_utils.reached_preemption_sync_point, reached_preemption of Orbax), and else "
    "works on until SIGKILL (see docs/how-to/several-workers.md)"
)


class WorkerStarter:
    """Starts the workers of a group, one at a time."""

    def __init__(
        self,
        machine: Host,
        environ: Mapping[str, str],
        mirror: Callable[[int, bytes], None] | None,
        compile_cache: Compilations,
        ahead: Preparations,
        on_message: Callable[[WorkerGroup, int, Message], None],
        notice: Tell,
        mention: Tell,
        recognition: StepRecognition,
    ) -> None:
        """`environ` is what workers inherit; rank 0's output also goes to `mirror`, if given.

        `on_message` gets each message of a worker, with its rank. `notice` reports problems to
        people and `mention` normal things; `recognition` finds steps in the output that nobody
        tells.
        """
        self._machine = machine
        self._environ = environment.without_supervisor_variables(environ)
        self._mirror = mirror
        self._compile_cache = compile_cache
        self._ahead = ahead
        self._on_message = on_message
        self._notice = notice
        self._mention = mention
        self._recognition = recognition

    def program(self, launch: Launch, newest: int | None) -> tuple[tuple[str, ...], dict[str, str]]:
        """Returns the command line of all workers, and the environment that they share.

        `newest` is the newest committed step. The variables that differ between workers are added
        later (`worker_environment.placement_variables`, `Launch.protocol_variables`).
        """
        values = launch.values(newest)
        argv, why_not = launch.command_line(values)
        if why_not is not None:
            self._notice(
                Notice(
                    "bootstrap-left-out",
                    f"the program runs unchanged, without the bootstrap: {why_not}",
                    reason=why_not,
                )
            )
        inherited = launch.inherited(self._environ, values)
        if launch.plan.is_command and not has_bootstrap(argv):
            # Lines of several processes may mix, but output comes at once from any Python program
            # below a wrapper. With the bootstrap, output is line-buffered instead.
            inherited.setdefault("PYTHONUNBUFFERED", "1")
        if launch.plan.is_command:
            # By the environment, so that programs below a wrapper and spawned children have it too.
            given = inherited.get(_PYTHONPATH)
            ours_first = None if has_bootstrap(argv) else _BELOW_SHELL
            folders = (ours_first, given, _WORKER_PATH)
            inherited[_PYTHONPATH] = os.pathsep.join(filter(None, folders))
        return tuple(argv), {**inherited, **self._compile_cache.environment(inherited)}

    def start(self, group: WorkerGroup, start: Start, memory: Memory | None) -> Member:
        """Start the group's next worker, and return it. Its output and reports are not read yet.

        Raises:
            OSError: it cannot be started.
        """
        rank = group.launch.ranks[len(group.workers)]
        shown = self._mirror if rank == 0 else None
        with ExitStack() as undo:
            output = self._machine.output(
                group.launch.file(rank, "log"),
                self._patterns(group, rank),
                partial(shown, group.launch.attempt) if shown is not None else None,
                self._notice,
            )
            undo.callback(output.abandon)
            pipe = self._machine.progress(
                lambda message: self._on_message(group, rank, message),
                lambda why: self._notice(
                    Notice(
                        "message-refused",
                        f"a message of rank {rank} was refused: {why}",
                        rank=rank,
                        reason=why,
                    )
                ),
            )
            undo.callback(pipe.abandon)
            env = {**start.env, **pipe.to_environment()}
            descriptors = {environment.PROGRESS_FD: pipe.write_end}
            if memory is not None:
                env |= memory.to_environment()
                descriptors[environment.SNAPSHOT_FD] = memory.descriptor
            start = Start(start.argv, env)
            process, standby = self._process(group.launch, start, descriptors, output)
            undo.pop_all()
        pipe.close_write_end()
        return Member(rank, start, self._machine, process, standby, output, pipe)

    def _process(
        self, launch: Launch, start: Start, descriptors: Mapping[str, int], output: Output
    ) -> tuple[Process, Mode | None]:
        """Returns the process of a worker, and the kind of standby that it was; None: a new process
        was started. The worker inherits `descriptors`: their numbers by environment variable."""
        by_name = {OUTPUT: output.write_end, **descriptors}
        taken = self._ahead.take(launch.plan.name, start, by_name)
        if taken is not None:
            return taken.process, taken.mode
        inherit = tuple(descriptors.values())
        cold = self._machine.start(
            start.argv, env=start.env, output=output.write_end, inherit=inherit
        )
        return cold, None

    def _patterns(self, group: WorkerGroup, rank: int) -> OutputPatterns:
        launch = group.launch
        progress, success = launch.plan.progress_pattern, launch.success.pattern
        return OutputPatterns(
            step=Pattern(progress) if progress is not None else None,
            on_step=lambda first, last, loss: self._on_message(
                group, rank, StepMessage(last, metrics_of(loss), first, in_output=True)
            ),
            success=Pattern(success) if success is not None else None,
            on_sigterm=lambda: self._jax_took_sigterm(group, rank),
            listener=self._recognition.listener(
                launch.plan,
                lambda message: self._on_message(group, rank, message),
                lambda: group.reported_step is not None,
            ),
        )

    def _jax_took_sigterm(self, group: WorkerGroup, rank: int) -> None:
        if group.note_taken_sigterm() and group.launch.plan.is_command:
            self._mention(
                Notice("sigterm-reaction", f"rank {rank}{_JAX_TOOK}", ranks=[rank], reason="jax")
            )
        self._on_message(group, rank, SigtermMessage())
