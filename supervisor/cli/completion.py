"""`supervise completion`: prints the script that completes our commands in a shell."""

from __future__ import annotations

from argparse import Namespace
from importlib.resources import files

from supervisor.cli.arguments import Commands

SHELLS = ("bash", "zsh", "fish")


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    parser = commands.add_parser(
        "completion", help="print the script that completes verbs and options in a shell"
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(options: Namespace) -> int:
    """Print the script that the package ships; returns the exit code."""
    shipped = files("supervisor.cli").joinpath("completions", script_name(options.shell))
    print(shipped.read_text(encoding="utf-8"), end="")
    return 0


def script_name(shell: str) -> str:
    """Returns the name of the file with the script for a shell."""
    return f"supervise.{shell}"
