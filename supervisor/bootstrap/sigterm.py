"""Notices each SIGTERM that the program handles itself.

The default action of SIGTERM shows in the wait status. A program's handler may hide it: a program
that saves and exits with 0 looks as if its work were done. So a handler that the program sets for
SIGTERM is called through one of ours, and functions that wait for signals report what they got.

The program sees none of this: `getsignal` and the return value of `signal` are its own handler, and
our frame is removed from the traceback of what the handler raises. The wakeup fd stays free for
event loops (asyncio, trio, uvloop), which also set a Python handler: if we used it, we would need a
thread that passes each signal on to their loop.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .worker import OurFrames

_WAITS = "sigwait", "sigwaitinfo", "sigtimedwait"


class SignalModuleWrapper:
    """Watches the module `signal` of the program."""

    def __init__(self, on_sigterm: Callable[[], None], frames: OurFrames) -> None:
        """Call `on_sigterm` at each SIGTERM, before the program's own handler."""
        self.on_sigterm = on_sigterm
        self.frames = frames

    def watch(self, module: ModuleType) -> None:
        """Wrap the functions of `module`, which is `signal`, once the program has imported it."""
        from functools import wraps  # `signal` has imported it

        set_handler, get_handler = module.signal, module.getsignal

        @wraps(set_handler)
        def signal(signalnum: Any, handler: Any) -> Any:
            if signalnum == _signal.SIGTERM and callable(handler):
                handler = _Handler(handler, self)
            with self.frames:
                return _given(set_handler(signalnum, handler))

        @wraps(get_handler)
        def getsignal(signalnum: Any) -> Any:
            with self.frames:
                return _given(get_handler(signalnum))

        module.signal, module.getsignal = signal, getsignal  # type: ignore[attr-defined]
        for name in _WAITS:
            setattr(
                module, name, wraps(getattr(module, name))(self._waiting(getattr(module, name)))
            )

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waited(*arguments: Any) -> Any:
            with self.frames:
                found = wait(*arguments)
            if getattr(found, "si_signo", found) == _signal.SIGTERM:
                self.on_sigterm()
            return found

        return waited


class _Handler:
    """The handler that is installed instead of the program's, and calls it."""

    def __init__(self, given: Callable[[Any, Any], Any], watch: SignalModuleWrapper) -> None:
        self.given = given
        self._watch = watch

    def __call__(self, signalnum: Any, frame: Any) -> Any:
        self._watch.on_sigterm()
        with self._watch.frames:
            return self.given(signalnum, frame)


def _given(handler: Any) -> Any:
    """Returns the program's own handler, unwrapped."""
    return handler.given if isinstance(handler, _Handler) else handler
