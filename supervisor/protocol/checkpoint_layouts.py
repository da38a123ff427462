"""The table of checkpoint layouts: how a step is named, and what commits it.

A step is a folder or a file. Some programs commit a step: they write a marker last, or rename the
step to its final name. Others just write it, so that a step cut off by a kill looks like any other.
Of these, a step counts only with a proof from outside: its writer closed it while alive, and its
structure is complete (`structure`). This table says which proof a layout needs. It reads nothing.

`committed` uses the names and markers, `supervisor.engines.closed_steps` gives the proof, and
`docs/reference/layouts.md` is generated from the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from typing import TypeVar

from .epochs import EPOCH, SavedStep, epochs_in

MARKER = "commit_success.txt"
METADATA = "_CHECKPOINT_METADATA"
TEMPORARY = ".orbax-checkpoint-tmp"
NESTED = ("state", "train_state")
"""Folders inside of a step that are the whole checkpoint: `100/state/` is step 100."""


class Structure(StrEnum):
    """How the completeness of a step is checked. The value says what the check wants."""

    ZIP = "the central directory of the zip archive is at the end, and every entry is in the file"
    SAFETENSORS = "the header is there, and the file ends where the last tensor ends"
    MSGPACK = "one map that ends where the file ends"
    NPY = "arrays up to the end of the file"
    HDF5 = "the superblock names the end of the file, and says that nobody writes"
    PICKLE = "the STOP opcode ends the file; every opcode before it is whole"
    TENSORFLOW = "the index ends with its footer; every data file of the step is there"
    NAMED = "nothing: only the config knows the format"
    TRANSFORMERS = (
        "`trainer_state.json`, which is written last, is whole; every file that an index names is "
        "there, and every file of weights is complete"
    )


@dataclass(frozen=True, slots=True)
class Marker:
    """A file that commits the step in whose folder it is: a program writes it last."""

    file: str
    owner: str
    """Whose it is, as people call it."""
    prefix: str = ""
    """How the name of a step begins if the file commits it."""
    is_json: bool = False
    """Whether it must be a whole JSON object."""
    is_renamed: bool = False
    """Whether it is last only because it is renamed to its name. A bucket has no rename, so there
    it commits nothing."""

    def __str__(self) -> str:
        """Say when it commits the step."""
        how = (", and is whole" if self.is_json else "") + (", by a rename" * self.is_renamed)
        return f"`{self.file}` is written last{how}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A row of the table."""

    writer: str
    """The programs that write it."""
    example: str
    """The name of a step; a folder's name ends with `/`."""
    structure: Structure | None = None
    """What must be complete; None: the program commits the step, and nothing else is asked."""
    marker: Marker | None = None
    """The file that commits it; None: none does."""
    rename: str | None = None
    """The rename that commits it on a disk, as people read it; None: none does."""

    @property
    def commit(self) -> str:
        """What commits it, as people read it; empty: nothing does."""
        marker = None if self.marker is None else str(self.marker)
        return ", or ".join(each for each in (marker, self.rename) if each is not None)

    @property
    def needs_closed(self) -> bool:
        """Whether a step counts only if its writer closed it while alive."""
        return self.structure is not None


_ORBAX = Marker(MARKER, "Orbax")
_AXLEARN = Marker("index", "AXLearn", prefix="step_")
_LEVANTER = Marker("metadata.json", "Levanter", prefix="step-", is_json=True)
_DCP = Marker(".metadata", "PyTorch", is_renamed=True)
_RENAMED = "a rename with a commit time in the metadata"
_NESTED = "`state/` is renamed to its final name, with a commit time in `_CHECKPOINT_METADATA`"

