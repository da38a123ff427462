"""`supervise doctor`: checks this machine, or the place of a job, and says what is wrong."""

from __future__ import annotations

import json
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from supervisor.cli.arguments import Commands
from supervisor.cli.complaints import complain
from supervisor.cli.examined_job import JOB, ExaminedJob
from supervisor.cli.job_view import print_line
from supervisor.config.problems import ConfigError
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor
from supervisor.doctor import (
    bucket_check,
    device_check,
    disk_check,
    job_check,
    limit_checks,
    machine_checks,
    version_check,
)
from supervisor.doctor.examination import Check, Finding, Level, NoAnswer, findings_of, wrong
from supervisor.doctor.interpreter import Program, end_questions, own_interpreter, programs_of
from supervisor.host.aside import Aside
from supervisor.host.identity import Identity
from supervisor.prepare import Prepared, prepare
from supervisor.protocol.location import Uri
from supervisor.secret_variables import with_env_files

_PREPARING = 60.0
"""Seconds to read the config, or to make what checks `supervise run` makes of it."""
_READING = 30.0
"""Seconds to read a journal."""
_CONFIGS = (".yaml", ".yml", ".json")
_MARKS = {Level.OK: "ok   ", Level.NOTE: "note ", Level.WRONG: "WRONG"}
_WIDTH = 12
"""Characters of the column with the name of a check."""


class _UsageError(Exception):
    """The command line is wrong; the text says how."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is to be checked beside this machine."""

    model_dir: Path | Uri | None = None
    """The place of the job; None: no job is given, or its place is not known."""
    prepared: Prepared | None = None
    """The job, if its config is given and right."""
    found: tuple[Finding, ...] = ()
    """Why it cannot be looked at further."""

    @property
    def redact(self) -> Callable[[str], str]:
        """What removes secrets from a text."""
        ours = Redactor(os.environ) if self.prepared is None else self.prepared.redactor(os.environ)
        return ours.text


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "doctor", help="check this machine, or the place of a job, and say what is wrong"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of the config, as `supervise run` does",
    )
    parser.add_argument(
        "place",
        nargs="?",
        metavar="CONFIG-OR-MODEL_DIR",
        help="the config of a job; or its directory, or its URI in a bucket. Without it, this "
        "machine alone is checked",
    )


def run(options: Namespace) -> int:
    """Make the checks, and print what each finds as soon as it is known; returns 1 if something is
    wrong, else 0."""
    try:
        subject = _subject(options.place, options.set)
    except _UsageError as error:
        return complain(ExitCode.USAGE, str(error))
    found = []
    try:
        for finding in _findings(subject):
            found.append(_redacted(finding, subject.redact))
            if not options.json:
                _print(found[-1])
    finally:
        end_questions()
    if options.json:
        told = {"v": 1, "place": options.place, "findings": [asdict(each) for each in found]}
        print(json.dumps(told, indent=2))
    else:
        print_line(_summary(found))
    return 1 if _are_wrong(found) else 0


# --- what is checked -----------------------------------------------------------------------------


def _subject(text: str | None, overrides: list[str]) -> _Subject:
    """Returns what the command line asks to check.

    Raises:
        _UsageError: it is nothing that can be checked.
    """
    is_config = text is not None and text.endswith(_CONFIGS)
    if overrides and not is_config:
        raise _UsageError("--set is for a config: supervise doctor --set ... trainer.yaml")
    if text is None:
        return _Subject()
    try:
        uri = Uri.parse(text)
    except ValueError as error:
        raise _UsageError(f"{text} {error}") from None
    if uri is not None:
        return _Subject(uri)
    path = Path(text)
    try:
        mode = Aside(text).ask(path.stat).st_mode
    except TimeoutError as error:
        remedy = "bring its file system back (mount, dmesg)"
        return _Subject(found=(wrong(disk_check.DISK, f"{path}: {error.strerror}", remedy),))
    except OSError as error:
        what = "a config, or the directory of a job"
        raise _UsageError(f"{path}: {error.strerror}: give {what}") from None
    return _Subject(path) if stat.S_ISDIR(mode) else _of_config(path, overrides)


