"""Tells the failures of a job in `supervise status`: what failed, where, and what to do.

A person who is woken by a job that has ended reads the first lines only, so these are the cause,
the place, the advice and the command to run. What the verdict was matters no more then.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from supervisor.adapters.stores.journal import History
from supervisor.cli.config_change import change_before, changed_key_lines
from supervisor.cli.job_view import JobView, phase_of, replay_command
from supervisor.cli.live_text import seconds_since
from supervisor.cli.past_failures import PastFailure, past_failures
from supervisor.config.quantities import size_text
from supervisor.core.events import WorkersStarted
from supervisor.core.exit_codes import ExitCode
from supervisor.core.state import JobState, Status
from supervisor.diagnosis.comparing import tells_only_the_end
from supervisor.diagnosis.crash import frames_of
from supervisor.diagnosis.failure import Failure
from supervisor.diagnosis.frames import Frame, frame_in
from supervisor.diagnosis.ownership import is_own
from supervisor.diagnosis.redaction import Redactor
from supervisor.diagnosis.rules import NOT_FINITE
from supervisor.diagnosis.stack_groups import main_stack
from supervisor.files.attempts import STACKS_TO_READ
from supervisor.narrative.durations import duration
from supervisor.narrative.failure_text import (
    certainty,
    is_decoration,
    pids_in_words,
    place_of_failure,
    rank_in_words,
)
from supervisor.narrative.findings import advice_at_end, advice_in_words, is_of_our_trainer
from supervisor.narrative.job_end import JobEnd, code_in_words, what_is_next
from supervisor.protocol.location import Uri
from supervisor.protocol.reading import read_end, read_text

_DURATION = re.compile(r"\d+\.\d s\b")
"""A measured time: two failures that differ in nothing else are alike."""
_BYTES = re.compile(r"\b(\d{7,24}) bytes\b")
_MAX_STACKS = 1 << 18
"""Bytes of a file with stacks that are read."""
_MAX_TAIL = 1 << 16
"""Bytes at the end of a log in which its last line is looked for."""
_TRACEBACK = "Traceback (most recent call last):"
_MAX_SHOWN = 200
"""Characters of a line of output."""
_MOST_FRAMES = 4
_BOOTSTRAP = "/supervisor/bootstrap/"
_REFUSED_COMMANDS = frozenset({"usage", "not-executable", "program-missing"})
"""Rules for a command that cannot be run as it is."""


def failure_that_counts(history: History, state: JobState) -> Failure | None:
    """Returns the last failure; None: there was none, or the job has succeeded since.

    An attempt that was asked to end, and left nothing but its exit, did not fail.
    """
    end, failure = history.past.last_end, state.last_failure
    if failure is None or state.status is Status.SUCCEEDED:
        return None
    stopped = history.past.was_asked and end is not None and end.failure == failure
    return None if stopped and failure.root_cause == failure.exit else failure


def last_failures(job: JobView, failure: Failure, place: Path | Uri) -> Iterator[str]:
    """Yields the last failures of a job that has not ended: with verdict, and what to do."""
    past = past_failures(job)
    log = log_of(past, job.history, failure, place)
    yield f"last failure: {_what(failure, _pids_and_hosts(job)[1])}"
    yield from _quoted(failure, log if isinstance(place, Path) else None)
    yield from _changed_before(job)
    grounds = f", {failure.grounds}" if failure.grounds else certainty(failure)
    yield f"verdict {failure.verdict}{grounds} (rule {failure.rule!r}): {failure.reason}"
    yield f"what to do: {advice_in_words(failure, job.policy, phase_of(job))}"
    yield from _where_to_read(job, failure, log, place)
    yield from _earlier_ones(job, past, failure, place)


def why_it_ended(job: JobView, failure: Failure, end: JobEnd, place: Path | Uri) -> Iterator[str]:
    """Yields all that a person needs who finds the job ended by `failure`, what matters most
    first."""
    past = past_failures(job)
    log = log_of(past, job.history, failure, place)
    what = _what(failure, _pids_and_hosts(job)[1])
    yield f"{job.history.state.status}: {what}{_after_step(job)}"
    yield from _quoted(failure, log if isinstance(place, Path) else None)
    yield from _changed_before(job)
    yield f"what to do: {advice_at_end(failure, job.history.state, job.policy)}"
    yield from next_command(job, is_refused=failure.rule in _REFUSED_COMMANDS)
    yield ended_line(end)
    yield from _process(job, past)
    yield from _earlier_ones(job, past, failure, place)
    yield from _where_to_read(job, failure, log, place)


def ended_line(end: JobEnd) -> str:
    """Returns when, how and why a job ended."""
    ago = duration(seconds_since(end.at))
    when = end.at.astimezone().isoformat(sep=" ", timespec="seconds")
    return f"ended {when} ({ago} ago) with supervise's {code_in_words(end.code)}: {end.reason}"


def next_command(job: JobView, *, is_refused: bool = False) -> Iterator[str]:
    """Yields whether a job that has ended is run again by itself, from where, and the command."""
    state, told = job.history.state, job.told
    assert state.exit_code is not None
    known = told is not None and told.command is not None
    later_phase = phase_of(job) if state.phase else None
    yield from what_is_next(
        state.exit_code,
        state.newest,
        known=known,
        is_refused=is_refused,
        is_sure=is_of_our_trainer(job.policy, phase_of(job)),
        later_phase=later_phase,
    )
    if state.exit_code != ExitCode.SUCCEEDED:
        yield from command_again(job)


def command_again(job: JobView) -> Iterator[str]:
    """Yields the command that started the last supervisor, if it is known, to be copied."""
    told = job.told
    if told is not None and told.command is not None:
        folder = told.directory
        change = f"cd {shlex.quote(folder)} && " if folder and folder != str(Path.cwd()) else ""
        yield f"  {change}{told.command}"


def log_of(
    past: Sequence[PastFailure], history: History, failure: Failure, place: Path | Uri
) -> str | None:
    """Returns the path of what the rank has printed that the failure was judged by; None: not
    known, or it is not there any more."""
    logs = (
        each.log(place)
        for each in past
        if each.attempt == history.past.last_failed and each.failure.get("rule") == failure.rule
    )
    return next(logs, None)


def _changed_before(job: JobView) -> Iterator[str]:
    past = job.history.past
    return changed_key_lines(change_before(past, past.last_failed))


def _what(failure: Failure, hosts: Sequence[str]) -> str:
    told = sized(failure.root_cause)
    if not told.startswith(failure.cause):  # as "killed" does "killed by SIGKILL"
        told = f"{failure.cause}: {told}"
    rank = f" ({rank_in_words(failure, hosts)})" if len(hosts) > 1 else ""
    return f"{told}{rank}{place_of_failure(failure)}"


def sized(text: str) -> str:
    """Returns `text` with large numbers of bytes also in units that people compare."""
    return _BYTES.sub(lambda match: f"{match[0]} ({size_text(int(match[1]))})", text)


def _after_step(job: JobView) -> str:
    end = job.history.past.last_end
    return f", after step {end.step}" if end is not None and end.step is not None else ""


def _quoted(failure: Failure, log: str | None) -> Iterator[str]:
    try:
        yield from (f"  | {text}" for text in _quotes(failure, log))
    except OSError as error:  # the files of an attempt may be readable to its owner only
        yield f"  | {error.filename} cannot be read: {error.strerror}"


def _quotes(failure: Failure, log: str | None) -> Iterator[str]:
    """Yields the calls that failed, hung or crashed, the innermost first; where no error text is
    known, also the last line that the program printed into `log`."""
    stacks = _stacks_beside(log)
    if failure.rule == "hang":
        calls = [_with_code(each, stacks) for each in _standing(stacks)] if stacks else []
    else:
        calls = _own_calls(failure.traceback) or [
            _with_code(each, stacks) for each in _innermost(frames_of(failure.traceback))
        ]
    for number, call in enumerate(calls):
        yield f"called from {call}" if number else f"in {call}"
    says_nothing = failure.root_cause == failure.exit or failure.rule == "hang"
    if log is not None and says_nothing and (last := _last_line(Path(log))):
        yield f"last output: {last}"


def _own_calls(traceback: str) -> list[str]:
    """Returns the calls in the user's own code with their lines of code, as a traceback names
    them, the innermost first; empty: it has no lines of code."""
    lines = [line for line in traceback.splitlines() if not is_decoration(line)]
    found = [(frame_in(line), code) for line, code in pairwise(lines) if code.startswith("    ")]
    calls = [f"{frame}: {code.strip()}" for frame, code in found if frame and is_own(frame.path)]
    return calls[::-1][:_MOST_FRAMES]


def _last_output(it: PastFailure, place: Path | Uri) -> str:
    """Returns the last line that an attempt printed before it failed; empty: it is not known."""
    log = it.log(place) if isinstance(place, Path) else None
    try:
        return "" if log is None else _last_line(Path(log))
    except OSError:  # told where the last failure's log is read
        return ""


def _last_line(log: Path) -> str:
    """Returns the last line of text in `log` before a traceback, without the secrets that we know,
    if possible one that says what failed; empty: there is none, or it is too long to be whole
    here."""
    tail = read_end(log, _MAX_TAIL).decode(errors="replace")
    if len(tail) >= _MAX_TAIL:  # of its first line an unknown part is missing, maybe of a secret
        tail = tail.partition("\n")[2]
    before = Redactor(os.environ).text(tail.partition(_TRACEBACK)[0])
    lines = [text for line in reversed(before.split("\n")) if (text := line.strip())]
    told = next((line for line in lines if not tells_only_the_end(line)), "".join(lines[:1]))
    return told[:_MAX_SHOWN]


def _standing(stacks: Path) -> Sequence[Frame]:
    """Returns the innermost calls of the main thread in the user's own code, else of all, the
    innermost first."""
    frames = main_stack(read_end(stacks, _MAX_STACKS).decode(errors="replace"))
    return _innermost([each for each in frames if is_own(each.path)]) or _innermost(frames)


def _innermost(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Returns the innermost calls, these first, without that of the bootstrap, which is ours."""
    return [each for each in reversed(frames) if _BOOTSTRAP not in each.path][:_MOST_FRAMES]


