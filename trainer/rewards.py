"""The function that rewards completions: a user's, named by `init.grpo.reward`.

It is called as `function(prompts, completions, **fields)`: two lists of texts, and for each field
of the records a list of its values, all of the same length; it returns a number for each. That is
the form that TRL and Tunix use.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.config.training.data_files import DataError
from trainer.grpo import Floats

_KEY = "trainer.init.grpo.reward"
_OWN = ("prompts", "completions")
"""Arguments of the function that are no fields of records."""
_GREATEST = float(np.finfo(np.float32).max)
_SHOWN = 80
"""Characters of a text or value that are shown."""


class UnusableRewardError(ValueError):
    """There is no such function, or it does not return a number for each completion."""


class RewardNotFiniteError(ValueError):
    """A reward is NaN or Inf."""


@dataclass(frozen=True, slots=True)
class Reward:
    """The function, and how the config names it."""

    name: str
    function: Callable[..., Any]

    @classmethod
    def of(cls, name: str) -> Reward:
        """Import the function `name`, `module:function`. What its module raises is not caught.

        Raises:
            UnusableRewardError: there is none of this name.
        """
        module_name, _, path = name.partition(":")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # last: nothing there takes the place of what is installed
        try:
            found: Any = import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module is there, and needs another one
            raise UnusableRewardError(
                f"{_KEY}: there is no module {error.name!r}, neither installed nor in {here}, "
                f"where the job was started (value {name!r})"
            ) from None
        for part in path.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            where = getattr(sys.modules[module_name], "__file__", module_name)
            raise UnusableRewardError(
                f"{_KEY}: there is no function {path!r} in {where} (value {name!r})"
            )
        return cls(name, found)

    def check(self, records: Iterable[Mapping[str, Any]], places: Iterable[str]) -> None:
        """Check that each of the `records`, at `places`, has the fields that the function needs.

        Raises:
            DataError: one has not.
        """
        needed = _needed(self.function)
        for record, place in zip(records, places, strict=True):
            for name in needed:
                if name not in record:
                    raise DataError(
                        f"{place}: there is no field {name!r}, which {self.name} needs ({_KEY}): "
                        "add it, or give the argument of the function a default"
                    )

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        records: Sequence[Mapping[str, Any]],
        places: Sequence[str],
    ) -> Floats:
        """Return the reward of each completion of a prompt, whose record is one of `records` and
        stands at one of `places` (`file:line`). What the function raises gets a note.

        Raises:
            UnusableRewardError: it does not return a number for each.
            RewardNotFiniteError: one is NaN or Inf.
        """
        names = dict.fromkeys(name for record in records for name in record if name not in _OWN)
        fields = {name: [record.get(name) for record in records] for name in names}
        try:
            rewards = self.function(list(prompts), list(completions), **fields)
            # It may be a generator, which runs only now, and without an end.
            iterator = _iterator(rewards)
            given = None if iterator is None else list(islice(iterator, len(completions) + 1))
        except Exception as error:
            error.add_note(f"raised by the reward function {self.name} ({_KEY})")
            raise
        if given is None:
            raise UnusableRewardError(
                f"{_KEY}: {self.name} returned {_shown(rewards)}: it must return a list with a "
                "number for each completion"
            )
        return self._checked(given, prompts, completions, places)

    def _checked(
        self,
        given: list[Any],
        prompts: Sequence[str],
        completions: Sequence[str],
        places: Sequence[str],
    ) -> Floats:
        if len(given) != len(completions):
            raise UnusableRewardError(
                f"{_KEY}: {self.name} returned {_number(given, completions)} rewards for "
                f"{len(completions)} completions: it must return one for each"
            )
        numbers = []
        for each, prompt, completion, place in zip(
            given, prompts, completions, places, strict=True
        ):
            about = (
                f"for the prompt {_shown(prompt)} ({place}) with the completion "
                f"{_shown(completion)}"
            )
            try:
                numbers.append(_as_float(each))
            except (TypeError, ValueError):
                raise UnusableRewardError(
                    f"{_KEY}: {self.name} returned {_shown(each)}, which is no number, {about}"
                ) from None
            if not abs(numbers[-1]) <= _GREATEST:  # so NaN is found, too
                raise RewardNotFiniteError(
                    f"{_KEY}: {self.name} returned the reward {numbers[-1]}, of which nothing "
                    f"can be learned, {about}"
                )
        return np.asarray(numbers, np.float32)


def _iterator(rewards: Any) -> Iterator[Any] | None:
    """Return an iterator of `rewards`. None: there is none, or it is of something else than rewards
    in their order, such as the keys of a mapping or the letters of a text."""
    if isinstance(rewards, str | bytes | Mapping | Set):
        return None
    try:
        found: Iterator[Any] = iter(rewards)
    except TypeError:
        return None
    return found


def _number(given: list[Any], completions: Sequence[str]) -> str:
    """Return how many rewards there are, of which no more than one too many was asked for."""
    return str(len(given)) if len(given) < len(completions) else f"more than {len(completions)}"


def _as_float(reward: Any) -> float:
    try:
        return float(reward)
    except OverflowError:  # an integer
        return math.inf if reward > 0 else -math.inf


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _needed(function: Callable[..., Any]) -> list[str]:
    """Return the fields of records that the function cannot be called without."""
    try:
        parameters = signature(function).parameters.values()
    except (ValueError, TypeError):  # of something built in, nothing is known
        return []
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [
        each.name
        for number, each in enumerate(parameters)
        if number >= len(_OWN) and each.kind in by_name and each.default is Parameter.empty
    ]
