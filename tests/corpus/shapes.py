"""What terminals, launchers and log collectors make of an output: transformations of its bytes."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping

Shape = Callable[[bytes], bytes]
Prefix = Callable[[int], str]


def lines_of(log: bytes) -> list[bytes]:
    """The lines as collectors cut them: at line feeds alone."""
    return [line for line in re.split(rb"(?<=\n)", log) if line]


def before_each_line(prefix: Prefix) -> Shape:
    """Puts `prefix(number)` before each line."""

    def shaped(log: bytes) -> bytes:
        return b"".join(prefix(number).encode() + line for number, line in enumerate(lines_of(log)))

    return shaped


def packed(entry: Callable[[int, str], object]) -> Shape:
    """Packs each line into JSON."""

    def shaped(log: bytes) -> bytes:
        lines = [line.decode("utf-8", "replace") for line in lines_of(log)]
        return "".join(json.dumps(entry(n, line)) + "\n" for n, line in enumerate(lines)).encode()

    return shaped


def _clock(number: int) -> str:
    return f"{9 + number // 3600 % 12:02d}:{number // 60 % 60:02d}:{number % 60:02d}"


def _level(number: int) -> str:
    return ("INFO", "INFO", "WARNING", "INFO", "ERROR")[number % 5]


def _recoded(coding: str, mark: bytes = b"") -> Shape:
    return lambda log: mark + log.decode("utf-8", "replace").encode(coding)


def _with_bar(log: bytes) -> bytes:
    bar = "".join(f"\r{n:3d}%|{'#' * n:<10}| {n}/10 [00:0{n}<00:01, 1.0it/s]" for n in range(10))
    return b"".join(bar.encode() + b"\r" + line for line in lines_of(log))


PREFIXES: Mapping[str, Prefix] = {
    "absl": lambda n: f"I1122 {_clock(n)}.{n % 10**6:06d} 140586592308096 launcher.py:77] ",
    "logging": lambda n: f"2026-11-22 {_clock(n)},{n % 1000:03d} - worker - INFO - ",
    "basic-logging": lambda _: "INFO:worker:",
    "levels": lambda n: f"[2026-11-22 {_clock(n)},123][__main__][{_level(n)}] - ",
    "journald": lambda n: f"Nov 22 {_clock(n)} tpu-host-3 python3[4711]: ",
    "journald-iso": lambda n: f"2026-11-22T{_clock(n)}+0000 tpu-host-3 train.sh[4711]: ",
    "kubectl-timestamps": lambda n: f"2026-11-22T{_clock(n)}.{n % 10**9:09d}Z ",
    "kubectl-prefix": lambda _: "[pod/train-workers-0-0-x7fqk/jax-tpu] ",
    "kubectl-selector": lambda _: "train-workers-0-0-x7fqk jax-tpu ",
    "compose": lambda _: "trainer-1  | ",
    "srun": lambda _: "3: ",
    "srun-padded": lambda _: " 3: ",
    "mpirun-tag": lambda _: "[1,0]<stderr>:",
    "mpirun-tag-spaced": lambda _: "[job42,3]<stderr>: ",
    "mpirun-prefix": lambda _: "node07: ",
    "torchelastic": lambda _: "[default0]:",
    "torchrun": lambda _: "[rank3]: ",
    "ray": lambda _: "(RayTrainWorker pid=123, ip=10.0.0.2) ",
    "ray-local": lambda _: "(train pid=4711) ",
    "xpk": lambda n: f"[XPK] 2026-11-22 {_clock(n)} train-slice-job-0-0: ",
    "cri": lambda n: f"2026-11-22T{_clock(n)}.123456789Z stderr F ",
    "docker-times": lambda n: f"2026-11-22T{_clock(n)}.12345Z ",
    "epoch": lambda n: f"1763800000.{n:06d} ",
    "coloured": lambda _: "\x1b[36m(worker pid=7)\x1b[0m ",
    "unheard-of": lambda _: "<<gang7/node12>> ",
    "numbered": lambda n: f"{n:6d}\t",
    "quoted": lambda _: "> ",
    "indented": lambda _: "      ",
    "tab": lambda _: "\t",
}
SHAPES: Mapping[str, Shape] = {
    **{name: before_each_line(prefix) for name, prefix in PREFIXES.items()},
    "docker-json": packed(lambda n, line: {"log": line, "stream": "stderr", "time": _clock(n)}),
    "gcp-text": packed(
        lambda n, line: {
            "insertId": f"a{n}",
            "resource": {"type": "k8s_container", "labels": {"pod_name": "train-0"}},
            "textPayload": line.rstrip("\n"),
            "severity": "ERROR",
        }
    ),
    "gcp-json": packed(
        lambda n, line: {"jsonPayload": {"message": line, "pid": 7}, "timestamp": _clock(n)}
    ),
    "journald-json": packed(
        lambda n, line: {"MESSAGE": line.rstrip("\n"), "_PID": "7", "PRIORITY": "6"}
    ),
    "crlf": lambda log: log.replace(b"\n", b"\r\n"),
    "progress-bars": _with_bar,
    "utf-8-bom": _recoded("utf-8", codecs.BOM_UTF8),
    "utf-16-le": _recoded("utf-16-le"),
    "utf-16-be": _recoded("utf-16-be"),
    "utf-16-le-bom": _recoded("utf-16-le", codecs.BOM_UTF16_LE),
    "utf-16-be-bom": _recoded("utf-16-be", codecs.BOM_UTF16_BE),
}
LAST = ("crlf", "utf-8-bom", "utf-16-le", "utf-16-be", "utf-16-le-bom", "utf-16-be-bom")
"""What can only come after all others: it changes the bytes of all that is there."""
