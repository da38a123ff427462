"""Recognises the framework of a training program, and the folder in which it saves.

Pure: a syntax tree and a command line in, a `Finding` out. A folder counts only if it is written
down: in an argument, in the default of an option, or in the call that makes the checkpointer. An
option that may mean anything, such as `--out`, counts if the folder itself is named after
checkpoints.
"""

from __future__ import annotations

import ast
import posixpath
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.cli.script_options import (
    NUMBER,
    Known,
    calls,
    joined_paths,
    known_values,
    name_of,
    option_values,
    path_of,
    saved_names,
)
from supervisor.config.named_program import NamedProgram
from supervisor.engines.script_imports import imported_packages
from supervisor.engines.telling_names import may_be_a_step
from supervisor.protocol.checkpoint_layouts import structure_of


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, and how its programs save."""

    name: str
    packages: frozenset[str]
    saves: str
    """Where it saves checkpoints, as a sentence."""
    options: Mapping[str, str]
    """The options that name a folder, each with the path of the checkpoints below it."""
    step_pattern: str | None = None
    """The lines in which it prints its steps; None: they differ from program to program."""


_ITSELF = "."
FRAMEWORKS = (
    Framework(
        "MaxText",
        frozenset({"MaxText", "maxtext"}),
        "MaxText saves to BASE_OUTPUT_DIRECTORY/RUN_NAME/checkpoints.",
        {"base_output_directory": "{run_name}/checkpoints"},
        r"completed step: (\d+)",
    ),
    Framework(
        "Kauldron",
        frozenset({"kauldron"}),
        "Kauldron saves to WORKDIR/checkpoints.",
        {"workdir": "checkpoints"},
    ),
    Framework(
        "Tunix",
        frozenset({"tunix"}),
        "Tunix saves to its checkpoint_root_directory; reinforcement learning, to the folder "
        "`actor` below it.",
        {"checkpoint_root_directory": _ITSELF, "root_directory": _ITSELF, "ckpt_dir": _ITSELF},
    ),
    Framework(
        "Levanter",
        frozenset({"levanter"}),
        "Levanter saves to the base_path of its checkpointer, below the id of the run.",
        {"base_path": _ITSELF},
    ),
    Framework(
        "Orbax",
        frozenset({"orbax"}),
        "Orbax's CheckpointManager saves to its directory. If the loop calls its `save` at every "
        "step, `command.save_on_sigterm: true` saves on SIGTERM too.",
        {},
    ),
    Framework(
        "Hugging Face Transformers",
        frozenset({"transformers"}),
        "The Trainer of Hugging Face saves to OUTPUT_DIR/checkpoint-STEP. It goes on only if it is "
        "told to: resume_from_checkpoint.",
        {"output_dir": _ITSELF},
    ),
    Framework(
        "Lightning",
        frozenset({"lightning", "pytorch_lightning"}),
        "Lightning saves to the dirpath of its ModelCheckpoint. It goes on only with a ckpt_path.",
        {"dirpath": _ITSELF},
    ),
    Framework("Keras", frozenset({"keras"}), "Keras saves where its callbacks say.", {}),
    Framework("PyTorch", frozenset({"torch"}), "PyTorch saves where torch.save is told to.", {}),
    Framework("Flax", frozenset({"flax"}), "Flax saves through Orbax.", {}),
    Framework("JAX", frozenset({"jax"}), "JAX itself saves no checkpoints.", {}),
)
"""The frameworks, in the order in which they are tried: those that use others come first."""
_OPTIONS_OF_ALL = dict.fromkeys(
    ("ckpt_dir", "checkpoint_dir", "checkpoint_directory", "save_dir"), _ITSELF
)
_MAKE_A_CHECKPOINTER = frozenset({"CheckpointManager", "Checkpointer"})
_OF_CHECKPOINTS = re.compile(r"(?:^|/)(?:checkpoints?|ckpts?)/?$")
_WRITTEN = re.compile(r"out|save|dir|work|run|log|result")
"""Options that may name what a program writes, if they do not name what it reads."""
_READ = re.compile(r"load|restor|resum|init|from|pretrain|base|source|input|data|teacher|eval")
_TEMPLATE = re.compile(r"[${}%<>*?\n]")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of a program without running it."""

    framework: Framework | None
    directory: str | None
    """The directory of its checkpoints; None: it is not written down."""


