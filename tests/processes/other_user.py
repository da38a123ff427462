"""A trainer below which another user's process lives, as a setuid program's does: other_user.py UID

It ends with 9 once there are two more: that one, which is in its session, and one of its own user
in a session of its own. It says `PID hides` of the latter, and `PID changed` of the former.
"""

from __future__ import annotations

import os
import signal
import sys


def main(user: int) -> None:
    read, write = os.pipe()
    if (other := os.fork()) == 0:
        os.setresuid(user, user, user)
        os.write(write, b"!")
        signal.pause()
    os.read(read, 1)
    if (hider := os.fork()) == 0:
        os.setsid()
        os.write(write, b"!")
        signal.pause()
    os.read(read, 1)
    os.write(1, b"%d changed\n%d hides\n" % (other, hider))


if __name__ == "__main__":
    main(int(sys.argv[1]))
    sys.exit(9)
