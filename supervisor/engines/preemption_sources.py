"""Chooses the sources that may announce that this machine will be taken away (a preemption).

`adapters.platforms.preemption` asks them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.adapters.platforms import gce_metadata
from supervisor.adapters.platforms.allocation_end import AllocationEnd, slurm_end
from supervisor.adapters.platforms.preemption import AnnouncementCommand, AnnouncementFile
from supervisor.config.schema import Preemption
from supervisor.host.notice import Tell
from supervisor.ports import AnnouncementSource, ProcessStarter

_HOST_VARIABLE = "GCE_METADATA_HOST"
_PRODUCT = Path("/sys/class/dmi/id/product_name")


def preemption_sources(
    config: Preemption,
    environ: Mapping[str, str],
    starter: ProcessStarter,
    time_needed: Callable[[], float],
    tell: Tell,
    product: Path = _PRODUCT,
) -> list[AnnouncementSource]:
    """Returns the sources that `config` asks for.

    `starter` starts the command of the config, if there is one, with the environment `environ`.
    `time_needed` returns how many seconds before the end of an allocation the job must begin to
    save. `tell` gets a notice if the environment names no usable end.
    See `machine_sources` for `product`.
    """
    found = machine_sources(config.source, environ, product)
    end: tuple[float, str] | None = None
    if config.until is not None:
        end = config.until, "the time that preemption.until gives"
    elif config.source == "auto":
        end = slurm_end(environ, time.time(), tell)
    if end is not None:
        found.append(AllocationEnd(*end, time_needed))
    if config.file is not None:
        found.append(AnnouncementFile(Path(config.file).expanduser().absolute()))
    if config.command is not None:
        found.append(AnnouncementCommand(config.command, environ, starter))
    return found


def machine_sources(
    source: str, environ: Mapping[str, str], product: Path = _PRODUCT
) -> list[AnnouncementSource]:
    """Returns the sources that speak of this machine alone: in a job on several hosts, each host
    asks its own.

    `source` is that of the config. GCE_METADATA_HOST in `environ` names another metadata server, as
    it does for Google's libraries. The file `product` tells whether this is a machine of Google's
    cloud.
    """
    if source == "gce" or (source == "auto" and _on_gce(environ, product)):
        return gce_metadata.sources(environ.get(_HOST_VARIABLE) or gce_metadata.HOST)
    return []


def _on_gce(environ: Mapping[str, str], product: Path) -> bool:
    if environ.get(_HOST_VARIABLE):
        return True
    try:
        return product.read_text().startswith("Google")
    except OSError:
        return False
