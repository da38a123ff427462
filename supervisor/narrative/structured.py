"""Imports structlog without the parts that a supervisor never uses.

A plain import of structlog takes 7 MB of memory, because it imports rich (for its own console) and
asyncio (for loggers of coroutines). Here both are kept out while structlog is imported, which takes
less than 2 MB. structlog works without rich, and gets the real asyncio when it first uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


class _OnDemand(ModuleType):
    """Stands for a module, and imports it when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for these
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


@contextmanager
def _kept_out() -> Iterator[None]:
    stand_ins = {"rich": None, "asyncio": _OnDemand("asyncio")}
    absent = {name: each for name, each in stand_ins.items() if name not in sys.modules}
    modules: dict[str, Any] = sys.modules
    modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            del modules[name]


with _kept_out():
    from structlog import BoundLogger as BoundLogger
    from structlog import wrap_logger as wrap_logger
    from structlog.processors import JSONRenderer as JSONRenderer
    from structlog.processors import add_log_level as add_log_level
    from structlog.typing import EventDict as EventDict
