"""Saves a checkpoint on SIGTERM, for a program that calls Orbax's `save` at every step.

Such a program leaves it to Orbax whether a step is saved, as a rule by an interval. Without a
handler SIGTERM ends it at once, and the steps since the last save are lost. With
`command.save_on_sigterm` SIGTERM sets a flag. The next call of `CheckpointManager.save` saves its
step, whatever the interval says, waits until that is committed, and ends the program.

Under `jax.distributed` jax handles SIGTERM itself, and Orbax asks it at every `save` whether all
processes are to save at this step. Then this answer counts and not our flag: processes that saved
different steps would wait for each other forever.
"""

from __future__ import annotations

import json
import os
import sys
from functools import wraps
from weakref import WeakKeyDictionary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import ModuleType
    from typing import Any

TESTED = ("0.11.39", "0.12.0", "0.12.3", "0.12.8")
"""The versions of orbax-checkpoint that the tests were passed with. Others are left alone."""
EXIT_CODE = 143
"""The code with which a shell reports an end by SIGTERM: the supervisor judges both alike."""
_END_TIMEOUT = 10.0
"""Seconds for the program's own cleanup. A thread of it that never ends must not delay the end."""
_FORCE_INDEX = 3
"""The place of `force` among the arguments of `save` after the step."""
_AWAITED = (
    "SIGTERM: the next call of CheckpointManager.save saves its step and ends the program. Nothing "
    "is saved if that call does not come within the grace period: call save at every step and let "
    "save_interval_steps decide, or raise autorestart.grace_period"
)


class SaveOnSigterm:
    """Makes the next `save` after a SIGTERM save and end the program."""

    def __init__(
        self,
        is_here: Callable[[], bool],
        frames: AbstractContextManager[None],
        handle_sigterm: Callable[[], bool],
        say: Callable[[bytes], bool],
    ) -> None:
        """`is_here` tells whether this is the worker's process, and no fork of it. `frames` removes
        our frames from tracebacks. `handle_sigterm` handles SIGTERM in place of the default action
        from then on, and returns False if it cannot. `say` writes to the progress pipe."""
        self._is_here = is_here
        self._frames = frames
        self._handle_sigterm = handle_sigterm
        self._say = say
        self._handles: bool | None = None
        """Whether we handle SIGTERM; None: `save` was not called yet."""
        self._told = False
        self._agreed = False
        self._ends = False
        self._num_calls = 0
        self._last_call: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """For each manager the number of the latest call of `save`."""

    def on_sigterm(self) -> None:
        """Note a SIGTERM. Called by signal handlers."""
        if self._handles and not self._told:
            self._notice("save-awaited", _AWAITED)
        self._told = True

    def on_agreed_stop(self) -> None:
        """Note that jax has told all processes to save at the step that is being saved."""
        self._told = self._agreed = True

    def watch(self, module: ModuleType) -> None:
        """Wrap `CheckpointManager.save` of `module`, `orbax.checkpoint.checkpoint_manager`."""
        version = __import__(f"{module.__package__}.version", fromlist=[""]).__version__
        if version not in TESTED:
            self._notice(
                "save-on-sigterm-off",
                f"command.save_on_sigterm does nothing with orbax-checkpoint {version}: it knows "
                f"{', '.join(TESTED)}. SIGTERM ends the program as if the key were not set",
            )
            return
        manager_class: Any = module.__dict__["CheckpointManager"]
        save = manager_class.save

        @wraps(save)
        def saving(manager: Any, step: Any, *rest: Any, **named: Any) -> Any:
            with self._frames:
                return self._save(save, manager, step, rest, named)

        manager_class.save = saving

    def _save(
        self,
        save: Callable[..., Any],
        manager: Any,
        step: Any,
        rest: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        if not self._is_here() or manager._options.read_only:
            return save(manager, step, *rest, **named)
        if self._handles is None:
            self._handles = self._handle_sigterm()
        others = self._saved_in_turn(manager)
        was_due = self._is_due()
        if was_due and not _has(manager, step):
            rest, named = _forced(rest, named)
        saved = False if was_due and _has(manager, step) else save(manager, step, *rest, **named)
        if not self._is_due():
            return saved
        if not was_due and not saved and not _has(manager, step):  # told during the call
            rest, named = _forced(rest, named)
            saved = save(manager, step, *rest, **named)
        manager.wait_until_finished()
        if all(_has(each, step) for each in (manager, *others)):
            self._end()
        return saved

    def _saved_in_turn(self, manager: Any) -> list[Any]:
        """Returns the managers that were called since the last call of `manager`: they save the
        other parts of the same state, so all of them must have the last step."""
        last = self._last_call.get(manager, self._num_calls)
        others = [other for other, call in self._last_call.items() if call > last]
        self._num_calls += 1
        self._last_call[manager] = self._num_calls
        return others

    def _is_due(self) -> bool:
        """Whether the step that is being saved is to be the last one."""
        return self._agreed or (self._told and sys.modules["jax"].process_count() == 1)

    def _end(self) -> None:
        """End the program. Outside the main thread the program itself has to end."""
        import signal
        import threading

        if threading.current_thread() is not threading.main_thread() or self._ends:
            return
        self._ends = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends it at once
        threading.Thread(target=_end_at_last, daemon=True).start()
        raise SystemExit(EXIT_CODE)

    def _notice(self, code: str, text: str) -> None:
        body = {"v": 1, "kind": "notice", "code": code, "text": text}
        self._say(json.dumps(body).encode() + b"\n")


def _has(manager: Any, step: Any) -> bool:
    """Whether `manager` has saved `step`, or is saving it."""
    return step in manager.all_steps()


def _forced(rest: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of `save` after the step, with `force=True`."""
    if len(rest) > _FORCE_INDEX:
        return (*rest[:_FORCE_INDEX], True, *rest[_FORCE_INDEX + 1 :]), named
    return rest, {**named, "force": True}


def _end_at_last() -> None:
    """End this process if the program's own cleanup takes too long: its checkpoint is committed."""
    import signal
    import time

    time.sleep(_END_TIMEOUT)
    os.kill(os.getpid(), signal.SIGTERM)
