"""Check of the versions that a program would run with: whether they need one another as they are,
and whether they are those that supervise was tested with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import supervisor
from supervisor import __version__
from supervisor.doctor.examination import Finding, Level, NoAnswer, note, ok, wrong
from supervisor.doctor.interpreter import Program, QuestionError, ask
from supervisor.protocol.reading import read

VERSIONS = "versions"
PACKAGES = ("jax", "jaxlib", "orbax-checkpoint", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
"""The packages whose versions matter, as they are named on the index."""
_DEVICE_PACKAGES = PACKAGES[3:]
TIMEOUT = 15.0
"""Seconds for an interpreter to answer: it takes a tenth of one."""
BOUND = TIMEOUT + 5.0
"""Seconds for the whole check."""
_ASK = f"""\
import json, platform, sys
from importlib import metadata
found = {{}}
for name in {PACKAGES!r}:
    try:
        found[name] = [metadata.version(name), metadata.requires(name) or []]
    except metadata.PackageNotFoundError:
        pass
print(json.dumps({{"python": platform.python_version(), "at": sys.executable, "found": found}}))
"""
_LOCK = Path(supervisor.__file__).parent / "provision" / "requirements-tpu.lock"
"""The tested versions that this package has with it: the same as in all other locks."""
_LOCKED = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[\w.]+)"
    r"(?: ; python_full_version (?P<than><|>=) '(?P<python>[\d.]+)')? \\$",
    re.M,
)
_NEED = re.compile(
    r"(?P<name>[\w-]+)(?:\[[^]]*\])? *\(?(?P<bounds>[^;)]*)\)? *(?:;(?P<marker>.*))?"
)
_BOUND = re.compile(r"(?P<than>[<>=!~]=|[<>]) *(?P<version>[\w.*+]+)")
_MAX_LOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Installed:
    """What an interpreter says that it has."""

    python: str
    at: str
    versions: Mapping[str, str]
    needs: Mapping[str, Sequence[str]]
    """What each package needs, as its metadata says it."""

    def __str__(self) -> str:
        named = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"python {self.python}, {named or 'no jax'} ({self.at})"


def installed_for(program: Program) -> Installed:
    """Ask the interpreter of `program` what it has, without importing it.

    Raises:
        QuestionError: it does not answer.
    """
    told = ask(program, _ASK, TIMEOUT, {})
    found = told["found"]
    return Installed(
        str(told["python"]),
        str(told["at"]),
        {name: str(version) for name, (version, _) in found.items()},
        {name: [*map(str, needs)] for name, (_, needs) in found.items()},
    )


def installed_here() -> dict[str, str]:
    """Returns the versions of `PACKAGES` in our own interpreter, without importing them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def versions(program: Program) -> Iterator[Finding]:
    """Yields the versions that `program` would run with, and what does not fit."""
    phases = f"phase {', '.join(map(repr, program.phases))}: " if program.phases else ""
    if not program.words:
        text = f"{phases}its program is not started by python, so neither its versions are known"
        yield note(VERSIONS, f"{text} nor how it sees the devices")
        return
    try:
        found = installed_for(program)
    except QuestionError as error:
        level, remedy = Level.WRONG, "name an interpreter that works, as in .venv/bin/python"
        if program.is_recorded and not Path(program.words[0]).is_absolute():
            level, remedy = Level.NOTE, "go to the working directory of the job, or give its config"
        text = f"{phases}{program} does not say what it has: {error}"
        yield NoAnswer(VERSIONS, level, text, remedy)
        return
    misfits = [*misfitting(found)]
    for text in misfits:
        yield wrong(
            VERSIONS, f"{phases}{text}", f"{found.at} -m pip install -U {_with_extra(found)}"
        )
    yield from _of_supervise(program, found, phases)
    if not misfits:
        yield ok(VERSIONS, f"{phases}{found}{_tested(found)}")


