"""Writes a `Launch` as text for an agent, and reads it.

It is JSON by the types of its fields, as pydantic reads and writes them. The rules stay with the
leader, which judges, and so does the check of checkpoints, which one must do for all. Compilations
ahead of time are not used on several machines.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from supervisor.engines.fleet.fleet_messages import MessageError
from supervisor.engines.launch import Launch, Part


@cache
def _adapter() -> TypeAdapter[Launch]:
    return TypeAdapter(Launch)


def text_of(launch: Launch, part: Part) -> str:
    """Returns the text of the `part` of an attempt."""
    plan = replace(launch.plan, verifies_checkpoints=False, prefetch=False)
    ours = replace(launch, plan=plan, rules=(), part=part)
    return _adapter().dump_json(ours).decode()


def launch_of(text: str) -> Launch:
    """Returns the launch in a text.

    Raises:
        MessageError: there is none.
    """
    try:
        return _adapter().validate_json(text)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise MessageError(f"a launch is not understood: {where}: {first['msg']}") from error
