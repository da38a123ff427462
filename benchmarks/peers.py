"""The programs that people use today to keep a trainer running, each in its own environment.

The virtual environments are made on first use, in `.peers/` (which git ignores). PyTorch is
installed without CUDA; such builds are on PyTorch's own index, which pip must know
(PIP_EXTRA_INDEX_URL). A peer that cannot be installed is left out of the numbers, with the reason.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).resolve().parents[1] / ".peers"

_TORCH = "torch==2.13.0+cpu"
_FOR_EVER = 1_000_000


class UnavailableError(Exception):
    """A contestant that cannot run here; the text says why."""


@dataclass(frozen=True)
class Peer:
    """A way to run a program again and again until it exits 0."""

    name: str
    requirements: tuple[str, ...]
    """The packages that pip installs for it; empty: it is already on this machine."""
    command: Callable[[Path, Sequence[str], Path], list[str]]
    """Makes the command line from the environment's bin folder, the program's argv and an empty
    folder.

    The command stays in the foreground, and may go on after the program has succeeded.
    """

    def prepared(self, argv: Sequence[str], folder: Path) -> list[str]:
        """Install the peer if necessary; returns the command line that runs `argv`. The peer may
        write to `folder`, which is empty.

        Raises:
            UnavailableError: the peer cannot be installed.
        """
        return self.command(self._bin(), argv, folder)

    def _bin(self) -> Path:
        venv = PEERS / self.name
        stamp = venv / "installed"
        wanted = "\n".join(self.requirements)
        if self.requirements and (not stamp.exists() or stamp.read_text() != wanted):
            _call([sys.executable, "-m", "venv", "--clear", str(venv)])
            pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            _call([*pip, "--disable-pip-version-check", *self.requirements])
            stamp.write_text(wanted)
        return venv / "bin"


def _call(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(f"{shlex.join(argv)}: {said[-1] if said else done.returncode}")


def _loop(bin_: Path, argv: Sequence[str], folder: Path) -> list[str]:
    program = "import subprocess, sys\nwhile subprocess.call(sys.argv[1:]): pass"
    return [sys.executable, "-S", "-c", program, *argv]


def _bash(bin_: Path, argv: Sequence[str], folder: Path) -> list[str]:
    return ["bash", "-c", 'until "$@"; do :; done', "bash", *argv]


def _torchrun(bin_: Path, argv: Sequence[str], folder: Path) -> list[str]:
    one = ["--standalone", "--nproc-per-node", "1", "--max-restarts", str(_FOR_EVER)]
    return [str(bin_ / "torchrun"), *one, "--no-python", *argv]


def _ft_launcher(bin_: Path, argv: Sequence[str], folder: Path) -> list[str]:
    one = ["--standalone", "--nproc-per-node", "1", "--max-restarts", str(_FOR_EVER)]
    return [str(bin_ / "ft_launcher"), *one, "--no-python", *argv]


def _supervisord(bin_: Path, argv: Sequence[str], folder: Path) -> list[str]:
    config = folder / "supervisord.conf"
    command = shlex.join(argv).replace("%", "%%")
    config.write_text(
        f"[supervisord]\nnodaemon=true\nlogfile={folder}/supervisord.log\n"
        f"pidfile={folder}/supervisord.pid\n\n"
        f"[program:trainer]\ncommand={command}\nstartsecs=0\nautorestart=unexpected\n"
        f"stdout_logfile={folder}/out.log\nstderr_logfile={folder}/err.log\n"
    )
    isolated = [str(bin_ / "python"), "-I"]  # PYTHONPATH has our package, also named `supervisor`
    return [*isolated, str(bin_ / "supervisord"), "-c", str(config)]


def _circus(bin_: Path, argv: Sequence[str], folder: Path) -> list[str]:
    """Checks the program every 0.1 s; circus's default is five seconds."""
    config = folder / "circus.ini"
    config.write_text(
        "[circus]\ncheck_delay = 0.1\nendpoint = ipc://" + f"{folder}/endpoint\n"
        f"pubsub_endpoint = ipc://{folder}/pubsub\n\n"
        f"[watcher:trainer]\ncmd = {shlex.join(argv)}\ncopy_env = True\nmax_retry = -1\n"
    )
    return [str(bin_ / "circusd"), str(config)]


def _jax_trainer(bin_: Path, argv: Sequence[str], folder: Path) -> list[str]:
    driver = Path(__file__).with_name("jax_trainer_driver.py")
    return [str(bin_ / "python"), "-P", str(driver), *argv, str(folder)]


SUBPROCESS = Peer("subprocess", (), _loop)
BASH = Peer("bash", (), _bash)
TORCHRUN = Peer("torchrun", (_TORCH, "numpy"), _torchrun)
SUPERVISORD = Peer("supervisord", ("supervisor==4.3.0", "setuptools<81"), _supervisord)
FT_LAUNCHER = Peer("ft_launcher", (_TORCH, "numpy", "nvidia-resiliency-ext==0.4.1"), _ft_launcher)
CIRCUS = Peer("circus", ("circus==0.19.0",), _circus)
JAX_TRAINER = Peer("jax_trainer", ("ray[train]==2.60.0", "jax==0.10.2"), _jax_trainer)
"""Its argv is that of `jax_trainer_driver`, and it needs a Ray cluster of its own."""

TRAINING_PEERS: Mapping[str, Peer] = {
    peer.name: peer for peer in (BASH, TORCHRUN, SUPERVISORD, FT_LAUNCHER)
}
