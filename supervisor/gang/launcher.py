"""Has Ray run on this host for as long as the job lasts, and ends as the leader does.

The launcher takes no part in the job. It starts `ray start --block` and, on the first host,
`supervise run`; it passes signals on, starts Ray again where it has ended, and leaves no process
behind. Signals wait in a queue (`_Signals`), so nothing interrupts what is under way.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from supervisor.core.exit_codes import ExitCode
from supervisor.gang.gang_record import EndWatch, GangRecord, RecordPlace
from supervisor.gang.which_host import Place
from supervisor.host import birth, gang_config, tree
from supervisor.host.idle_signals import IDLE, ignored
from supervisor.host.outlet import say_on_stderr
from supervisor.host.waiting import reaped

_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_PATIENCE = 600.0
"""Seconds that a host waits for the first one."""
_PAUSE = 5.0
"""Seconds between two starts of Ray."""
_TO_START = 60.0
"""Seconds in which Ray starts, or never does."""
_TO_END = 3.0
"""Seconds in which Ray ends after its raylet, or never does: `ray start --block` outlives a raylet
that was stopped. A signal would not help: it locks up a `ray start` that is ending its processes
(its handler waits for a lock that the interrupted code holds)."""
_CONNECT = 2.0
_RAY_HEAD = ("--head", "--disable-usage-stats", "--include-dashboard=false")
_STORE = "--object-store-memory=100000000"
"""Bytes of Ray's object store: the job sends small messages only."""
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""With Ray's own values a lost host is told after 14 to 64 s, with these after 3 to 8 s."""
_NICENESS = {"RAY_worker_niceness": "0"}
"""Ray starts actors, so also the workers of the job, with a niceness of 15, and not everybody may
undo that."""


class _EarlyEndError(Exception):
    """This host ends before the leader has told its own end; `code` is what it ends with."""

    def __init__(self, code: ExitCode, text: str) -> None:
        """`text` says why."""
        super().__init__(text)
        self.code = code


