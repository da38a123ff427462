"""`python -m supervisor` is `supervise`."""

import os
import sys

from supervisor.host import streams
from supervisor.host.init import stay_behind_as_init


def main() -> int:
    """Run the command line, below an init of our own if we are process 1 of a container."""
    streams.complete()
    if os.getpid() == 1:
        stay_behind_as_init()
    from supervisor import cli  # after the fork: the init stays small

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