LAYOUTS = (
    Layout("Orbax: `CheckpointManager`, v0 and v1", "100/", marker=_ORBAX, rename=_RENAMED),
    Layout(
        "Orbax with a step prefix; Kauldron; Tunix; MaxText",
        "ckpt_100/",
        marker=_ORBAX,
        rename=_RENAMED,
    ),
    Layout(
        "Orbax `StandardCheckpointer`, as in its guides", "ckpt100/", marker=_ORBAX, rename=_RENAMED
    ),
    Layout("Orbax, saved into a folder of the step", "100/state/", rename=_NESTED),
    Layout(
        "Orbax emergency checkpoints, local and persistent", "100/", marker=_ORBAX, rename=_RENAMED
    ),
    Layout("AXLearn", "step_00000100/", marker=_AXLEARN),
    Layout("Levanter", "step-100/", marker=_LEVANTER),
    Layout(
        "PyTorch distributed checkpoints (DCP), torchtitan",
        "step-100/",
        marker=_DCP,
    ),
    Layout("Hugging Face `Trainer`", "checkpoint-100/", Structure.TRANSFORMERS),
    Layout("clu, TensorFlow", "ckpt-100.index", Structure.TENSORFLOW),
    Layout("flax `save_checkpoint`", "checkpoint_100", Structure.MSGPACK),
    Layout("flax `to_bytes`", "state_100.msgpack", Structure.MSGPACK),
    Layout("equinox", "model-100.eqx", Structure.NPY),
    Layout("PyTorch `torch.save`", "ckpt-100.pt", Structure.ZIP),
    Layout("PyTorch `torch.save`", "epoch10.pth", Structure.ZIP),
    Layout("Lightning", "epoch=3-step=100.ckpt", Structure.ZIP),
    Layout("Keras", "model.100.keras", Structure.ZIP),
    Layout("Keras", "ckpt-100.weights.h5", Structure.HDF5),
    Layout("Keras, h5py", "model_100.hdf5", Structure.HDF5),
    Layout("safetensors", "model-100.safetensors", Structure.SAFETENSORS),
    Layout("numpy `savez`", "params_100.npz", Structure.ZIP),
    Layout("numpy `save`", "params_100.npy", Structure.NPY),
    Layout("pickle", "state_100.pkl", Structure.PICKLE),
    Layout("pickle", "state_100.pickle", Structure.PICKLE),
)
"""The rows, in the order of the page."""

MARKERS = tuple(dict.fromkeys(row.marker for row in LAYOUTS if row.marker is not None))
"""The markers of all rows, each once."""

_STRUCTURES = {
    "." + row.example.rpartition(".")[2]: row.structure
    for row in LAYOUTS
    if row.structure is not None and "." in row.example
}
"""The structure of a file, by its suffix."""

_FOLDER = re.compile(r"(?:[A-Za-z][\w.-]*[_-]|ckpt|checkpoint)?([0-9]{1,18})")
"""`[prefix_][zero padding]step`, or `ckpt` and the step: a folder, or a file without a suffix."""

_NUMBER = re.compile(r"[0-9]{1,18}")
_FLAX = re.compile(r"(?:[A-Za-z]\w*_)?\d{1,18}", re.ASCII)
"""The name of a file without a suffix."""

_END = r"[_.=-]?(\d{1,18})(?!\d|\.\d|-of-)(?=$|[\W_])"
_BEGIN = r"(?:^|[\W_])"
_BY_WORD = tuple(
    re.compile(f"{_BEGIN}(?:{words}){_END}", re.IGNORECASE | re.ASCII)
    for words in (
        "(?:global_?)?steps?|iterations?|iters?|updates?",
        EPOCH,
        "ckpt|cp|checkpoint|chkpt|model|net|weights|state|params|save|saved|snapshot",
    )
)
"""The number of a file follows a word that says what it counts; the first kind that is there."""
_PART = re.compile(
    rf"{_BEGIN}(?:(?:rank|shard|part|mp|tp|pp|dp|zero)[_=-]?(?:\d|rank)"
    r"|(?:rng|optim|optimizer|scheduler|scaler|tmp|temp|partial)(?![A-Za-z]))|\d-of-\d",
    re.IGNORECASE | re.ASCII,
)
"""The name of one of several files of a step, or of one that is being written."""


