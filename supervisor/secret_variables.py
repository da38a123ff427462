"""Loads a command's secret variables: `env_file`, `env_secrets`.

They are read once and kept in memory only, and the redactor treats them as secret. `validate` reads
the files too; only `run` asks the secret store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor.adapters.stores.env_file import read_env_file
from supervisor.config.places import missing_path_hint
from supervisor.config.plan import PhasePlan
from supervisor.config.problems import Problem
from supervisor.prepare import Prepared


class UnavailableSecretError(Exception):
    """A secret store does not answer now; the text names the secret."""


def with_secrets(prepared: Prepared) -> Prepared:
    """Returns `prepared` with all secret variables in its plans; raises what the two functions
    below raise."""
    return with_stored_secrets(with_env_files(prepared))


def with_env_files(prepared: Prepared) -> Prepared:
    """Returns `prepared` with the variables of each `env_file` in its plans.

    Raises:
        ConfigError: a file cannot be used.
    """
    config = prepared.job.source.name
    return _with(prepared, "env_file", lambda plan: _from_file(plan, config))


def with_stored_secrets(prepared: Prepared) -> Prepared:
    """Returns `prepared` with the `env_secrets` from the secret store added to its plans.

    Raises:
        ConfigError: a secret cannot be used.
        UnavailableSecretError: the store does not answer now.
    """
    return _with(prepared, "env_secrets", _from_store)


def _with(prepared: Prepared, key: str, get: Callable[[PhasePlan], dict[str, str]]) -> Prepared:
    problems: list[Problem] = []
    plans = []
    for index, plan in enumerate(prepared.plans):
        try:
            plans.append(replace(plan, secrets={**plan.secrets, **get(plan)}))
        except _UnusableError as error:
            where = ("command", key, *error.inner_keys)
            problems.append(prepared.job.problem(index, where, str(error)))
    if problems:
        raise prepared.refusal(problems)
    return replace(prepared, plans=tuple(plans))


class _UnusableError(Exception):
    """A file or secret that the config names cannot be used; `inner_keys` lead to it inside
    the section."""

    def __init__(self, text: str, *inner_keys: str) -> None:
        super().__init__(text)
        self.inner_keys = inner_keys


def _from_file(plan: PhasePlan, config: str) -> dict[str, str]:
    if plan.env_file is None:
        return {}
    path = Path(plan.env_file).expanduser()
    try:
        return read_env_file(path)
    except FileNotFoundError as error:
        hint = missing_path_hint(str(path), config)
        raise _UnusableError(f"no such file: {plan.env_file}{hint}") from error
    except ValueError as error:
        raise _UnusableError(f"cannot be used: {error}") from error
    except OSError as error:
        raise _UnusableError(f"cannot be used: {path}: {error.strerror}") from error


def _from_store(plan: PhasePlan) -> dict[str, str]:
    if not plan.env_secrets:
        return {}
    # Imported here: a job without secrets saves the memory of these imports.
    from supervisor.adapters.platforms.secret_manager import SecretError, SecretManager

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
