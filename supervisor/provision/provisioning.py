"""`supervise provision`: runs the loop on the real cloud and bucket, or shows what it would do."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from supervisor.adapters.kernel.clock import SystemClock
from supervisor.adapters.platforms.queued_resources import BASE, BASE_VARIABLE, QueuedResources
from supervisor.adapters.stores.bucket import bucket
from supervisor.adapters.telling.console import PlainConsole
from supervisor.config.problems import ConfigError
from supervisor.config.yaml_source import parse_source, to_yaml
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor
from supervisor.host.outlet import say_on_stderr
from supervisor.narrative.event_line import count
from supervisor.prepare import Prepared
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import read
from supervisor.provision.boot import File, default_lock
from supervisor.provision.cloud_plan import Plan, make_plan
from supervisor.provision.package import own_wheel
from supervisor.provision.provision_loop import STATE, ProvisionLoop, TakenOverError

_MAX_LOCK = 16 << 20
_NOT_SHIPPED = (
    "supervise: WARNING: the program of command.argv is not among the shipped files: it must "
    "be on the image of the slice, or in a package that init.provision.lock names"
)


class LoopEndedError(Exception):
    """The loop must end before the job; the text says why, and what happens to the slice."""

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def provision(prepared: Prepared, *, dry_run: bool) -> int:
    """Keeps a slice alive until its job has ended; returns the exit code of the job.

    With `dry_run` it only prints what it would do, and returns 0.

    Raises:
        ConfigError: the job cannot be provisioned.
        LoopEndedError: the loop ends before the job.
    """
    redactor = prepared.redactor(os.environ)
    try:
        plan = make_plan(prepared, redactor, own_wheel(), _lock(prepared))
    except OSError as error:
        raise LoopEndedError(ExitCode.INVALID_CONFIG, str(error)) from error
    if dry_run:
        for line in dry_run_lines(plan):
            print(line)  # the lines have no secrets: `make_plan` refuses a config that has some
        if any(phase.is_command for phase in prepared.plans):
            say_on_stderr(_NOT_SHIPPED)
        return 0
    signal.signal(signal.SIGTERM, _raise_terminated)
    console = PlainConsole(1, lambda why: say_on_stderr(f"supervise: {why}"))
    try:
        end = _loop(plan, redactor, console).run()
        text = (
            f"{redactor.text(printable(end.reason))}; exit code {end.exit_code}, no slice is left"
        )
        console.line(text)
        return end.exit_code
    except TakenOverError:
        text = "another `supervise provision` looks after this job now"
        raise LoopEndedError(ExitCode.OWNED, text) from None
    except _TerminatedError:
        raise LoopEndedError(
            ExitCode.DRAINED, _message_about_the_slice(plan, "told to stop")
        ) from None
    except KeyboardInterrupt:
        raise LoopEndedError(
            ExitCode.STOPPED, _message_about_the_slice(plan, "interrupted")
        ) from None
    except ImportError as error:
        raise LoopEndedError(ExitCode.INVALID_CONFIG, str(error)) from error
    except OSError as error:
        raise LoopEndedError(
            ExitCode.CANNOT_WRITE, _message_about_the_slice(plan, str(error))
        ) from error
    finally:
        console.close()


def dry_run_lines(plan: Plan) -> Iterator[str]:
    """Yields the lines of a dry run: the requests in the order in which the loop would make them,
    and the startup script of a slice. Other lines are comments."""
    yield f"# state: {plan.machine.model_dir / STATE}"
    yield f"# rungs, each asked for {plan.where.smaller_after / 60:g} minutes before the next:"
    for rung in plan.policy.rungs:
        yield f"#   {plan.accelerator_type(rung)}, {count(rung, 'chip')}"
    base = f"{_base()}v2/{plan.parent}/queuedResources"
    yield f"GET {base}"
    yield f"POST {base}?queuedResourceId={plan.name}-1"
    body = plan.body(1, plan.policy.rungs[0])
    metadata = body["tpu"]["nodeSpec"][0]["node"]["metadata"]
    script, metadata["startup-script"] = metadata["startup-script"], "(below)"
    yield json.dumps(body, indent=2)
    yield f"GET {base}/{plan.name}-1"
    yield f"DELETE {base}/{plan.name}-1?force=true"
    yield "# beside the job in the bucket, by digest:"
    for file in plan.machine.files:
        yield f"#   {file.path} ({len(file.data)} bytes)"
    yield f"# {plan.machine.config.name}, of command.env the names alone:"
    shown = to_yaml(_without_values(parse_source("", plan.machine.config.data.decode()).data))
    yield from (f"#   {line}" for line in shown.splitlines())
    yield "# startup-script:"
    yield script


def _without_values(data: Any) -> Any:
    """Returns a config without the values of the variables in `command.env`."""
    if isinstance(data, list):
        return [_without_values(item) for item in data]
    if not isinstance(data, dict):
        return data
    found = {key: _without_values(value) for key, value in data.items()}
    command = found.get("command")
    if isinstance(command, dict) and isinstance(command.get("env"), dict):
        found["command"] = {**command, "env": dict.fromkeys(command["env"], "(not shown)")}
    return found


def _lock(prepared: Prepared) -> File:
    """Returns the requirements file that the slice installs: that of the config, or else ours.

    Raises:
        ConfigError: the file that the config names cannot be read.
    """
    where = prepared.job.phases[0].init.provision
    if where is None or where.lock is None:
        return default_lock()
    location = (*prepared.job.locations[0], "init", "provision", "lock")
    try:
        return File("requirements.lock", read(Path(where.lock).expanduser(), limit=_MAX_LOCK))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise ConfigError([prepared.job.source.problem(location, message)]) from error


def _base() -> str:
    return f"{os.environ.get(BASE_VARIABLE, BASE).rstrip('/')}/"


def _loop(plan: Plan, redactor: Redactor, console: PlainConsole) -> ProvisionLoop:
    clock = SystemClock()

    def say(text: str) -> None:
        stamp = clock.wall().isoformat(sep=" ", timespec="milliseconds")
        console.line(f"{stamp} [provision] {printable(redactor.text(text))}")

    slices = QueuedResources(plan.parent, plan.name, plan.body, base=_base())
    return ProvisionLoop(
        slices,
        bucket(plan.machine.model_dir),
        plan.policy,
        clock,
        owner=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
        say=say,
        pause=time.sleep,
        accelerator_type=plan.accelerator_type,
        files=plan.machine.files,
        redact=redactor.text,
    )


def _message_about_the_slice(plan: Plan, why: str) -> str:
    """Returns the message that the loop ends before the job, and what a person must do about the
    slice."""
    return (
        f"{why}; if there is a slice, it goes on and costs money: run the same command again to "
        f"look after it, or delete the queued resource {plan.name}-N in {plan.where.zone}"
    )


class _TerminatedError(BaseException):
    """Raised by SIGTERM, as KeyboardInterrupt is by SIGINT."""


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise _TerminatedError