def recognise(tree: ast.Module | None, argv: Sequence[str], program: NamedProgram) -> Finding:
    """Returns the framework and the folder of the program in `argv`; `tree` is its source, None if
    that cannot be read."""
    packages = {program.name.partition(".")[0]}
    if tree is not None:
        packages = {*imported_packages(tree)}
    framework = next((each for each in FRAMEWORKS if each.packages & packages), None)
    words = argv[program.index + 1 :]
    given = option_values(tree, words)
    known = known_values(tree, words) if tree is not None else Known(given, {})
    below = {**_OPTIONS_OF_ALL, **(framework.options if framework is not None else {})}
    folders = (_joined(given[name], path, given) for name, path in below.items() if name in given)
    made = _checkpointer_folders(tree, known) if tree is not None else ()
    told = _told_folder(tree, known, framework) if tree is not None else None
    saved = _folder_of_steps(tree, known) if tree is not None else None
    found = (*folders, *made, told, _named_folder(tree, known), saved)
    literal = (each for each in found if each is not None and _is_literal(each))
    return Finding(framework, next(literal, None))


def _is_literal(folder: str) -> bool:
    """Whether a folder is one as it stands: no shell, format or template has to change it."""
    return _TEMPLATE.search(folder.replace("{model_dir}", "")) is None


def _joined(folder: str, below: str, given: Mapping[str, str]) -> str | None:
    """Returns the folder `below` of `folder`; None: a part of its name is not given."""
    names = re.findall(r"\{(\w+)\}", below)
    if not folder or not all(name in given for name in names):
        return None
    for name in names:
        below = below.replace(f"{{{name}}}", given[name])
    return (
        posixpath.normpath(posixpath.join(folder, below))
        if "://" not in folder
        else (folder.rstrip("/") + ("" if below == _ITSELF else f"/{below}"))
    )


def _told_folder(tree: ast.Module, known: Known, framework: Framework | None) -> str | None:
    """Returns the only folder that the script gives to its framework itself, as in
    `TrainingArguments(output_dir="out")`; None: there is none, or several."""
    below = framework.options if framework is not None else {}
    found = {
        _joined(path, below[each.arg], known.options)
        for call in calls(tree)
        for each in call.keywords
        if each.arg is not None and each.arg in below
        if (path := path_of(each.value, known)) is not None
    }
    return found.pop() if len(found) == 1 else None


def _named_folder(tree: ast.Module | None, known: Known) -> str | None:
    """Returns the only folder whose own name says that it holds checkpoints: the value of an option
    for what the program writes, or a path that is joined of one. None: there is none, or several.
    """
    written = {name: value for name, value in known.options.items() if _is_written(name)}
    of_written = Known(written, known.variables)
    paths = (*written.values(), *(joined_paths(tree, of_written) if tree is not None else ()))
    named = {each.rstrip("/") for each in paths if _OF_CHECKPOINTS.search(each)}
    return named.pop() if len(named) == 1 else None


def _folder_of_steps(tree: ast.Module, known: Known) -> str | None:
    """Returns the only folder in which the script saves files whose names say that they are steps
    (`f"out/model_{step}.pt"`); None: there is none, or several."""
    found = set()
    for path in saved_names(tree, known):
        folder, name = posixpath.split(path)
        step = Path(folder, name.replace(NUMBER, "1"))
        is_step = structure_of(step.name, is_folder=False) is not None and may_be_a_step(
            step, 1, is_marked=False, now=time.time()
        )
        if is_step and folder and NUMBER not in folder:
            found.add(folder)
    return found.pop() if len(found) == 1 else None


def _is_written(option: str) -> bool:
    return _WRITTEN.search(option) is not None and _READ.search(option) is None


def _checkpointer_folders(tree: ast.Module, known: Known) -> Iterator[str]:
    """Yields the folders in the calls that make an Orbax checkpointer, where they are known."""
    for call in calls(tree):
        if name_of(call.func) in _MAKE_A_CHECKPOINTER:
            named = [each.value for each in call.keywords if each.arg == "directory"]
            for given in (*call.args[:1], *named):
                if (folder := path_of(given, known)) is not None:
                    yield folder
