"""Writes the SBOM of a release (CycloneDX 1.6, JSON): `python -m deploy.sbom FOLDER`.

It lists what `make run` installs beside this project, for each Python that the project supports.
Packages that the supervisor needs are `required`, those of our trainer `optional`. It is made of
pyproject.toml and requirements-run.lock alone, so the same commit gives the same bytes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
_PROJECT = "supervise-jax"
_LINUX = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
"""The environment in which markers are evaluated, apart from the version of Python."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A package of the lock, in one version."""

    name: str
    version: str
    pythons: tuple[str, ...]
    """The Pythons, such as `3.11`, for which this version is installed on Linux."""
    wanted_by: frozenset[str]
    """The packages that need it; our own name stands for pyproject.toml."""

    @property
    def purl(self) -> str:
        """The package's name for other tools: https://github.com/package-url/purl-spec."""
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(lock: str, pythons: Iterable[str]) -> list[Pin]:
    """Returns what the text of a lock, as `make lock` writes it, installs for any of `pythons`."""
    pythons = tuple(pythons)
    found = []
    for entry in re.split(r"\n(?=\S)", lock.strip()):
        required = Requirement(entry.partition("\\\n")[0])
        (version,) = (clause.version for clause in required.specifier)
        marker = required.marker
        installed = tuple(
            each
            for each in pythons
            if marker is None
            or marker.evaluate({**_LINUX, "python_version": each, "python_full_version": each})
        )
        wanted_by = re.findall(r"^    #(?: via| ) +(?!-)(\S+)", entry, re.MULTILINE)
        if installed:
            pin = Pin(required.name, version, installed, frozenset(wanted_by))
            found.append(pin)
    return found


def needed(roots: Iterable[str], locked: Iterable[Pin]) -> set[str]:
    """Returns the names of `roots` and of all packages that they need."""
    reached = set(roots)
    wanted_by: Mapping[str, set[str]] = {pin.name: set() for pin in locked}
    for pin in locked:
        wanted_by[pin.name] |= pin.wanted_by
    while more := {name for name, by in wanted_by.items() if by & reached} - reached:
        reached |= more
    return reached


def sbom(project: Mapping[str, Any], lock: str) -> dict[str, Any]:
    """Returns the SBOM of `project`, the table of pyproject.toml."""
    pythons = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    locked = pins(lock, pythons)
    required = needed(_names(project["dependencies"]), locked)
    ours = needed(_names(project["optional-dependencies"]["trainer"]), locked) | required
    shown = [pin for pin in locked if pin.name in ours]
    itself = f"{_PROJECT}@{project['version']}"
    direct = _names([*project["dependencies"], *project["optional-dependencies"]["trainer"]])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            **_timestamp(),
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": _PROJECT,
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": pin.purl,
                "name": pin.name,
                "version": pin.version,
                "scope": "required" if pin.name in required else "optional",
                "purl": pin.purl,
                "properties": [{"name": "supervise:pythons", "value": ", ".join(pin.pythons)}],
            }
            for pin in shown
        ],
        "dependencies": [
            {"ref": itself, "dependsOn": [pin.purl for pin in shown if pin.name in direct]},
            *(
                {
                    "ref": pin.purl,
                    "dependsOn": [
                        each.purl
                        for each in shown
                        if pin.name in each.wanted_by and {*pin.pythons} & {*each.pythons}
                    ],
                }
                for pin in shown
            ),
        ],
    }


def _names(requirements: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def _timestamp() -> dict[str, str]:
    """Returns the time of the commit, which `make dist` passes; without it nothing."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return {"timestamp": datetime.fromtimestamp(int(epoch), UTC).isoformat()} if epoch else {}


def main(folder: Path) -> None:
    """Write the SBOM of this checkout into `folder`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements-run.lock").read_text(encoding="utf-8")
    path = folder / f"{_PROJECT.replace('-', '_')}-{project['version']}.cdx.json"
    path.write_text(json.dumps(sbom(project, lock), indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
