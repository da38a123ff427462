"""The command line, the statistics and the JSON output that all benchmarks share.

    python -m benchmarks.NAME [--quick] [--json FILE]

The JSON has `benchmark`, `machine`, `figures` (numbers by name, with the unit in the name),
`samples` (the measurements that the figures are computed from) and `left_out` (what could not be
measured here, with the reason). `python -m benchmarks.tables` makes the tables of the docs from it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for a two-sided interval of 95 %, for 1, 2, ... degrees of freedom. For more, the
last one is used, which makes the interval a little too wide."""
_PACKAGES = ("jax", "jaxlib", "orbax-checkpoint", "flax")


@dataclass
class Report:
    """The results of one benchmark."""

    benchmark: str
    figures: dict[str, float] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def figure(self, name: str, value: float) -> None:
        """Add a figure that was measured once."""
        self.figures[name] = _rounded(value)

    def spread(self, name: str, unit: str, values: Sequence[float]) -> None:
        """Add the median of `values` as NAME_UNIT, and their least and greatest as NAME_least_UNIT
        and NAME_most_UNIT."""
        self.samples[f"{name}_{unit}"] = [_rounded(value) for value in values]
        if values:
            self.figures[f"{name}_{unit}"] = _rounded(statistics.median(values))
            self.figures[f"{name}_least_{unit}"] = _rounded(min(values))
            self.figures[f"{name}_most_{unit}"] = _rounded(max(values))

    def ratio(self, name: str, over: str, under: str) -> None:
        """Add the figure NAME: the figure `over` divided by `under`; nothing if one is missing."""
        if over in self.figures and self.figures.get(under):
            self.figures[name] = _rounded(self.figures[over] / self.figures[under])

    def paired(self, name: str, over: Mapping[int, float], under: Mapping[int, float]) -> None:
        """Add the figure NAME: the geometric mean of `over` / `under`, with its 95 % confidence
        interval as NAME_low and NAME_high.

        Values with the same key are a pair; a value without a partner does not count. With fewer
        than two pairs there is no figure.
        """
        both = sorted(over.keys() & under.keys())
        ratios = [math.log(over[number] / under[number]) for number in both]
        self.samples[name] = [_rounded(math.exp(ratio)) for ratio in ratios]
        if len(ratios) < 2:
            return
        mean = statistics.mean(ratios)
        t = _T95[min(len(ratios) - 1, len(_T95)) - 1]
        half = t * statistics.stdev(ratios) / math.sqrt(len(ratios))
        self.figures[name] = _rounded(math.exp(mean))
        self.figures[f"{name}_low"] = _rounded(math.exp(mean - half))
        self.figures[f"{name}_high"] = _rounded(math.exp(mean + half))

    def least(self, name: str, of: Iterable[str]) -> None:
        """Add the figure NAME: the least of the figures `of`; missing ones do not count."""
        if there := self._there(of):
            self.figures[name] = min(there)

    def most(self, name: str, of: Iterable[str]) -> None:
        """Add the figure NAME: the greatest of the figures `of`; missing ones do not count."""
        if there := self._there(of):
            self.figures[name] = max(there)

    def _there(self, figures: Iterable[str]) -> list[float]:
        return [self.figures[figure] for figure in figures if figure in self.figures]

    def finish(self, path: Path | None) -> None:
        """Print the figures and what was left out; write the JSON to `path`, if given."""
        for name, value in self.figures.items():
            print(f"{name}: {value:g}")
        for name, why in self.left_out.items():
            print(f"{name}: left out: {why}")
        if path is not None:
            body = {"benchmark": self.benchmark, "machine": machine(), **self._body()}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    def _body(self) -> dict[str, Any]:
        return {"figures": self.figures, "samples": self.samples, "left_out": self.left_out}


@dataclass(frozen=True)
class Options:
    """The options of a benchmark's command line."""

    quick: bool
    json: Path | None


def options(description: str | None) -> Options:
    """Parse the command line of a benchmark; `description` is for its help."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to leave what was found")
    given = parser.parse_args()
    return Options(given.quick, given.json)


def machine() -> Mapping[str, Any]:
    """Returns the properties of this machine that affect the numbers."""
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in cpus if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _rounded(value: float) -> float:
    """Returns `value` to four significant digits: a timing is no more precise."""
    return float(f"{value:.4g}")
