"""Says why an agent cannot run on a host as that is set up, and what a person does about it.

Pure. Where the relay of an agent does not start, Ray tells the traceback of that host. Its last
line has the error: our modules are missing there, they are those of another version, or the relay
itself raises.
"""

from __future__ import annotations

import re

_MISSING = re.compile(r"No module named 'supervisor'")
_OWN = f"{FileNotFoundError.__name__}: "
"""The only error that a relay raises when it is made."""


def start_problem(error: str, version: str) -> tuple[str, str]:
    """Returns the problem and its remedy, of the text of Ray's error. `version` is the leader's."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason is known"
    if last.startswith(_OWN):
        return last.removeprefix(_OWN), "run the command in a folder that each host has"
    problem = f"no agent starts there, perhaps of another version of supervise: {last}"
    if _MISSING.search(last) is not None:
        problem = "the Python that runs Ray there has no supervise"
    return problem, f"install supervise {version} for the Python that runs Ray on each host"
