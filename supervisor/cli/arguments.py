"""Arguments and types that the parsers of several verbs share."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

from supervisor.config.secret_names import without_secrets
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor
from supervisor.protocol.location import Uri

_Parsed = TypeVar("_Parsed")


_HINTS = {
    "--aot": "to compile for a TPU that this machine does not have, use `supervise validate --aot "
    "v5e:2x4 trainer.yaml`",
    "doctor": "to check the accelerators of this machine, use `python -m deploy.acceptance` in a "
    "checkout; to check a config before it runs, use `supervise validate trainer.yaml`",
}
"""Words that people try on a verb that does not know them, and the hint where to look."""


class Parser(argparse.ArgumentParser):
    """argparse's parser with hints, and with the exit code of sysexits.h for wrong usage (64)."""

    def error(self, message: str) -> NoReturn:
        """Print how the verb is used and what is wrong, and exit with 64."""
        self.print_usage(sys.stderr)
        meant = (word for word in _HINTS if re.search(rf"(?<![\w-]){word}(?!\w)", message))
        message = "; ".join([message, *(_HINTS[word] for word in meant)])
        text = without_secrets(Redactor(os.environ).text(message))
        self.exit(ExitCode.USAGE, f"{self.prog}: {text}\n")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""argparse's collection of parsers; a verb adds its parser to it."""


def add_config(parser: Parser) -> None:
    """Add the config of the job, and --set, which overrides keys of it."""
    parser.add_argument("config", type=Path, metavar="trainer.yaml", help="the config of the job")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key: trainer.init.seed=3 (every phase), trainer[1].init.seed=3",
    )


def add_explaining(parser: Parser) -> None:
    """Add the options of a verb that explains rules and starts no job."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="trainer.yaml",
        help="a config whose autorestart.rules come first",
    )


def add_model_dir(parser: Parser) -> None:
    """Add the model_dir of a job: a folder, or a place in a bucket."""
    parser.add_argument(
        "model_dir",
        type=with_own_message(_place),
        metavar="MODEL_DIR",
        help="the directory of the job, or its URI in a bucket",
    )


def _place(text: str) -> Path | Uri:
    return Uri.parse(text) or Path(text)


def with_own_message(parse: Callable[[str], _Parsed]) -> Callable[[str], _Parsed]:
    """Returns `parse` for argparse, which then prints the text of a ValueError that `parse` raises.

    By itself, argparse would print a text of its own.
    """

    def parsed(text: str) -> _Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed
