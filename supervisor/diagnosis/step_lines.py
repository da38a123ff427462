"""Finds in a line of output the numbers that may be the training step.

A line alone proves little: `step 12` may be a step of an evaluation, of a setup, or within an
epoch. So each number found here has a *form*: what stands around it, without numbers. Only
`step_recogniser` concludes that the number of a form is the step, from how it goes on. A line that
says that it is about something else (an evaluation, a checkpoint, a resume) has no such number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

LONGEST = 2048
"""Bytes of the longest line that is looked at."""
_HEAD = 512
"""Characters at the beginning of a line that are looked at."""
_MAX_NUMBERS = 3
"""How many numbers of one line may be the step."""
_MAX_FORM = 48
"""Characters kept of the text before a number. More would hold ids that change."""
_MAX_BETWEEN = 40
"""Characters after a number in which the first word is looked for."""

_HINTS = (b"step", b"iter", b"loss", b"it/s", b"s/it", b"epoch ", b" [=", b" \xe2\x94\x81", b"] [")
"""One of these is in every line that says anything here, in lower case."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,100}(?:\x07|\x1b\\)|[@-Z\\^_])")
_NUMBER = re.compile(r"[-+]?\d[\d.,:]*(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[A-Za-z]+")

_NAMED = re.compile(
    r"(?<![A-Za-z0-9_])(?P<name>[A-Za-z_]*(?:step|iteration|iter)s?)(?:_(?:i|idx|num))?"
    r"[\"']?\s{0,12}[:=#]?\s{0,12}[\[(]?\s{0,12}(?P<number>\d{1,9})(?!\w|%|[.,]\d)",
    re.IGNORECASE,
)
"""A number after the name of a step. More digits are those of a time stamp."""
_OWN = re.compile(
    r"(?:(?:global|train|training|optimizer|optim|update|completed)_?)?"
    r"(?:steps?|iterations?|iters?)",
    re.IGNORECASE,
)
"""Names of the training step. Other words that end like them are not: `max_step`, `timestep`."""
_CLU = re.compile(r"(?:^|\] )\[(?P<number>\d{1,9})\] [A-Za-z][\w/ ]*=")
"""The metric writer of CLU: `logging_writer.py:48] [100] loss=2.3`."""
_OF_TOTAL = re.compile(
    r"(?:^|\] |\btrain(?:ing)?:? )"
    r"\[\s{0,12}(?P<number>\d{1,9})/\s{0,12}(?P<total>\d{1,9})\]:? (?!.{0,200}epoch)",
    re.IGNORECASE,
)
"""A count out of a total: `[10/300] loss=0.3`. A loss must be in the line, and no epoch behind."""
_TWO_COUNTS = re.compile(r"\[[\s\d]{1,20}/[\s\d]{1,20}\].{0,100}\[[\s\d]{1,20}/[\s\d]{1,20}\]")
"""Two counts: one of them may be that of the epochs, and the other is then within an epoch."""
_BAR = re.compile(
    r"^(?P<name>[^|%\d]{0,60}?)\s{0,4}\d{1,3}%\|[^|]{0,200}\|\s{0,12}"
    r"(?P<number>\d{1,9})/(?P<total>\d{1,9}) \[[\d:]{1,12}<[^,\]]{1,20},"
    r"\s{0,12}[\d.?]{1,12} ?(?:it/s|s/it|steps?/s|s/step)"
)
"""A bar of tqdm. Its unit is that of iterations: examples, bytes and files are no steps."""
_OF_TRAINING = re.compile(r"train|step|iter|optim|fine.?tun", re.IGNORECASE)
_KERAS = re.compile(r"^\s*(?P<number>\d{1,9})/(?P<total>\d{1,9}) (?:\[[=>.]{2,}\]|\s*━)")
"""A bar of Keras: it counts the batches of an epoch."""
_KERAS_EPOCH = re.compile(r"^Epoch (\d{1,6})/\d{1,6}\s*$")

