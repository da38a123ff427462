"""`supervise schema`: prints the JSON Schema of trainer.yaml, for editors."""

from __future__ import annotations

from argparse import Namespace
from importlib.resources import files

from supervisor.cli.arguments import Commands


def add_parser(commands: Commands) -> None:
    """Add the parser of the verb."""
    commands.add_parser("schema", help="print the JSON Schema of trainer.yaml, for editors")


def run(options: Namespace) -> int:
    """Print the schema file that the package ships; returns the exit code."""
    shipped = files("supervisor.config").joinpath("trainer.schema.json")
    print(shipped.read_text(encoding="utf-8"), end="")
    return 0