def _with_code(frame: Frame, stacks: Path | None) -> str:
    """Returns a call that a stack names, with its line of code; without it, if that cannot be read
    here, or the file was changed since the stack was written."""
    path = Path(frame.path)
    try:
        is_same = stacks is not None and path.stat().st_mtime <= stacks.stat().st_mtime
        lines = read_text(path).splitlines() if is_same else []
    except OSError:
        lines = []
    number = int(frame.line[:9])
    code = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    code = Redactor(os.environ).text(code)
    return f"{frame}: {code}" if code else str(frame)


def _stacks_beside(log: str | None) -> Path | None:
    """Returns the file with the stacks of the rank that printed `log`; None: it has none."""
    if log is None:
        return None
    beside = [Path(log).with_suffix(f".{name}") for name in STACKS_TO_READ]
    found = [each for each in beside if each.is_file() and each.stat().st_size > 0]
    return next(filter(_standing, found), found[0] if found else None)


def _process(job: JobView, past: Sequence[PastFailure]) -> Iterator[str]:
    """Yields which process failed, and when: what one searches a system's log for."""
    last = job.history.past.last_failed
    pids, hosts = _pids_and_hosts(job)
    ended = next((each.ended for each in past if each.attempt == last), None)
    if not pids or ended is None:
        return
    named = f"pid{'s' if len(pids) > 1 else ''} {pids_in_words(pids, hosts)}"
    here = job.told.supervisor.get("host") if job.told is not None else None
    if not hosts and here:
        named += f" on {here}"
    yield f"attempt {last} was {named}, and ended {ended}"


