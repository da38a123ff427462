"""Arguments and types that the parsers of several verbs share."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

from supervisor.config.secret_names import without_secrets
from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor
from supervisor.protocol.location import Uri

_Parsed = TypeVar("_Parsed")


_HINTS = {
    "--aot": "to compile for a TPU that this machine does not have, use `supervise validate --aot "
    "v5e:2x4 trainer.yaml`",
    "--accelerator": "`supervise doctor` looks at all devices; to try each feature on them, use "
    "`python -m deploy.acceptance` in a checkout",
}
"""Words that people try on a verb that does not know them, and the hint where to look."""


class Parser(argparse.ArgumentParser):
    """argparse's parser with hints, and with the exit code of sysexits.h for wrong usage (64)."""

    instead: str = ""
    """What to type, if the word for what to do is missing or none that there is; empty: no such
    word is needed. {word} stands for what is there in its place."""
    _words: Sequence[str] = ()
    """The words that it was given last."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse; the words are kept for hints."""
        self._words = tuple(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print how the verb is used and what is wrong, and exit with 64."""
        match = _INVALID.match(message)
        if self.instead and (match or "required: action" in message) and not self._nearest(message):
            word = match[1] if match else "MODEL_DIR"
            message = self.instead.replace("{word}", shlex.quote(word))
        else:
            self.print_usage(sys.stderr)
        if message.endswith(f"required: {_CONFIG}"):
            message += hint_of_config(self.prog, self._words)
        meant = (word for word in _HINTS if re.search(rf"(?<![\w-]){word}(?!\w)", message))
        message = "; ".join([message, *(_HINTS[word] for word in meant)])
        message = "; ".join([message, *self._nearest(message)])
        text = without_secrets(Redactor(os.environ).text(message))
        self.exit(ExitCode.USAGE, f"{self.prog}: {text}\n")

    def _nearest(self, message: str) -> list[str]:
        """Returns what is probably meant by a verb, a choice or options that do not exist; nothing
        if `message` has another hint already."""
        found: list[str] = []
        if match := _INVALID.match(message):
            choices = (str(one) for action in self._actions for one in action.choices or ())
            found = _near(match[1], choices)
        elif _MAY_BE_MISTYPED.search(message) and "; " not in message:
            known = [each.removeprefix("--") for each in _options(self)]
            words = (word.partition("=")[0] for word in self._words if word.startswith("--"))
            for word in (word.removeprefix("--") for word in words):
                if not any(each.startswith(word) for each in known):
                    found += (f"--{near}" for near in _near(word, known))
        return [f"did you mean {', '.join(dict.fromkeys(found))}?"] if found else []


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the long options of a parser, and of those below it."""
    for action in parser._actions:
        yield from (each for each in action.option_strings if each.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _options(below)


def _near(word: str, known: Iterable[str]) -> list[str]:
    """Returns the one of `known` that is most like `word`; none if all differ too much."""
    return difflib.get_close_matches(word, [*known], n=1, cutoff=_CUTOFF)


_INVALID = re.compile(r"argument \S+: invalid choice: '([^']*)'")
_MAY_BE_MISTYPED = re.compile(r"unrecognized arguments:|arguments are required:")
"""argparse's messages about words that may be options with another spelling."""
_CUTOFF = 0.65
"""How alike two words are of which one may be meant for the other: `rnu` and `run`, but not
`restart` and `repair`."""
_TAKE_A_COMMAND = ("run", "init")
"""The verbs that take what is behind `--` as words of another program's command line."""


def split_command(argv: Sequence[str]) -> tuple[Sequence[str], list[str] | None]:
    """Returns the words for our own parser, and those behind `--` for another program's; None:
    there is no `--`.

    argparse would take options of the other program for ours.
    """
    if argv[:1] and argv[0] in _TAKE_A_COMMAND and "--" in argv:
        place = argv.index("--")
        return argv[:place], list(argv[place + 1 :])
    return argv, None


def hint_of_unknown(options: argparse.Namespace, unknown: Sequence[str]) -> str:
    """Returns the hint for the words `unknown` that no parser knows: they may belong to a command
    without `--` before it, or name the config by an option. Empty: neither."""
    if not hasattr(options, "config"):
        return ""
    config: Path | None = options.config
    is_run = options.command == "run" and options.after_dashes is None
    if is_run and config is not None and config.suffix not in _CONFIGS:
        start = f"python {config}" if config.suffix == ".py" else config
        return f"; to run a command, write -- before it: supervise run -- {start} ..."
    return hint_of_config(f"supervise {options.command}", unknown, config)


def hint_of_config(command: str, words: Sequence[str], config: Path | None = None) -> str:
    """Returns the hint for `words` that name the config by an option; empty: they do not."""
    named = [word.partition("=")[2] for word in words if _NAMES_A_CONFIG.fullmatch(word)]
    if not named:
        return ""
    path = shlex.quote(next(filter(None, named), str(config or _CONFIG)))
    return f"; the config stands without an option: {command} {path}"


_NAMES_A_CONFIG = re.compile(r"--config(?:=.*)?", re.DOTALL)
_CONFIG = "trainer.yaml"
"""The usual name of a config."""
_CONFIGS = (".yaml", ".yml", ".json")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""argparse's collection of parsers; a verb adds its parser to it."""


def add_config(parser: Parser, *, optional: bool = False) -> None:
    """Add the config of the job, and --set, which overrides keys of it."""
    parser.add_argument(
        "config",
        type=Path,
        nargs="?" if optional else None,
        metavar=_CONFIG,
        help="the config of the job",
    )
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


def add_model_dirs(parser: Parser) -> None:
    """Add the model_dirs of one or more jobs."""
    parser.add_argument(
        "model_dirs",
        nargs="+",
        type=with_own_message(_place),
        metavar="MODEL_DIR",
        help=_MODEL_DIR,
    )


_MODEL_DIR = "the directory of the job, or its URI in a bucket"
_ON_DISK = "the directory of the job, on a disk"


def add_model_dir(
    parser: Parser, *, optional: bool = False, running: bool = False, on_disk: bool = False
) -> None:
    """Add the model_dir of a job: a folder, or a place in a bucket.

    `optional`: the verb takes `found_jobs.chosen_job` where none is given; if `running`,
    `found_jobs.only_running_job`.
    `on_disk`: the verb refuses a bucket, so its help names a folder alone.
    """
    told = _ON_DISK if on_disk else _MODEL_DIR
    if optional:
        which = "the only job that runs" if running else "the job that was written last"
        told += f"; default: {which} at or below the working directory"
    parser.add_argument(
        "model_dir",
        nargs="?" if optional else None,
        type=with_own_message(_place),
        metavar="MODEL_DIR",
        help=told,
    )


def _place(text: str) -> Path | Uri:
    return Uri.parse(text) or Path(text)


def parse_file_name(text: str) -> Path:
    """Returns the path `text`; ValueError: it is empty, which a Path would take for `.`."""
    if not text:
        raise ValueError("the name of the file is empty")
    return Path(text)


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
