"""The entry of the command line: it finds the verb, runs it, and handles errors of any verb.

A verb is a module of this package with `add_parser(commands)` and `run(options)`, which returns the
exit code. Only the verb of this command is imported, because `supervise run` keeps its imports in
memory for as long as the job lasts.
"""

from __future__ import annotations

import importlib
import os
import platform
import signal
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from supervisor.adapters.telling.printing import UnprintableError, printing
from supervisor.adapters.telling.tracebacks import redact_tracebacks
from supervisor.cli.arguments import Commands, Parser, hint_of_unknown, split_command
from supervisor.cli.complaints import complain, complain_of_all, exit_on_signal
from supervisor.config.problems import ConfigError
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor

if TYPE_CHECKING:
    from supervisor.model_dir_ownership import Exclusion

VERBS = (
    "run",
    "gang",
    "init",
    "validate",
    "doctor",
    "schema",
    "manifest",
    "provision",
    "classify",
    "rules",
    "status",
    "explain",
    "report",
    "jobs",
    "logs",
    "serve",
    "stop",
    "restart",
    "save",
    "replay",
    "quarantine",
    "repair",
    "completion",
)
"""The verbs in the order of `supervise --help`."""


class Verb(Protocol):
    """A module of this package."""

    def add_parser(self, commands: Commands) -> None:
        """Add the parser of the verb."""

    def run(self, options: Namespace) -> int:
        """Carry out the command; returns the exit code."""


def load(arguments: Sequence[str]) -> dict[str, Verb]:
    """Import the verb that the command line names, or all if it names none; returns them."""
    names = arguments[:1] if set(arguments[:1]) & set(VERBS) else VERBS
    return {name: cast(Verb, importlib.import_module(f"supervisor.cli.{name}")) for name in names}


def main(argv: Sequence[str] | None = None, exclusion: Exclusion | None = None) -> int:
    """Run the command line; returns the exit code.

    `exclusion`: the means that keep model_dir to one supervisor. None: those that its file system
    needs.
    """
    code = 0
    try:
        with printing():
            code = _main(sys.argv[1:] if argv is None else argv, exclusion)
    except UnprintableError as error:
        if not str(error):
            return code
        return complain(ExitCode.CANNOT_WRITE, f"standard output cannot be written: {error}")
    return code


def _main(argv: Sequence[str], exclusion: Exclusion | None) -> int:
    verbs = load(argv)
    own, after_dashes = split_command(argv)
    given = Namespace(exclusion=exclusion, after_dashes=after_dashes)
    parser = _parser(verbs)
    options, unknown = parser.parse_known_args(own, given)
    if unknown:
        hint = hint_of_unknown(options, unknown)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    redact_tracebacks(Redactor(os.environ).text)
    signal.signal(signal.SIGTERM, exit_on_signal)  # until the job has a handler of its own
    try:
        return verbs[options.command].run(options)
    except ConfigError as error:
        problems = map(Redactor(os.environ).problem, error.problems)
        return complain_of_all(ExitCode.INVALID_CONFIG, problems)
    except KeyboardInterrupt:
        return complain(ExitCode.STOPPED, "interrupted before anything was started")


class _Version(Action):
    """Prints the release with the fingerprint of the code that decides, which it reads, and the
    versions of Python and of what jax needs. It imports none of them."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        """Print the version and exit with 0."""
        from supervisor.doctor.version_check import installed_here
        from supervisor.history.writer import writer

        found = ", ".join(f"{name} {version}" for name, version in installed_here().items())
        print(f"supervise {writer()}")
        print(f"python {platform.python_version()} ({sys.executable})")
        print(f"{found or 'no jax'} (in this environment; a command may have another one)")
        parser.exit()


def parser_of_all_verbs() -> Parser:
    """Returns the parser of the whole command line."""
    return _parser(load([]))


def _parser(verbs: dict[str, Verb]) -> Parser:
    parser = Parser(
        prog="supervise",
        description="Keep a JAX training run moving.",
        epilog="To begin: supervise run -- python train.py",
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="show the version, as the journal names it, and those of python, jax and orbax",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for verb in verbs.values():
        verb.add_parser(commands)
    return parser