def _pids_and_hosts(job: JobView) -> tuple[Sequence[int], Sequence[str]]:
    """Returns the pid of each rank of the attempt that failed last, and its host where the ranks
    were on hosts of a cluster; empty: they are not known."""
    for each in reversed(job.history.transitions):
        event = each.event
        if isinstance(event, WorkersStarted) and event.attempt == job.history.past.last_failed:
            return event.pids, each.after.ladder.hosts(job.policy.phases[each.after.phase])
    return (), ()


def _where_to_read(
    job: JobView, failure: Failure, log: str | None, place: Path | Uri
) -> Iterator[str]:
    if log is not None:
        yield f"log: {log}"
    if isinstance(place, Path) and (stacks := _stacks_beside(log)) is not None:
        yield f"stacks: {stacks}"
    replay = replay_command(job, place, phase_of(job)) if failure.rule == NOT_FINITE else None
    more = [*filter(None, (replay,)), f"supervise explain {shlex.quote(str(place))}"]
    yield f"more: {'; '.join(more)}; supervise rules {failure.rule}"


def _earlier_ones(
    job: JobView, past: Sequence[PastFailure], last: Failure, place: Path | Uri
) -> Iterator[str]:
    latest = next((each for each in past if each.attempt == job.history.past.last_failed), None)
    for each in past:
        if each is not latest:
            yield from _earlier(each, latest, last, place)


def _earlier(
    it: PastFailure, latest: PastFailure | None, last: Failure, place: Path | Uri
) -> Iterator[str]:
    """Yields an earlier failure: in a word if it was like the `last` one; its advice only if that
    differs, too."""
    failure = it.failure
    alike = all(
        _DURATION.sub("", str(failure.get(key))) == _DURATION.sub("", str(getattr(last, key)))
        for key in ("cause", "root_cause", "where", "rule")
    )
    if alike:
        output = _last_output(it, place)
        also = latest is not None and output and output == _last_output(latest, place)
        after = ", after the same output" if also else ""
        yield f"before that, attempt {it.attempt}: the same{after}"
        return
    where = f", at {failure['where']}" if failure.get("where") else ""
    rule = f" (rule {failure.get('rule')!r})"
    told = f"{failure.get('cause')}: {failure.get('root_cause')}{where}{rule}"
    yield f"before that, attempt {it.attempt}: {told}"
    if failure.get("advice") != last.advice:
        yield f"what to do: {failure.get('advice')}"
    if (log := it.log(place)) is not None:
        yield f"log: {log}"
