"""`python -m supervisor` is `supervise`."""

import sys

from supervisor.cli import main

sys.exit(main())