def _of_supervise(program: Program, found: Installed, phases: str) -> Iterator[Finding]:
    """Yields where a package is older than our extras want: our trainer fails with it."""
    try:
        needs = metadata.requires("supervise-jax") or []
    except metadata.PackageNotFoundError:  # it runs from its sources
        return
    ours = [each for each in needs if "'trainer'" in each]
    for text in _unmet(ours, found.versions, {"trainer"}):
        told = f"{phases}supervise {__version__} is made for {text}"
        remedy = f"{found.at} -m pip install -U jax orbax-checkpoint"
        yield (wrong if program.is_ours else note)(VERSIONS, told, remedy)


def _with_extra(found: Installed) -> str:
    """Returns jax as pip is asked for it, with what it has for accelerators there."""
    extras = {"libtpu": "tpu", "jax-cuda12-plugin": "cuda12", "jax-cuda13-plugin": "cuda13"}
    named = ",".join(extra for name, extra in extras.items() if name in found.versions)
    return f"'jax[{named}]'" if named else "jax"


def misfitting(found: Installed) -> Iterator[str]:
    """Yields which packages need another version of one another."""
    extras = {"tpu", "cuda12", "cuda13"}
    for name, needs in found.needs.items():
        for text in _unmet(needs, found.versions, extras):
            yield f"{name} {found.versions[name]} needs {text}"


def _unmet(needs: Sequence[str], versions: Mapping[str, str], extras: set[str]) -> Iterator[str]:
    """Yields the requirements in `needs` that `versions` do not meet. A package that is not
    installed meets them, and one with a marker other than the `extras` too: nobody knows whether it
    holds. What an extra needs is asked of what the extra brings alone."""
    told = set[str]()
    for need in needs:
        match = _NEED.match(need)
        if match is None or (name := match["name"].lower().replace("_", "-")) not in versions:
            continue
        marker = re.fullmatch(r" *extra *== *['\"](\w+)['\"] *", match["marker"] or "")
        if match["marker"] and (marker is None or marker[1] not in extras):
            continue
        if marker and "trainer" not in extras and name not in _DEVICE_PACKAGES:
            continue
        bounds = [(one["than"], one["version"]) for one in _BOUND.finditer(match["bounds"])]
        if all(_holds(versions[name], *bound) for bound in bounds):
            continue
        text = f"{name} {match['bounds'].strip()}, and {versions[name]} is installed"
        if text not in told:
            told.add(text)
            yield text


def _holds(version: str, than: str, bound: str) -> bool:
    have, want = _numbers(version), _numbers(bound.removesuffix(".*"))
    if bound.endswith(".*") or than == "~=":
        size = len(want) - (than == "~=")
        same = have[:size] == want[:size]
        return not same if than == "!=" else same and (than != "~=" or have >= want)
    size = max(len(have), len(want))
    have, want = ((*one, *[0] * (size - len(one))) for one in (have, want))
    answers = {
        "<": have < want,
        "<=": have <= want,
        ">": have > want,
        ">=": have >= want,
        "==": have == want,
        "!=": have != want,
    }
    return answers[than]


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release; what follows them (`rc1`, `.dev2`, `+cuda12`) is left
    out."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match is not None else ()


def _tested(found: Installed) -> str:
    """Returns which of the versions are others than the tested ones, in words."""
    tested = versions_in_lock(found.python)
    others = [
        f"{name} {tested[name]}"
        for name, version in found.versions.items()
        if name in tested and tested[name] != version
    ]
    if not found.versions:
        return ""
    return f"; tested with {', '.join(others)}" if others else ", which were tested together"


@cache
def versions_in_lock(python: str) -> dict[str, str]:
    """Returns the versions that supervise was tested with, on the Python of this version."""
    text = read(_LOCK, _MAX_LOCK).decode()
    found = {}
    for one in _LOCKED.finditer(text):
        is_ours = one["name"] in PACKAGES
        if is_ours and (not one["than"] or _holds(python, one["than"], one["python"])):
            found[one["name"]] = one["version"]
    return found