def step_of(name: str) -> int | None:
    """Parse the step from the name of a checkpoint, a folder or a file; None: it names no step."""
    place = step_place(name)
    return None if place is None else int(name[slice(*place)])


def step_place(name: str) -> tuple[int, int] | None:
    """Return where the digits of the step begin and end in the name of a checkpoint; None: it names
    no step."""
    if TEMPORARY in name:
        return None
    if match := _FOLDER.fullmatch(name):
        return match.span(1)
    stem = _stem(name)
    return _step_in(stem) if stem else None


def saved_step(step: int, name: str) -> SavedStep:
    """Return the `step` that a layout has parsed from `name`, with the epochs before it there."""
    return SavedStep(step, epochs_in(name[: _begin_of(step, name)]))


_Place = TypeVar("_Place")


def newest_first(steps: Iterable[tuple[int, str, _Place]]) -> list[tuple[int, _Place]]:
    """Return steps as (step, place), newest first; each comes with its name and its place.

    Of steps with epochs in their names, the epoch decides first. Between these and others, the step
    of the newest ones decides: nobody knows how their counts compare.
    """
    every = sorted(steps, key=_step_and_name, reverse=True)
    epochs = {
        name: saved.epochs
        for step, name, _ in every
        if epochs_in(name) and (saved := saved_step(step, name)).epochs
    }
    if epochs:
        plain = [each for each in every if each[1] not in epochs]
        in_epochs = [each for each in every if each[1] in epochs]
        in_epochs.sort(key=lambda each: epochs[each[1]], reverse=True)
        every = list(merge(plain, in_epochs, key=_step_and_name, reverse=True))
    return [(step, place) for step, _, place in every]


def _step_and_name(step: tuple[int, str, object]) -> tuple[int, str]:
    return step[:2]


def markers_of(name: str, *, in_bucket: bool) -> tuple[Marker, ...]:
    """Return the markers that commit the step in a folder `name`, on a file system or in a
    bucket."""
    return tuple(
        marker
        for marker in MARKERS
        if name.startswith(marker.prefix) and not (in_bucket and marker.is_renamed)
    )


def structure_of(name: str, *, is_folder: bool) -> Structure | None:
    """Return how the completeness of the step `name` is checked; None: it is not, because only a
    marker or a rename can commit such a step."""
    if step_of(name) is None:
        return None
    if is_folder:
        return Structure.TRANSFORMERS if name.startswith("checkpoint-") else None
    stem = _stem(name)
    if not stem:
        return Structure.MSGPACK if _FLAX.fullmatch(name) else None
    return _STRUCTURES[name[name.rindex(".") :]]


def structure_of_own(name: str, *, is_folder: bool) -> Structure | None:
    """Return the same for a step whose name the config describes: a file of a known suffix is
    checked, another one is not."""
    if is_folder:
        return None
    return _STRUCTURES[name[name.rindex(".") :]] if _stem(name) else Structure.NAMED


def _begin_of(step: int, name: str) -> int:
    """Return where the `step` begins in a name: where the table says, or else the last number that
    is the same."""
    place = step_place(name)
    if place is not None and int(name[slice(*place)]) == step:
        return place[0]
    same = (each.start() for each in _NUMBER.finditer(name) if int(each[0]) == step)
    return max(same, default=0)


def _stem(name: str) -> str:
    """Return the name of a file without its suffix, if that is one of the table; else nothing."""
    stem, dot, suffix = name.rpartition(".")
    return stem.removesuffix(".weights") if dot + suffix in _STRUCTURES else ""


def _step_in(stem: str) -> tuple[int, int] | None:
    if len(stem) > 255 or _PART.search(stem):
        return None
    if stem.isascii() and stem.isdecimal() and len(stem) <= 18:
        return 0, len(stem)
    return next((found[-1].span(1) for each in _BY_WORD if (found := [*each.finditer(stem)])), None)
