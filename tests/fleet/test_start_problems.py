"""What is told of an agent that could not be started, from Ray's own texts."""

from __future__ import annotations

import pytest

from supervisor.engines.fleet.start_problems import start_problem

HEAD = """The actor died because of an error raised in its creation task, ray::Relay.__init__()
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
NOT_THERE = """RuntimeError: The actor with name Relay failed to import on the worker. This may be
because needed library dependencies are not installed in the worker environment:

ray::Relay.__init__() (pid=7)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
INSTALL = "install supervise 2.0 for the Python that runs Ray on each host"
FOLDER = "run the command in a folder that each host has"


@pytest.mark.parametrize(
    ("error", "problem", "remedy"),
    [
        (
            NOT_THERE + "ModuleNotFoundError: No module named 'supervisor'\n",
            "the Python that runs Ray there has no supervise",
            INSTALL,
        ),
        (
            NOT_THERE + "ModuleNotFoundError: No module named 'supervisor.engines.fleet'",
            "no agent starts there, perhaps of another version of supervise: ModuleNotFoundError: "
            "No module named 'supervisor.engines.fleet'",
            INSTALL,
        ),
        (
            "TypeError: Relay.__init__() takes 4 positional arguments but 5 were given",
            "no agent starts there, perhaps of another version of supervise: TypeError: "
            "Relay.__init__() takes 4 positional arguments but 5 were given",
            INSTALL,
        ),
        (
            "FileNotFoundError: the working directory /nope of the leader is not there",
            "the working directory /nope of the leader is not there",
            FOLDER,
        ),
    ],
)
def test_why_no_agent_starts_and_what_a_person_does(error: str, problem: str, remedy: str) -> None:
    assert start_problem(HEAD + error, "2.0") == (problem, remedy)
