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
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .written import OurFrames

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

    def replace_default(self) -> bool:
        """Note SIGTERM in place of the default action from now on. Returns False if that is not
        possible: only the main thread can do it, and only where nobody handles or ignores SIGTERM,
        neither the program nor a native library (`jax.distributed`)."""
        import signal
        import threading
        from functools import partial

        if threading.current_thread() is not threading.main_thread() or _has_native_action():
            return False
        if _signal.getsignal(_signal.SIGTERM) != _signal.SIG_DFL:
            return False
        ours = _DefaultHandler(signal.SIG_DFL, self)  # type: ignore[arg-type]
        _signal.signal(_signal.SIGTERM, ours)
        blocking = _BlockedAroundFork(ours)
        os.register_at_fork(
            before=blocking.begin,
            after_in_parent=blocking.end,
            after_in_child=partial(blocking.end, in_child=True),
        )
        return True

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


class _DefaultHandler(_Handler):
    """The handler that notes SIGTERM in place of the default action, which the program is told."""

    def __call__(self, signalnum: Any, frame: Any) -> None:
        self._watch.on_sigterm()


def _given(handler: Any) -> Any:
    """Returns the program's own handler, unwrapped."""
    return handler.given if isinstance(handler, _Handler) else handler


def _has_native_action() -> bool:
    """Whether the process handles or ignores SIGTERM, as the kernel knows it. Python knows nothing
    of a handler that a native library has set."""
    bit = 1 << (_signal.SIGTERM - 1)
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        masks = [line.split()[1] for line in status if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(int(mask, 16) & bit for mask in masks)


class _BlockedAroundFork:
    """Gives SIGTERM its default action in forked children, as the program expects of them. It is
    blocked until then: a child would lose a SIGTERM that comes before."""

    def __init__(self, ours: _DefaultHandler) -> None:
        self._ours = ours
        self._before: set[int] = set()

    def begin(self) -> None:
        self._before = _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])

    def end(self, *, in_child: bool = False) -> None:
        if in_child and _signal.getsignal(_signal.SIGTERM) is self._ours:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._before)