_OTHER = re.compile(
    r"(?<![a-z])(?:eval|val(?![a-z])|valid|test|infer|predict|sampling|generat|sanity|warm|resum|"
    r"restor|load|from(?![a-z])|until|every|next|max|total|skip|inner|micro|accum|compil|profil|"
    r"rollout|decod|denois|env(?![a-z])|starting)",
    re.IGNORECASE,
)
"""What stands before a number that is no completed step of the training."""
_FILE = re.compile(r"([\w-]{1,40})\.(?:py|cc):\d")
"""A source file in the prefix of a log, such as `train_and_eval.py:12]`."""
_OTHER_BAR = re.compile(
    r"epoch|process|map|filter|tokeni|pack|group|shuffl|read|writ|download|upload|fetch|build",
    re.IGNORECASE,
)
"""The same, of the names of bars."""
_OTHER_AFTER = re.compile(r"eval|val|test|infer|predict|sanity")
"""The same, of the first word behind the number."""
_SAVES = re.compile(r"checkpoint|ckpt|\bsav(?:e|es|ed|ing)\b|restor|resum|snapshot", re.IGNORECASE)
"""What is said of a save, anywhere in the line: the number is the step of a checkpoint."""
_LOSS = re.compile(
    r"(?<![A-Za-z0-9_/.])(?P<parts>(?:[A-Za-z][A-Za-z0-9]{0,30}[_/.-]){0,6})"
    r"loss[\"']?\s{0,12}[:=]?\s{0,12}[\"']?"
    r"(?P<loss>[-+]?(?:\d{1,18}(?:\.\d{1,18})?(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))\b",
    re.IGNORECASE,
)
"""A number after the name of a loss; `parts` of that name are before it (`train/`)."""
_WORDS_BEFORE = re.compile(r"(?:[A-Za-z][A-Za-z0-9]{0,30} ){1,3}$")
"""The words right before a name: `best training ` before `loss`."""
_TRAINED = frozenset(("train", "training"))
_WHOLE = frozenset(("total", "mean", "avg", "average", "batch", "step"))
"""Parts of the name of a loss that is still that of the training."""
_OTHER_LOSS = re.compile(
    r"(?<![a-z])(?:eval\w*|val|valid\w*|test\w*|dev|held\w*|best|lowest|min\w*|max\w*|worst|"
    r"prev\w*|last|old|initial|aux\w*|kl|reg\w*|l1|l2|policy|value|actor|critic|entropy|reward|"
    r"generator|discriminator|g|d|z|router|balanc\w*|load|commitment|perceptual|recon\w*|distill\w*|"
    r"teacher|student|target|ema|running|smooth\w*|moving)(?![a-z])",
    re.IGNORECASE,
)
"""Words before `loss` that say that it is not the loss of the step: of something else, of a part,
or one in which a single NaN stays."""
_EVALUATES = re.compile(
    r"(?<![a-z])(?:eval\w*|val|valid\w*|test\w*|dev)(?:[\]:)]|\s+(?:step|iter\w*|epoch|batch)\b)",
    re.IGNORECASE,
)
"""What is said of an evaluation: `[eval] loss=1.2`, `Validation step 20: loss=1.2`."""

_EPOCH = re.compile(
    r"epoch[\"']?\s{0,12}[:=#]?\s{0,12}[\[(]?\s{0,12}(\d{1,6})(?!\d|\.\d)", re.IGNORECASE
)
"""A whole epoch: then the step in the same line may be one within this epoch."""


class Sighting(NamedTuple):
    """A number that may be the step."""

    form: str
    """What stands around the number: equal for all lines of one kind."""
    step: int
    loss: float | None
    """The loss in the same line; None: there is none."""
    epoch: int | None = None
    """The epoch in the same line, if the number may be that of a step within it."""
    needs_loss: bool = False
    """Whether it is a bar without a name. Many things other than the training have one, so a loss
    must be printed meanwhile."""
    is_bar: bool = False
    """Whether it is a bar that is drawn before its first step: what it begins with is no step of
    this attempt."""


class Line(NamedTuple):
    """What one line says."""

    sightings: tuple[Sighting, ...]
    """The most trusted one first."""
    loss: float | None
    epoch: int | None
    """The epoch of Keras, from 1, that goes on after this line; None: none does, as when the model
    is evaluated with a bar of the same kind."""


def may_tell(raw: bytes) -> bool:
    """Whether it is worth reading this line; quick, because an output may have millions."""
    return len(raw) <= LONGEST and has_hint(raw[:_HEAD])