class Launcher:
    """The processes of the cluster and of the leader on this host."""

    def __init__(
        self,
        place: Place,
        record: RecordPlace,
        run: Sequence[str],
        ray: str,
        grace: int,
        exit_codes: Mapping[int, int],
        config: str,
    ) -> None:
        """`run` is the command of the leader, and `ray` the path of Ray's command. `grace`: the
        seconds that the workers of this host have when it goes away. `exit_codes` replace ours.
        `config` is the digest of the job's config on this host (`gang_config`)."""
        self._place = place
        self._record = record
        self._run = run
        self._command = ray
        self._grace = grace
        self._exit_codes = exit_codes
        self._config = config
        self._signals = _Signals()
        self._ray: _Ray | None = None
        self._stopped_by: int | None = None
        self._spared = {os.getsid(0)}
        """The sessions that the end of Ray leaves alone: our own, whose processes we have not
        started, and the leader's."""
        self._token_file = tempfile.NamedTemporaryFile("w", prefix="supervise-ray-")  # noqa: SIM115

    def work(self) -> int:
        """Run until the job has ended, or until this host is told to go; returns the exit code.

        Raises:
            OSError: the leader cannot write to model_dir.
        """
        birth.become_subreaper()
        with self._token_file, self._signals:
            try:
                return self._lead() if self._place.leads else self._follow()
            finally:
                self._spared = {os.getsid(0)}
                self._end_ray()

    def _lead(self) -> int:
        begun = GangRecord(self._place.launch, secrets.token_hex(32))
        self._record.write(begun)
        try:
            code = self._run_on_head(begun.token)
        except _EarlyEndError as ended:
            code = self._told(ended)
        try:
            self._record.write(replace(begun, code=code))
        except OSError as error:
            self._say(f"{error}: the other hosts are not told that the leader has ended")
        return code

    def _run_on_head(self, token: str) -> int:
        self._ray = self._start_ray(token)
        while not self._ray.is_ready(self._place.address):
            if (number := self._next_stop(0.2)) is not None:
                raise _stopped(number)
            if self._ray.has_ended():
                text = f"Ray cannot be started on this host: {self._ray.told()}"
                raise _EarlyEndError(ExitCode.NO_CAPACITY, text)
        self._say(f"the head of the cluster is ready at port {self._place.port}")
        env = {**self._environment(), "RAY_ADDRESS": self._place.address}
        leader = self._signals.start(self._run, env)
        self._spared.add(leader.pid)
        while (code := leader.poll()) is None:
            if (number := self._next_stop(1.0)) is not None:
                leader.send_signal(number)
            if self._ray.has_ended() and self._ray.age > _PAUSE:
                self._say(f"the head of the cluster has ended: {self._ray.told()}; again")
                self._end_ray()
                self._ray = self._start_ray(token)
        return code if code >= 0 else 128 - code

    def _follow(self) -> int:
        again = {self._mapped(code) for code in ExitCode if code.run_again}
        end, found = EndWatch(self._place.launch, again), None
        self._say(f"waiting for the first host, at {self._place.address}")
        began = without = time.monotonic()
        while (code := end.look(found := self._look(found), time.monotonic() - began)) is None:
            try:
                if self._ray is None:
                    self._join(found, without + _PATIENCE)
                elif self._has_left(self._ray):
                    without = time.monotonic()
            except _EarlyEndError as ended:
                return self._told(ended)
            if (number := self._next_stop(self._record.interval)) is not None:
                self._stopped_by = number
                if self._ray is not None:  # it drains: the leader takes the work off this host
                    self._ray.request_stop()
        self._say(f"the leader has ended with exit code {code}")
        return code

    def _join(self, found: GangRecord | None, deadline: float) -> None:
        """Start Ray here if the first host is there."""
        if self._stopped_by is not None:
            raise _stopped(self._stopped_by)
        if found is not None and found.code is None and _answers(self._place.address):
            self._say(f"joining the cluster at {self._place.address}")
            self._ray = self._start_ray(found.token)
        elif time.monotonic() > deadline:
            raise _EarlyEndError(
                ExitCode.NO_CAPACITY,
                f"nobody leads at {self._place.address} after {_PATIENCE:.0f} s: does the first "
                "host run the same command, with the same model_dir?",
            )

    def _has_left(self, ray: _Ray) -> bool:
        """Whether Ray has ended on this host; then it may be started again."""
        had_joined = ray.has_joined
        if ray.has_ended():
            if self._stopped_by is None:
                self._say(f"Ray has ended on this host: {ray.told()}")
            self._end_ray()
        elif ray.has_joined and not had_joined:
            self._say("joined")
        return self._ray is None

    def _look(self, before: GangRecord | None) -> GangRecord | None:
        """Returns the record; `before` where it cannot be read now."""
        try:
            return self._record.read()
        except (OSError, ValueError) as error:
            self._say(f"{error}; looking again")
            return before

    def _start_ray(self, token: str) -> _Ray:
        self._token_file.seek(0)
        self._token_file.truncate()
        self._token_file.write(token)
        self._token_file.flush()
        where: tuple[str, ...] = (*_RAY_HEAD, f"--port={self._place.port}")
        drain = 0  # the leader has ended before the head is stopped
        if not self._place.leads:
            where, drain = (f"--address={self._place.address}",), self._grace
        env = {**self._environment(), "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(drain)}
        return _Ray(self._signals, [self._command, "start", "--block", *where, _STORE], env)

    def _environment(self) -> dict[str, str]:
        """Returns the environment of what uses the cluster. With the token nobody else can use it,
        and no host joins one that is not the job's. Values of the user come first."""
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self._token_file.name}
        return {
            **_HEALTH,
            **_NICENESS,
            **({} if "RAY_AUTH_MODE" in os.environ else token),
            **os.environ,
            gang_config.VARIABLE: self._config,
        }

    def _end_ray(self) -> None:
        """Kill Ray's processes and the actors on this host; returns once none is left. Nothing is
        lost: Ray has drained this host before, or the leader has ended, or it is Ray that has."""
        while tree.kill_children(self._spared):
            self._signals.reap()
            time.sleep(0.01)
        if self._ray is not None:
            self._ray.close()
        self._ray = None

    def _told(self, ended: _EarlyEndError) -> int:
        """Tell why this host has ended; returns its exit code."""
        self._say(str(ended))
        return self._mapped(ended.code)

    def _mapped(self, code: int) -> int:
        return self._exit_codes.get(code, int(code))

    def _next_stop(self, seconds: float) -> int | None:
        """Wait for a signal for so long; returns it if it asks to stop."""
        number = self._signals.next(seconds)
        if number is not None and number in IDLE:
            self._say(ignored(number))
        return number if number in _STOP else None

    def _say(self, text: str) -> None:
        say_on_stderr(f"supervise gang: host {self._place.name}: {text}")


