"""Carries out the decisions about the slice of a job, turn by turn, until the job has ended.

A turn reads provision.json in the bucket, observes the slices and the job, decides, saves the new
state, and only then acts on it. A decision needs nothing that an earlier turn kept in memory. So a
loop can be killed at any point, and another loop continues.

The newest loop owns the job. It writes its name into the state, in place of the version that it has
read. The previous loop finds that name in its next turn, or at the latest in its next write, and
ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from supervisor.files.live_status import STATUS
from supervisor.host.retry import Pauses
from supervisor.ports import (
    Clock,
    ConflictError,
    Objects,
    Slices,
    UnavailableError,
)
from supervisor.protocol import removal
from supervisor.protocol.messages import printable
from supervisor.protocol.reading import UnreadableError, parse_object
from supervisor.protocol.removal import Place
from supervisor.provision import boot, tell
from supervisor.provision.decide import (
    Create,
    Delete,
    End,
    JobStatus,
    MachineReport,
    Observation,
    WaitUntil,
    decide,
    take_over,
)
from supervisor.provision.intent import LoopPolicy, ProvisionState, check, decode, encode

STATE = "provision.json"
_MAX_SIZE = 1 << 20
"""The most bytes of a report of a job or a slice."""
_MAX_FILE = 32 << 20
"""The most bytes of a file that a slice installs; a larger file is not ours, and is not removed."""
_MAX_WORD = 40
_MAX_CODE = 255
_LEASE = "lease.json"
_PAUSES = Pauses(10.0, 300.0)


class TakenOverError(Exception):
    """Another loop has taken over this job."""


class ProvisionLoop:
    """Keeps a slice alive for one job."""

    def __init__(
        self,
        slices: Slices,
        objects: Objects,
        policy: LoopPolicy,
        clock: Clock,
        *,
        owner: str,
        say: Callable[[str], None],
        pause: Callable[[float], None],
        accelerator_type: Callable[[int], str],
        files: Sequence[boot.File] = (),
        redact: Callable[[str], str] = str,
    ) -> None:
        """Takes over no job yet: the first turn does.

        `objects` are the objects below model_dir; `files` are those that a slice fetches from
        there. `owner` is a name that no other loop has. `say` tells a person one line; `pause`
        sleeps for a number of seconds; `accelerator_type` returns the name of a rung;
        `redact` removes the secrets from the report of a slice.
        """
        self._slices = slices
        self._objects = objects
        self._policy = policy
        self._clock = clock
        self._owner = owner
        self._say = say
        self._pause = pause
        self._accelerator_type = accelerator_type
        self._files = files
        self._redact = redact
        self._has_begun = False
        self._seen = Observation()

    def run(self) -> End:
        """Makes turns until the job has ended.

        Raises:
            TakenOverError: another loop has taken over this job.
            OSError: an error that only a person can correct.
        """
        failures = 0
        while True:
            try:
                outcome = self.turn()
            except UnavailableError as error:
                if failures == 0:
                    self._say(f"WARNING: {error}; retrying until it works")
                failures += 1
                self._pause(_PAUSES.before(failures))
                continue
            if failures:
                self._say("the cloud and the bucket answer again")
            failures = 0
            if isinstance(outcome, End):
                return outcome
            self._pause(max(0.0, outcome - self._now()))

    def turn(self) -> float | End:
        """Makes one turn; returns the time when the next one is due, or the end.

        Raises:
            TakenOverError: see `run`.
            UnavailableError: the cloud or the bucket does not answer now.
            OSError: see `run`.
        """
        state, version = self._load_state()
        seen = self._observe(state)
        while True:
            now = self._now()
            after, actions = decide(state, seen, now, self._policy)
            if after != state:
                version = self._save_state(after, version)
            for line in tell.lines(state, after, self._seen, seen, now, self._accelerator_type):
                self._say(line)
            state, self._seen = after, seen
            refusal, until = None, now
            for action in actions:
                match action:
                    case Create(generation, rung):
                        self._put_files()
                        refusal = self._slices.create(generation, rung)
                    case Delete(generation):
                        removal.remove_objects(
                            Place.QUEUED_RESOURCE, [generation], self._slices.delete
                        )
                    case WaitUntil(at):
                        until = at
                    case End():
                        return action
            if refusal is None:
                return until
            seen = replace(seen, refusal=refusal)

    def _put_files(self) -> None:
        """Writes the files that the next slice fetches to the bucket, and removes those of earlier
        slices, which are gone."""
        for file in self._files:
            there = self._read(file.path, len(file.data))
            if there is None or there[0] != file.data:
                self._objects.write(file.path, file.data)
        wanted = {file.sha256 for file in self._files}
        for digest in self._objects.list(boot.FILES).folders - wanted if wanted else ():
            for name in self._objects.list(f"{boot.FILES}/{digest}").objects:
                self._remove_file(f"{boot.FILES}/{digest}/{name}", digest)

    def _remove_file(self, path: str, digest: str) -> None:
        """Removes a file if it is ours: its content has the digest that is the name of its
        folder."""
        there = self._read(path, _MAX_FILE)
        if there is not None and hashlib.sha256(there[0]).hexdigest() == digest:
            removal.remove_objects(Place.INSTALLED, [path], self._objects.delete)

    def _now(self) -> float:
        return self._clock.wall().timestamp()

    def _load_state(self) -> tuple[ProvisionState, str]:
        """Returns the state and its version. In the first turn, takes over the job first.

        Raises:
            TakenOverError: another loop has taken over this job.
            OSError: the state is gone, or no loop can have written it.
        """
        try:
            stored = self._objects.read(STATE)
        except FileNotFoundError:
            if self._has_begun:
                raise OSError(f"{STATE} in model_dir is gone: somebody has removed it") from None
            found, version = None, ""
        else:
            version = stored.version
            try:
                found = decode(stored.data)
                check(found, self._policy)
            except ValueError as error:
                text = f"{STATE} in model_dir {error}; remove it to begin anew"
                raise OSError(text) from error
        if self._has_begun:
            assert found is not None
            if found.owner != self._owner:
                raise TakenOverError
            return found, version
        state = take_over(found, self._owner, self._policy)
        version = self._save_state(state, version)
        self._has_begun = True
        return state, version

    def _save_state(self, state: ProvisionState, version: str) -> str:
        """Saves `state` in place of the version `version`; returns the new version.

        Raises:
            TakenOverError: another loop has written a state.
        """
        data = encode(state)
        try:
            return self._objects.write(STATE, data, expected=version)
        except ConflictError:
            stored = self._objects.read(STATE)
            if stored.data != data:  # the same data: our write was done, only its answer was lost
                raise TakenOverError from None
            return stored.version

    def _observe(self, state: ProvisionState) -> Observation:
        status, lease = self._read(STATUS), self._read(_LEASE)
        told = self._read(boot.report_path(state.generation)) if state.generation else None
        machine = MachineReport()
        if told is not None:
            machine = boot.parse_report(self._redact(told[0].decode("utf-8", "replace")))
        return Observation(
            slices=self._slices.all(state.generation),
            status=_job_status(status[0]) if status is not None else None,
            machine=machine,
            sign="/".join(one[1] for one in (status, lease) if one is not None),
        )

    def _read(self, path: str, limit: int = _MAX_SIZE) -> tuple[bytes, str] | None:
        try:
            stored = self._objects.read(path, limit)
        except FileNotFoundError:
            return None
        except UnreadableError:  # it is larger than `limit`, so it is not ours: ignore its content
            return b"", ""
        return stored.data, stored.version


def _job_status(data: bytes) -> JobStatus:
    """Parses status.json. A content that cannot be parsed only gives a digest."""
    digest = hashlib.sha256(data).hexdigest()
    try:
        told = parse_object(data, STATUS)
        code, step = told["exit_code"], told["step"]
        parts = (str(told[name])[:_MAX_WORD] for name in ("status", "attempt", "step"))
        words = printable("{}, attempt {}, step {}".format(*parts))
    except (UnreadableError, KeyError):
        return JobStatus(digest, words="something that cannot be read")
    is_code = type(code) is int and 0 <= code <= _MAX_CODE
    is_step = type(step) is int and step >= 0
    return JobStatus(digest, code if is_code else None, step if is_step else None, words)