def has_hint(raw: bytes) -> bool:
    """Whether any of these lines may say anything."""
    lower = raw.lower()
    return any(hint in lower for hint in _HINTS)


def read_line(text: str, epoch: int | None) -> Line:
    """Returns what a line says; `epoch` is the epoch of Keras under way."""
    text = shown(text)[:_HEAD]
    if (began := _KERAS_EPOCH.match(text)) is not None:
        return Line((), None, int(began[1]))
    loss = loss_in(text)
    if _SAVES.search(text) is not None:
        return Line((), None, epoch)
    bar = _KERAS.match(text)
    is_over = bar is not None and int(bar["number"]) >= int(bar["total"])
    return Line(tuple(_sightings(text, loss, epoch)), loss, None if is_over else epoch)


def shown(text: str) -> str:
    """Returns a line without colours and the backspaces behind a bar."""
    return (_ANSI.sub("", text) if "\x1b" in text else text).rstrip("\b")


def loss_in(text: str) -> float | None:
    """Returns the loss of the training that a line tells; None: it tells none. One that says that
    it is of the training comes first, then the first that does not say that it is another."""
    text, plain, end = text[:_HEAD], None, 0
    for found in _LOSS.finditer(text):
        words = _WORDS_BEFORE.search(text, end, found.start())
        end = found.end()
        before = words[0] if words is not None else ""
        parts = frozenset(re.split(r"[_/.-]", found["parts"].lower())) - {""}
        if not parts <= _TRAINED | _WHOLE or _OTHER_LOSS.search(before) is not None:
            continue
        if not _TRAINED.isdisjoint({*parts, *before.lower().split()}):
            return float(found["loss"])
        if plain is None and _EVALUATES.search(text, 0, found.start()) is None:
            plain = float(found["loss"])
    return plain


def _sightings(text: str, loss: float | None, epoch: int | None) -> Iterator[Sighting]:
    if (bar := _BAR.match(text)) is not None:
        name = bar["name"].strip(" :")
        of_training = _OF_TRAINING.search(name) is not None
        if (of_training or not name) and not _is_other(name) and not _OTHER_BAR.search(name):
            form = _form(name, "bar", bar["total"])
            number, needs_loss = int(bar["number"]), not of_training
            yield Sighting(form, number, loss, needs_loss=needs_loss, is_bar=True)
    elif (bar := _KERAS.match(text)) is not None:
        if epoch is not None:
            done = (epoch - 1) * int(bar["total"]) + int(bar["number"])
            yield Sighting(_form("", "keras", bar["total"]), done, loss)
    elif (written := _CLU.search(text)) is not None:
        yield Sighting("clu", int(written["number"]), loss)
    elif loss is not None and (counted := _OF_TOTAL.search(text)) is not None:
        before, within = text[: counted.start()], _EPOCH.search(text)
        if not _is_other(before) and _TWO_COUNTS.search(text) is None:
            epoch = int(within[1]) if within is not None else None
            form = _form(before, "of total", counted["total"])
            yield Sighting(form, int(counted["number"]), loss, epoch)
    else:
        found = list(_named(text, loss))
        yield from (seen for seen in found if seen.epoch is None)
        yield from (seen for seen in found if seen.epoch is not None)


def _named(text: str, loss: float | None) -> Iterator[Sighting]:
    within = _EPOCH.search(text)
    for match in islice(_NAMED.finditer(text), _MAX_NUMBERS):
        before, name = text[: match.start()], match["name"].lower()
        if _is_other(before):
            return
        after = _WORD.search(text, match.end(), match.end() + _MAX_BETWEEN)
        word = after[0].lower() if after is not None else ""
        if _OWN.fullmatch(name) is None or _OTHER_AFTER.match(word) is not None:
            continue
        epoch = int(within[1]) if within is not None and "global" not in name else None
        yield Sighting(_form(before, name, word), int(match["number"]), loss, epoch)


def _is_other(text: str) -> bool:
    told = _FILE.sub(lambda file: "" if "train" in file[1] else file[0], text)
    return _OTHER.search(told) is not None


def _form(before: str, name: str, after: str) -> str:
    around = _SPACE.sub(" ", _NUMBER.sub("#", before))[-_MAX_FORM:]
    return f"{around}|{name}|{after}"
