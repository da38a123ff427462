"""Runs the command line; Ctrl-C while it is still being imported ends it without a traceback."""

import sys

try:
    from deploy.acceptance.command import main

    code = main()
except KeyboardInterrupt:
    print("interrupted before any check began", file=sys.stderr)
    code = 130
sys.exit(code)
