"""Which chips of a TPU host a process sees: `TPU_VISIBLE_CHIPS`, a list of indices.

`TPU_VISIBLE_DEVICES` is its older name, which libtpu still reads (its own messages say so). No
document says what libtpu does with a list that names other things than its chips, so such a list is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from supervisor.config.generations import GENERATIONS
from supervisor.config.gpus import split_names
from supervisor.config.topology import SliceShape

TPU_VISIBLE_CHIPS = "TPU_VISIBLE_CHIPS"
TPU_VISIBLE_DEVICES = "TPU_VISIBLE_DEVICES"

_INDEX = re.compile(r"[0-9]+")


def variable(environ: Mapping[str, str]) -> str:
    """Returns the name of the variable that `environ` uses: the older one only if it is set
    alone."""
    is_older = TPU_VISIBLE_CHIPS not in environ and TPU_VISIBLE_DEVICES in environ
    return TPU_VISIBLE_DEVICES if is_older else TPU_VISIBLE_CHIPS


def visible_chips_problem(text: str, num_chips: int | None, tpu: SliceShape | None) -> str | None:
    """Returns why a job cannot run if the variable is `text`; None: no reason is known.

    `num_chips` is the number of chips of this host that the job uses (None: not known); `tpu` is
    the slice (None: the config does not name it).
    """
    return next(_problems(text, num_chips, tpu), None)


def _problems(text: str, num_chips: int | None, tpu: SliceShape | None) -> Iterator[str]:
    names = split_names(text)
    if not names:
        yield "is empty, which names no chip: unset it, or name the chips that the job may use"
    known = GENERATIONS.values() if tpu is None else (tpu.generation_facts,)
    last = max(size for generation in known for size in generation.parts) - 1
    for name in names:
        if not _INDEX.fullmatch(name) or len(name) > 3 or int(name) > last:
            yield f"has {name!r}, which is no chip of a TPU host: give indices from 0 to {last}"
        if names.count(name) > 1:
            yield f"names chip {name} twice, and the job would count one as two: name each once"
    if num_chips is not None and len(names) < num_chips:
        yield (
            f"shows {len(names)} of the {num_chips} chips that init.devices asks for (value "
            f"{text!r}): name as many, unset it, or ask for {len(names)} (init.devices.count)"
        )