def _of_config(path: Path, overrides: list[str]) -> _Subject:
    try:
        prepared = Aside(str(path), _PREPARING).ask(
            lambda: with_env_files(prepare(path, overrides))
        )
    except ConfigError as error:
        text = Redactor(os.environ).text
        found = [wrong(job_check.CONFIG, text(str(problem))) for problem in error.problems]
        return _Subject(found=tuple(found))
    except TimeoutError as error:
        return _Subject(found=(wrong(job_check.CONFIG, f"{path}: {error.strerror}"),))
    return _Subject(prepared.job.remote or prepared.job.model_dir, prepared)


def _findings(subject: _Subject) -> Iterator[Finding]:
    """Yields what all checks find, the quick ones first."""
    redact, job = subject.redact, None
    yield from subject.found
    yield from findings_of(_of_machine(redact))
    if subject.prepared is not None:
        look = partial(job_check.config, subject.prepared)
        yield from findings_of([Check(job_check.CONFIG, look, _PREPARING)])
    if subject.model_dir is not None:
        job = ExaminedJob(subject.model_dir, redact)
        yield from _place_findings(subject.model_dir, job)
    owner = job.owner if job is not None else None
    for program in _programs(subject, job):
        yield from _program_findings(program, owner, redact)


def _program_findings(
    program: Program, owner: Identity | None, redact: Callable[[str], str]
) -> Iterator[Finding]:
    """Yields the versions of a program, and if its interpreter answers the devices."""
    look = partial(version_check.versions, program)
    found = list(findings_of([Check(version_check.VERSIONS, look, version_check.BOUND)]))
    yield from found
    if not any(isinstance(each, NoAnswer) for each in found):
        look = partial(device_check.devices, program, owner, redact)
        yield from findings_of([Check(device_check.DEVICES, look, device_check.BOUND)])


def _of_machine(redact: Callable[[str], str]) -> Iterator[Check]:
    yield Check(limit_checks.LIMITS, limit_checks.limits)
    yield Check(limit_checks.SIGNALS, limit_checks.signals)
    yield Check(machine_checks.CGROUP, machine_checks.cgroup)
    yield Check(machine_checks.CLOCK, machine_checks.clock)
    yield Check(machine_checks.PERMISSIONS, partial(machine_checks.permissions, redact))


def _place_findings(model_dir: Path | Uri, job: ExaminedJob) -> Iterator[Finding]:
    """Yields what the checks of model_dir find. One that does not answer ends them, and so does a
    bucket that cannot be used: the next ones would only wait for the same."""
    of_job = Check(JOB, job.look, _READING), Check(disk_check.DISK, job.checkpoints)
    for check in (*_of_place(model_dir), *of_job):
        found = list(findings_of([check]))
        yield from found
        unusable = check.name == bucket_check.BUCKET and _are_wrong(found)
        if unusable or any(isinstance(each, NoAnswer) for each in found):
            return


def _of_place(model_dir: Path | Uri) -> Iterator[Check]:
    if isinstance(model_dir, Path):
        yield Check(disk_check.DISK, partial(disk_check.disk, model_dir))
        yield Check(machine_checks.PERMISSIONS, partial(disk_check.exposures, model_dir))
    else:
        look = partial(bucket_check.place_in_bucket, model_dir)
        yield Check(bucket_check.BUCKET, look, bucket_check.BOUND)


def _programs(subject: _Subject, job: ExaminedJob | None) -> list[Program]:
    """Returns the programs whose interpreters are asked."""
    if subject.prepared is not None:
        return programs_of(subject.prepared)
    return (job.programs if job is not None else []) or [own_interpreter()]


# --- how it is told ------------------------------------------------------------------------------


def _are_wrong(found: Iterable[Finding]) -> bool:
    return any(each.level is Level.WRONG for each in found)


def _redacted(finding: Finding, redact: Callable[[str], str]) -> Finding:
    return Finding(finding.check, finding.level, redact(finding.text), redact(finding.remedy))


def _print(finding: Finding) -> None:
    print_line(f"{_MARKS[finding.level]} {finding.check:<{_WIDTH}} {finding.text}")
    if finding.remedy:
        print_line(f"{'':{len(_MARKS[Level.OK]) + _WIDTH + 2}}what to do: {finding.remedy}")
    sys.stdout.flush()


def _summary(found: Iterable[Finding]) -> str:
    levels = [each.level for each in found]
    bad, notes = levels.count(Level.WRONG), levels.count(Level.NOTE)
    what = {0: "nothing is wrong", 1: "1 thing is wrong"}.get(bad, f"{bad} things are wrong")
    return f"{what}; {notes} note{'s' * (notes != 1)}, {levels.count(Level.OK)} ok"
