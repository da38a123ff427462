"""Reads the steps of a command from its output if nothing else tells them.

The order of trust is: what the program or the bootstrap reports, then `progress.pattern`, then the
lines that are recognised here (`diagnosis.step_recogniser`). With a pattern nothing is recognised,
and one report ends it for the phase. What is recognised goes on as a `StepMessage` that says so:
people see it, and nothing is decided by it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence

from supervisor.config.plan import PhasePlan
from supervisor.diagnosis.step_lines import has_hint, may_tell
from supervisor.diagnosis.step_recogniser import StepRecogniser
from supervisor.host.notice import Notice, Tell
from supervisor.protocol.messages import Message, StepMessage, StepsDroppedMessage, printable
from supervisor.protocol.shortening import keep_beginning

_MOST = 8
"""Lines that are looked at, at the beginning and at the end of a read each: an output may be a
flood."""
_PAUSE = 0.25
"""Seconds between two steps that are handed on: fast ones would wake the main loop all the time."""
_SHOWN = 120
"""Most characters of a line that people are shown."""


class StepRecognition:
    """The forms of lines that are taken for steps in each phase, and what was told of them."""

    def __init__(self, tell: Tell, redact: Callable[[str], str]) -> None:
        """`tell` gets a notice about each form; `redact` removes secrets from its example."""
        self._tell = tell
        self._redact = redact
        self._known: dict[str, frozenset[str]] = defaultdict(frozenset)
        self._every: dict[tuple[str, str], int] = {}
        """By how much the steps of a phase rise in the lines of a form, where that is known."""
        self._reported: set[str] = set()
        """The phases whose steps are reported."""

    def listener(
        self,
        plan: PhasePlan,
        hand_on: Callable[[Message], None],
        is_reported: Callable[[], bool],
    ) -> StepListener | None:
        """Returns what reads the output of one worker; None: nothing is to be recognised.

        `hand_on` gets its messages. `is_reported` says whether the attempt has reported a step.
        """
        if not plan.is_command or plan.progress_pattern is not None or plan.name in self._reported:
            return None
        now = StepRecogniser(self._known[plan.name])
        return StepListener(self, plan.name, now, hand_on, is_reported)

    def reported(self, phase: str) -> None:
        """Take note that the steps of the phase are reported: nothing is recognised from now on."""
        self._reported.add(phase)

    def taken(self, phase: str, form: str, example: str) -> None:
        """Remember a form for the next attempts of the phase, and tell it if it is new."""
        if form in self._known[phase]:
            return
        self._known[phase] |= {form}
        shown = self._shown(example)
        text = (
            f"steps are read from lines such as {shown!r}. They are shown, but set no deadline and "
            "prove no success: give --set 'trainer.command.progress.pattern=...' for that, or to "
            "choose other lines"
        )
        self._tell(Notice("steps-recognised", text, phase=phase, detail=shown))

    def interval(self, phase: str, form: str, every: int | None) -> int | None:
        """Remember that the steps of a form rise by `every`, if that is known; returns what is
        known of it, now or from an earlier attempt."""
        if every is not None:
            self._every[phase, form] = every
        return self._every.get((phase, form))

    def dropped(self, phase: str, form: str, example: str) -> None:
        """Forget a form whose number fell, and tell it."""
        if form not in self._known[phase]:
            return
        self._known[phase] -= {form}
        shown = self._shown(example)
        text = (
            f"lines such as {shown!r} are not read as steps any more: their number fell. If "
            "other lines tell the steps, give --set 'trainer.command.progress.pattern=...'"
        )
        self._tell(Notice("steps-dropped", text, phase=phase, detail=shown))

    def failed(self, error: Exception) -> None:
        """Tell that a mistake of ours has ended the recognition for a worker."""
        text = f"no steps are recognised any more ({error!r}); the job goes on"
        self._tell(Notice("observer-failed", text, reason=repr(error)))

    def _shown(self, example: str) -> str:
        # Redacted before it is cut, because half a secret is not recognised.
        return printable(keep_beginning(self._redact(example.strip()), _SHOWN))


class StepListener:
    """Reads the lines of one worker in one attempt."""

    def __init__(
        self,
        forms: StepRecognition,
        phase: str,
        now: StepRecogniser,
        hand_on: Callable[[Message], None],
        is_reported: Callable[[], bool],
    ) -> None:
        self._forms = forms
        self._phase = phase
        self._now = now
        self._hand_on = hand_on
        self._is_reported = is_reported
        self._handed_on: tuple[int, float] | None = None
        """The last step that was handed on, and when."""
        self._is_off = False

    def hear(self, lines: Sequence[bytes], at: float) -> None:
        """Read the whole lines of one read, at the time `at`. Never raises: whoever reads the
        output must go on, because a full pipe blocks the program."""
        if self._is_off or not has_hint(b"\n".join(lines)) or self._stops():
            return
        try:
            self._read(lines, at)
        except Exception as error:
            self._is_off = True
            sys.excepthook(type(error), error, error.__traceback__)
            self._forms.failed(error)

    def _read(self, lines: Sequence[bytes], at: float) -> None:
        for raw in _some([line for line in lines if may_tell(line)]):
            before, self._now = self._now, self._now.after(raw.decode("utf-8", "replace"), at)
            if before.taken != self._now.taken:
                self._changed(before)
        if self._handed_on is None or at - self._handed_on[1] >= _PAUSE:
            self._tell_step(at)

    def end(self, at: float) -> None:
        """Hand on the last step: no more output comes."""
        if not self._is_off:
            self._tell_step(at)

    def _stops(self) -> bool:
        if self._is_reported():
            self._is_off = True
            self._forms.reported(self._phase)
        return self._is_off

    def _changed(self, before: StepRecogniser) -> None:
        now = self._now
        self._handed_on = None
        if now.taken is not None:
            self._forms.taken(self._phase, now.taken, now.example)
        elif before.taken is not None:
            self._forms.dropped(self._phase, before.taken, before.example)
            self._hand_on(StepsDroppedMessage())

    def _tell_step(self, at: float) -> None:
        now, earlier = self._now, self._handed_on
        if (
            now.step is None
            or now.taken is None
            or (earlier is not None and earlier[0] == now.step)
        ):
            return
        self._handed_on = (now.step, at)
        metrics, first = metrics_of(now.loss), now.first if earlier is None else None
        every = self._forms.interval(self._phase, now.taken, now.every)
        self._hand_on(
            StepMessage(now.step, metrics, first, in_output=True, recognised=True, every=every)
        )


def metrics_of(loss: float | None) -> dict[str, float]:
    """Returns the metrics of a step whose line tells this loss."""
    return {} if loss is None else {"loss": loss}


def _some(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Returns the first and the last of many lines."""
    return lines if len(lines) <= 2 * _MOST else (*lines[:_MOST], *lines[-_MOST:])
