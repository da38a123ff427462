"""A trainer that fails as a case of the corpus did: prints its log, and dies that way.

    trainer.py LOG (exit CODE | signal NAME)

Without anything of ours: evidence is its output and its end, as of any program.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

log, how, what = sys.argv[1:]
sys.stderr.write(Path(log).read_text(encoding="utf-8"))
sys.stderr.flush()
if how == "exit":
    os._exit(int(what))
os.kill(os.getpid(), signal.Signals[what])
