"""Waits for changes in folders, by inotify.

It says that something has changed, and not who did it. A change on another host, or in a file
system of a user's program, may go unnoticed: whoever waits looks now and then all the same.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_CLOSE_WRITE, _MOVED_TO, _CREATE = 0x8, 0x80, 0x100
_ONLY_FOLDERS = 0x01000000
_EVENT = struct.Struct("iIII")
_MAX_BYTES = 1 << 16
_MAX_FOLDERS = 200
_MAX_CHANGES = 10
"""The most changes in a second that end a wait: a program may write all the time."""

_libc = ctypes.CDLL(None)


class FolderChanges:
    """Sleeps until somebody calls `wake`, or until an entry of a watched folder that is wanted is
    made, moved there, or closed by its writer. One thread waits; all else any thread may call."""

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        """Nothing is watched yet. `is_wanted` gets the name of an entry that has changed."""
        self._is_wanted = is_wanted
        self._lock = threading.Lock()
        """Held while the descriptors are used or closed; never during a wait."""
        self._wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._events = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)  # -1: there is no such
        self._folders: set[Path] = set()
        self._is_closed = False
        self._latest: deque[float] = deque([0.0], _MAX_CHANGES)
        """The times of the latest changes, by the monotonic clock."""

    def watch(self, folder: Path) -> None:
        """Watch `folder` too, if it is there and can be watched. One that was removed and made
        again needs another call."""
        with self._lock:
            is_full = len(self._folders) >= _MAX_FOLDERS and folder not in self._folders
            if self._is_closed or self._events < 0 or is_full:
                return
            mask = _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLY_FOLDERS
            if _libc.inotify_add_watch(self._events, os.fsencode(folder), mask) >= 0:
                self._folders.add(folder)

    def wake(self) -> None:
        """End the present wait, or the next one."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._wakes, 1)

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`, or less. Returns whether it was called or something has changed."""
        until = time.monotonic() + seconds
        quiet = self._latest[0] + 1.0 if len(self._latest) == _MAX_CHANGES else 0.0
        if self._poll(min(until, quiet), self._wakes):
            return True
        while time.monotonic() >= quiet:
            if self._poll(until, self._wakes, self._events):
                return True
            if time.monotonic() >= until:
                return False
        return False

    def close(self) -> None:
        """Free the descriptors. Called by the waiting thread, which waits no more."""
        with self._lock:
            self._is_closed = True
            os.close(self._wakes)
            if self._events >= 0:
                os.close(self._events)

    def _poll(self, until: float, *descriptors: int) -> bool:
        """Wait for one of the `descriptors` until the time `until`. Returns whether that ends the
        wait for changes."""
        poll = select.poll()
        for each in descriptors:
            if each >= 0:
                poll.register(each, select.POLLIN)
        ready = {each for each, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
        if self._wakes in ready:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wakes)
            return True
        if self._events in ready and self._has_changed():
            self._latest.append(time.monotonic())
            return True
        return False

    def _has_changed(self) -> bool:
        """Read what the kernel tells. Returns whether an entry that is wanted has changed."""
        try:
            data = os.read(self._events, _MAX_BYTES)
        except BlockingIOError:
            return False
        begin = 0
        while begin < len(data):
            *_, length = _EVENT.unpack_from(data, begin)
            name = data[begin + _EVENT.size : begin + _EVENT.size + length].rstrip(b"\0")
            if not name or self._is_wanted(os.fsdecode(name)):  # without a name: events were lost
                return True
            begin += _EVENT.size + length
        return False
