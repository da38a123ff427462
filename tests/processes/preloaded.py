"""Runs `supervise` over and over without its imports: once for each line on standard input.

A line holds the arguments as a JSON list. Every run is a process of its own, whose pid is told, and
in the end how it ended. To be killed a hundred times in a minute a supervisor must start fast, and
while it imports there is nothing to lose.
"""

from __future__ import annotations

import json
import os
import sys

from supervisor.cli.main import load, main

if __name__ == "__main__":
    load([])
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            os.dup2(2, 1)  # standard output is for what is told below
            os._exit(main(json.loads(line)))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
