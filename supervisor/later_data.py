"""Looks through the data of later phases while the job runs, so that a broken record is told in the
evening and not found in the night, when its phase begins.

Before the job starts, `check_first_records` has read some megabytes of each. All of them may take
an hour: a thread reads them with pauses, and takes some percent of a core. It decides nothing: what
it finds may be mended until the phase begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from supervisor.config.plan import PhasePlan
from supervisor.config.problems import ConfigError
from supervisor.config.training.data_files import DataError, check_all_records
from supervisor.config.training.resolved import loaders, parse
from supervisor.host.notice import Notice

_FIRST_PAUSE, _PAUSE = 2.0, 0.02
"""Seconds before the check, in which the job starts; and after each of its parts, which takes a
millisecond."""


def check_later_data(plans: Iterable[PhasePlan], tell: Callable[[Notice], object]) -> None:
    """Check the data of `plans`, the phases from the present one on, in a thread of its own. `tell`
    is called there."""
    trainers = [
        (number, plan.name, plan.params) for number, plan in enumerate(plans) if not plan.is_command
    ]
    if trainers:
        check = partial(_check, trainers, tell)
        threading.Thread(target=check, name="later data", daemon=True).start()


def _check(
    trainers: Iterable[tuple[int, str, Mapping[str, Any]]], tell: Callable[[Notice], object]
) -> None:
    time.sleep(_FIRST_PAUSE)
    for number, name, params in trainers:
        for told in problems(params, lambda: time.sleep(_PAUSE), is_present=number == 0):
            tell(Notice("data-unusable", f"phase {name!r}: {told}", phase=name))


def problems(
    params: Mapping[str, Any], pause: Callable[[], None], *, is_present: bool
) -> Iterable[str]:
    """Yields what is wrong with the data of a phase: of each dataloader the first record that is
    not as the config says. The present phase reads its training data itself, at once."""
    try:
        config = parse(params)
    except ConfigError:  # a file has gone meanwhile: the phase will tell
        return
    for where, loader in loaders(config.fit):
        if is_present and where == ("train_dataloader",):
            continue
        try:
            asks = loader.asks(config.init.grpo)
            check_all_records(loader, config.init.model.vocab_size, pause, asks=asks)
        except (DataError, OSError) as error:
            key = ".".join(("fit", *where))
            yield (
                f"{error}. The attempt that reads it will fail ({key}): mend it before then; the "
                "job goes on meanwhile"
            )
