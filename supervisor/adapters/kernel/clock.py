"""The real clock."""

from __future__ import annotations

import time
from datetime import datetime


class SystemClock:
    """Monotonic seconds, and local time with its offset."""

    def now(self) -> float:
        """See `ports.Clock`."""
        return time.monotonic()

    def wall(self) -> datetime:
        """See `ports.Clock`."""
        return datetime.now().astimezone()
