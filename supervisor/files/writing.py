"""Opens a file of ours for appending, where somebody else may have put something in its place.

The built-in `open` would follow a link, and would block for ever on a FIFO that nobody reads. A
file that is written under a temporary name and then renamed is opened by
`removal.create_temporary`. This module is for files that only grow.
"""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from supervisor.protocol.reading import UnreadableError, descriptor_of, open_error

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def opened(
    path: str | Path, *, new: bool = False, create: bool = True, below: Path | None = None
) -> FileIO:
    """Open the regular file `path`, unbuffered, for appending; with `new` it is emptied first.

    With `below`, a folder that the caller trusts, no folder beneath it is entered through a link. A
    file that has a second name (a hard link) is not emptied: it may belong to somebody else.

    Raises:
        FileNotFoundError: its folder is gone, or there is no file and `create` is False.
        UnreadableError: it is not a regular file, or has a second name and must not be emptied.
        OSError: it cannot be opened.
    """
    flags = _FLAGS | (os.O_CREAT if create else 0)
    try:
        descriptor = descriptor_of(Path(path), below, flags)
    except OSError as error:
        raise open_error(path, error) from error
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
