"""structlog, without the parts of it that a supervisor never uses.

Importing structlog as it is costs a supervisor 7 MB: it brings rich (for its own console) and
asyncio (for loggers of coroutines). Both are kept out while it is imported, which costs under 2 MB;
structlog treats a missing rich as usual, and would get the real asyncio as soon as it asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


class _OnDemand(ModuleType):
    """A module that is imported when somebody first wants something of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks
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
