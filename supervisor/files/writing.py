"""Opens a file of ours for writing where somebody else may have put something in its place.

What `open` would write through a link is lost, and it waits for ever at a FIFO that nobody reads.
Whatever is made anew and then renamed is made by `removal.temporary`; here is what only grows.
"""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from supervisor.protocol.reading import UnreadableError, descriptor_of, refused

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def opened(
    path: str | Path, *, new: bool = False, create: bool = True, below: Path | None = None
) -> FileIO:
    """Open the regular file `path`, unbuffered, for appending; with `new` it is emptied first.

    With `below`, a folder that the caller vouches for, no folder beneath it is entered through a
    link. A file that has a second name (a hard link) is not emptied: it may be somebody else's.

    Raises:
        FileNotFoundError: there is none, and it is not to be created; or its folder is gone.
        UnreadableError: something else is there.
        OSError: it cannot be opened.
    """
    flags = _FLAGS | (os.O_CREAT if create else 0)
    try:
        descriptor = descriptor_of(Path(path), below, flags)
    except OSError as error:
        raise refused(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError(path, "is not a regular file")
        if new and status.st_nlink > 1:
            raise UnreadableError(path, "has a second name (a hard link), and is not emptied")
        if new:
            os.ftruncate(descriptor, 0)
        return FileIO(descriptor, "ab")
    except BaseException:
        os.close(descriptor)
        raise
