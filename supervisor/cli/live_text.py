"""What status.json says of a running job, in words."""

from __future__ import annotations

from datetime import datetime

from supervisor.files.live_status import LiveStatus
from supervisor.narrative.durations import duration
from supervisor.narrative.findings import use_in_words


def seconds_since(at: datetime) -> float:
    """Returns how many seconds ago `at` was; 0 if another host's clock says that it is to come."""
    return max(0.0, (datetime.now().astimezone() - at).total_seconds())


def progress_text(live: LiveStatus) -> str:
    """Returns how far the attempt has come, how fast, and how long ago its last step was; "": it
    has reported no step."""
    now = live.live
    if now.step is None:
        return ""
    of = f" of {live.max_steps}" if live.max_steps is not None else ""
    parts = [f"step {now.step}{of}"]
    if now.steps_per_second is not None:
        parts.append(f"{now.steps_per_second:.3g} steps/s")
    if now.eta_seconds is not None:
        parts.append(f"about {duration(now.eta_seconds)} left")
    if now.loss is not None:
        parts.append(f"loss {now.loss:.4f}")
    if now.loss_not_finite:
        parts.append("loss NaN or Inf")
    if now.data_wait is not None:
        parts.append(use_in_words(now.data_wait, now.mfu))
    age = f" ({duration(seconds_since(now.step_at))} ago)" if now.step_at is not None else ""
    return f"{', '.join(parts)}{age}"
