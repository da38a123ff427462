"""Hosts of a cluster on one machine: each has a network, processes and a host name of its own.

A host is a set of namespaces. Its first process is `sleep`; when that is killed, the kernel kills
all others of the host at once. All hosts are on one bridge. They share the machine's files, so
model_dir is shared as on NFS; what Ray keeps on a machine (/tmp/ray, /dev/shm) is private.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.running import eventually

_NET = "10.77.0."
_MAX_HOSTS = 200
_MOUNT = ("mount", "-t", "tmpfs", "none", "/mnt")
_NOBODY = "02:00:00:00:00:01"
"""The link address of no host: what is sent to it is lost, and nobody is told."""
_SCRIPT = """
hostname "$1"
mount --bind "$2" /etc/hosts
mkdir -p "$3/ray" "$3/shm"
mkdir -p /tmp/ray
mount --bind "$3/ray" /tmp/ray
mount -t tmpfs none /dev/shm
ip link set lo up
echo ready > "$3/ready"
exec sleep infinity
"""


@cache
def may_have_hosts() -> bool:
    """Whether this process may make the namespaces, bridges and mounts of a host."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    name = f"try-{uuid.uuid4().hex[:8]}"
    inside = ("ip", "netns", "exec", name)
    tried = (
        ("ip", "netns", "add", name),
        ("ip", "-n", name, "link", "add", "br0", "type", "bridge"),
        ("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
        (*inside, "unshare", "--pid", "--mount", "--uts", "--fork", *_MOUNT),
    )
    try:
        return all(_works(*argv) for argv in tried)
    finally:
        _works("ip", "netns", "del", name)


def _works(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _run(*argv: str, feed: str = "") -> None:
    subprocess.run(argv, input=feed, text=True, check=True, capture_output=True, timeout=60)


@dataclass
class HostOfTests:
    """A host that can vanish, freeze, or lose its network."""

    name: str
    address: str
    net: str
    """Its network namespace."""
    link: str
    """The end of its cable that is on the bridge, in the namespace `hub`."""
    hub: str
    init: subprocess.Popen[bytes]
    """The process outside that waits for the host's first one."""
    entered: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The processes outside that have started something on it."""
    is_broken: bool = False
    """Whether it was ever frozen or lost its network: it is not used for another test."""

    @property
    def first(self) -> int:
        """The pid, seen from outside, of the host's first process."""
        path = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children")
        return int(path.read_text().split()[0])

    def inside(self, *argv: str) -> list[str]:
        """The command line that runs `argv` on the host."""
        return ["nsenter", "-t", str(self.first), "-n", "-p", "-m", "-u", "--", *argv]

    def start(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, **how: object
    ) -> subprocess.Popen[bytes]:
        """Start a command on the host."""
        whole = {**os.environ, **(env or {})}
        started: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            self.inside(*argv), env=whole, **how
        )
        self.entered.append(started)
        return started

    def processes(self) -> list[int]:
        """The pids of all its processes, seen from outside."""
        try:
            own = Path(f"/proc/{self.first}/ns/pid").readlink()
        except (OSError, IndexError):
            return []
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (place / "ns/pid").readlink() == own:
                    found.append(int(place.name))
        return found

    def vanish(self) -> None:
        """Kill the host and all on it at once, as if its power failed: it says goodbye to nobody.

        The kernel would close the connections of what it kills, so the cable is pulled before.
        """
        self.is_broken = True
        with suppress(subprocess.CalledProcessError):  # it is vanishing for the second time
            self.cut()
        with suppress(OSError, IndexError):
            os.kill(self.first, signal.SIGKILL)
        self.init.wait(30)

    def cut(self) -> None:
        """Pull its cable: nothing goes in or out."""
        self.is_broken = True
        _run("ip", "-n", self.hub, "link", "set", self.link, "down")

    def plug_in(self) -> None:
        """Put the cable back."""
        _run("ip", "-n", self.hub, "link", "set", self.link, "up")

    def freeze(self) -> None:
        """Stop all its processes."""
        self.is_broken = True
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all its processes go on."""
        self._signal_all(signal.SIGCONT)
        self.continue_entered()

    def continue_entered(self) -> None:
        """Let the processes outside go on: `nsenter` stops with what it has started."""
        for outside in self.entered:
            outside.send_signal(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Signal all but the first process: `unshare`, which waits for it, would stop with it."""
        for pid in set(self.processes()) - {self.first}:
            with suppress(OSError):
                os.kill(pid, number)


@dataclass
class Network:
    """The bridge and the hosts on it."""

    folder: Path
    hub: str = field(default_factory=lambda: f"hub-{uuid.uuid4().hex[:8]}")
    hosts: list[HostOfTests] = field(default_factory=list)
    _made: int = 0

    def open(self) -> None:
        """Make the bridge."""
        _run("ip", "netns", "add", self.hub)
        _run("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self.hub, "link", "set", "br0", "up")

    def host(self) -> HostOfTests:
        """Add a host."""
        self._made += 1
        number = self._made
        name, address = f"h{number}", f"{_NET}{number}"
        net, link = f"{self.hub}-{number}", f"v{self.hub[4:]}{number}"
        _run("ip", "netns", "add", net)
        _run("ip", "-n", self.hub, "link", "add", link, "type", "veth", "peer", "name", "eth0")
        _run("ip", "-n", self.hub, "link", "set", "eth0", "netns", net)
        _run("ip", "-n", self.hub, "link", "set", link, "master", "br0", "up")
        _run("ip", "-n", net, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", net, "link", "set", "eth0", "up")
        own = self.folder / name
        own.mkdir()
        names = self.folder / "hosts"
        names.write_text(
            "127.0.0.1 localhost\n" + "".join(f"{_NET}{at} h{at}\n" for at in range(1, _MAX_HOSTS))
        )
        init = subprocess.Popen(
            [
                *("ip", "netns", "exec", net),
                *("unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child"),
                *("--mount-proc", "sh", "-ec", _SCRIPT, "sh", name, str(names), str(own)),
            ],
            stdin=subprocess.DEVNULL,
        )
        assert eventually(lambda: (own / "ready").exists(), 30), f"{name} does not come up"
        host = HostOfTests(name, address, net, link, self.hub, init)
        self.hosts.append(host)
        return host

    def mute(self, host: HostOfTests) -> None:
        """Lose all that the host sends from now on; what is sent to it still arrives."""
        host.is_broken = True
        self._lose(host, [other for other in self.hosts if other is not host])

    def deafen(self, host: HostOfTests) -> None:
        """Lose all that is sent to the host from now on; what it sends still arrives."""
        host.is_broken = True
        for other in self.hosts:
            if other is not host:
                self._lose(other, [host])

    def _lose(self, sender: HostOfTests, receivers: Sequence[HostOfTests]) -> None:
        """Lose all that `sender` sends to `receivers`: it has a wrong link address of them."""
        lines = "".join(
            f"neigh replace {each.address} lladdr {_NOBODY} nud permanent dev eth0\n"
            for each in receivers
        )
        _run("ip", "-n", sender.net, "-batch", "-", feed=lines)

    def remove(self, host: HostOfTests) -> None:
        """Kill a host, and remove its network."""
        host.vanish()
        self.hosts.remove(host)
        subprocess.run(("ip", "netns", "del", host.net), capture_output=True, check=False)

    def close(self) -> None:
        """Kill the hosts and remove the networks."""
        for host in list(self.hosts):
            self.remove(host)
        subprocess.run(("ip", "netns", "del", self.hub), capture_output=True, check=False)


@contextmanager
def network() -> Iterator[Network]:
    """Yield a network without hosts; at the end nothing of it is left."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))
    made = Network(folder)
    try:
        made.open()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