class _Ray:
    """`ray start --block`, and what it has started."""

    def __init__(self, signals: _Signals, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._began = time.monotonic()
        self.has_joined = False
        """Whether this host has been a member."""
        self._without_raylet: float | None = None
        """Since when it has no raylet any more; None: it has one, or never had."""
        self._process = signals.start(command, env, self._output)

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def has_ended(self) -> bool:
        """Whether this host is no member any more: what is left of Ray may be killed."""
        if self._process.poll() is not None:
            return True
        if self._has_raylet():
            self.has_joined, self._without_raylet = True, None
            return False
        if not self.has_joined:
            return self.age > _TO_START
        now = time.monotonic()
        self._without_raylet = self._without_raylet or now
        return now - self._without_raylet > _TO_END

    def is_ready(self, address: str) -> bool:
        """Whether a driver on this host can join."""
        return self._has_raylet() and _answers(address)

    def told(self) -> str:
        """Returns its exit code, and the end of what it printed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").split("\n")
        end = " / ".join([line.strip() for line in lines if line.strip()][-3:])
        code = self._process.returncode
        return f"{'its raylet is gone' if code is None else f'exit code {code}'}; {end}"

    def request_stop(self) -> None:
        """Send SIGTERM: Ray drains this host, then ends. A second one changes nothing."""
        self._process.terminate()

    def close(self) -> None:
        """Forget it, once it is killed."""
        self._process.wait()
        self._output.close()

    def _has_raylet(self) -> bool:
        return any(_name(pid) == "raylet" for pid in tree.children(self._process.pid))


class _Signals:
    """Signals that wait until they are asked for; none interrupts what is under way."""

    _WATCHED = _STOP | IDLE | {signal.SIGCHLD}

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._WATCHED)

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def next(self, seconds: float) -> int | None:
        """Returns the next signal; None: there was none for so long."""
        info = signal.sigtimedwait(self._WATCHED, seconds)
        if info is not None and info.si_signo == signal.SIGCHLD:
            self.reap()
        return None if info is None else info.si_signo

    def reap(self) -> None:
        """Reap all that have ended: those that we have started, whose exit codes are kept, and the
        orphans that have become our children."""
        self._started = [each for each in self._started if each.poll() is None]
        ours = {each.pid for each in self._started}
        for pid in tree.children(os.getpid()):
            if pid not in ours:
                reaped(pid)

    def start(
        self, command: Sequence[str], env: Mapping[str, str], output: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process that gets only the signals that we pass on, and SIGTERM if we die."""
        parent = os.getpid()

        def in_child() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            birth.drain_with_parent(parent)

        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            start_new_session=True,
            preexec_fn=in_child,
        )
        self._started.append(process)
        return process


def find_ray() -> str | None:
    """Returns the path of Ray's command: beside this Python, whose Ray the leader and the agents
    use, or else on PATH; None: it is missing."""
    return shutil.which("ray", path=str(Path(sys.executable).parent)) or shutil.which("ray")


def _answers(address: str) -> bool:
    """Whether somebody listens at `address`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _CONNECT).close()
    except OSError:
        return False
    return True


def _stopped(number: int) -> _EarlyEndError:
    """Returns the end of a host that a signal has stopped before the leader has told its end."""
    code = ExitCode.STOPPED if number == signal.SIGINT else ExitCode.DRAINED
    return _EarlyEndError(code, f"stopped by {signal.Signals(number).name}")


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
