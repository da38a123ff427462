"""Calls back when the program has imported a module, without importing anything itself."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class ImportWatch:
    """Stands first in `sys.meta_path` for as long as a module is expected."""

    def __init__(self) -> None:
        self._expected: dict[str, Callable[[ModuleType], None]] = {}

    def expect(self, name: str, on_import: Callable[[ModuleType], None]) -> None:
        """Call `on_import` with the module `name`, once it is loaded."""
        if name in sys.modules:
            on_import(sys.modules[name])
            return
        if not self._expected:
            sys.meta_path.insert(0, self)
        self._expected[name] = on_import

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns what the other finders find; the loader of an expected module also calls back."""
        on_import = self._expected.get(name)
        if on_import is None:
            return None
        for finder in sys.meta_path[:]:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._listen(name, spec, on_import)
                return spec
        return None

    def _listen(self, name: str, spec: ModuleSpec, on_import: Callable[[ModuleType], None]) -> None:
        loader = spec.loader
        if loader is None or isinstance(loader, type):
            return  # the loader is a class, which other modules share
        load = loader.exec_module

        def load_and_tell(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            self._forget(name)
            on_import(module)

        loader.exec_module = load_and_tell  # type: ignore[method-assign]

    def _forget(self, name: str) -> None:
        self._expected.pop(name, None)
        if not self._expected and self in sys.meta_path:
            sys.meta_path.remove(self)
