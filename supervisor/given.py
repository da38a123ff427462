"""Loads a command's secret variables: `env_file`, `env_secrets`.

It is read once, when the job is run, kept in memory alone, and known to the redactor as secret.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from supervisor.adapters.env_file import read_env_file
from supervisor.config.plan import PhasePlan
from supervisor.config.problems import ConfigError, Location, Problem
from supervisor.prepare import Prepared


class UnavailableSecretError(Exception):
    """A secret store does not answer now; the text says which."""


def with_secrets(prepared: Prepared) -> Prepared:
    """`prepared`, its plans with what their programs are to be given.

    Raises:
        ConfigError: a file or a secret cannot be used.
        UnavailableSecretError: it may pass.
    """
    problems: list[Problem] = []
    plans = []
    for index, plan in enumerate(prepared.plans):
        command = (*prepared.job.locations[index], "command")
        secrets: dict[str, str] = {}
        for where, get in ((("env_file",), _from_file), (("env_secrets",), _from_store)):
            try:
                secrets |= get(plan)
            except _UnusableError as error:
                location: Location = (*command, *where, *error.below)
                problems.append(prepared.job.source.problem(location, str(error)))
        plans.append(replace(plan, secrets=secrets))
    if problems:
        raise ConfigError(problems)
    return replace(prepared, plans=tuple(plans))


class _UnusableError(Exception):
    """What the config names cannot be used; `below` is the key inside the section."""

    def __init__(self, text: str, *below: str) -> None:
        super().__init__(text)
        self.below = below


def _from_file(plan: PhasePlan) -> dict[str, str]:
    if plan.env_file is None:
        return {}
    path = Path(plan.env_file).expanduser()
    try:
        return read_env_file(path)
    except ValueError as error:
        raise _UnusableError(f"cannot be used: {error}") from error
    except OSError as error:
        raise _UnusableError(f"cannot be used: {path}: {error.strerror}") from error


def _from_store(plan: PhasePlan) -> dict[str, str]:
    if not plan.env_secrets:
        return {}
    # Its imports cost memory that a job without secrets need not carry.
    from supervisor.adapters.secret_manager import SecretError, SecretManager

    manager = SecretManager()
    found = {}
    for name, version in plan.env_secrets.items():
        try:
            found[name] = manager.value(version)
        except SecretError as error:
            raise _UnusableError(f"{version} {error}", name) from error
        except OSError as error:
            raise UnavailableSecretError(f"{version} cannot be fetched: {error}") from error
    return found
