"""Check of the devices: how jax sees them, and whether each computes.

A process of its own asks jax, in the interpreter that would run the program. It opens no TPU or GPU
that another process has open: who has it is told instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from supervisor.adapters.platforms.accelerators import NVIDIA, TPU, chips, holders
from supervisor.doctor.examination import Finding, note, ok, wrong
from supervisor.doctor.interpreter import Program, QuestionError, ask
from supervisor.engines.holders import each_told
from supervisor.host.identity import Identity
from supervisor.protocol.environment import SHARES_TPU
from supervisor.protocol.this_machine import missing_gpu

DEVICES = "devices"
TIMEOUT = 90.0
"""Seconds for jax to find the devices and to compute on each: on a large host it takes half a
minute."""
BOUND = TIMEOUT + 10.0
"""Seconds for the whole check."""
_ASK = """\
import json, os, sys
from importlib.util import find_spec
os.nice(10)
if find_spec("jax") is None:
    print(json.dumps({"jax": None}))
    sys.exit()
import jax
found = jax.local_devices()
bad = {}
for device in found:
    try:
        answer = float(jax.device_put(1.0, device) + 1.0)
        if answer != 2.0:
            bad[str(device)] = f"computes that 1 + 1 = {answer}"
    except Exception as error:
        bad[str(device)] = f"{type(error).__name__}: {error}"[:300]
kinds = sorted({device.device_kind for device in found})
print(json.dumps({"jax": jax.__version__, "platform": found[0].platform, "kinds": kinds,
                  "count": len(found), "bad": bad}))
sys.stdout.flush()
os._exit(0)
"""
_LEAVES_NOTHING = {
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TPU_LOG_DIR": "disabled",
    SHARES_TPU: "1",
}
"""What keeps jax from leaving files behind (libtpu's lock file and logs, compiled programs), and
from taking the memory of a GPU. Nobody else has the TPU open then."""
_JAX_NAMES = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}


def devices(
    program: Program, owner: Identity | None, redact: Callable[[str], str]
) -> Iterator[Finding]:
    """Yields how jax sees the devices of this host in the interpreter of `program`. `owner` is the
    supervisor of the job, which runs; None: it does not run here."""
    if program.platform == "gpu" and (missing := missing_gpu()) is not None:
        yield wrong(DEVICES, missing)
    elif not program.words:  # the check of the versions says it
        return
    elif (why := _in_use(program, owner, redact)) is not None:
        yield why
    else:
        yield from _asked(program)


def _asked(program: Program) -> Iterator[Finding]:
    try:
        told = ask(program, _ASK, TIMEOUT, _LEAVES_NOTHING)
    except QuestionError as error:
        yield wrong(DEVICES, f"jax cannot use the devices: {error}", _remedy(program))
        return
    yield from _judged(program, told)


def _in_use(
    program: Program, owner: Identity | None, redact: Callable[[str], str]
) -> Finding | None:
    """Returns who has the accelerators; None: nobody, so they may be opened."""
    if program.platform == "cpu":
        return None
    told = list(each_told(holders(TPU, NVIDIA), redact))
    if told:
        text = f"jax is not asked, because the devices are in use: {'; '.join(told)}"
        return (ok if owner is not None else note)(DEVICES, text)
    if owner is not None and (chips() or missing_gpu() is None):
        text = f"jax is not asked, because the job runs ({owner}) and may have the devices open"
        return ok(DEVICES, text)
    return None


def _judged(program: Program, told: Mapping[str, Any]) -> Iterator[Finding]:
    if told["jax"] is None:
        yield note(DEVICES, f"jax is not asked: {program} has none")
        return
    platform = _JAX_NAMES.get(str(told["platform"]), str(told["platform"]))
    count, bad = int(told["count"]), told["bad"]
    seen = f"{count} {platform} device{'s' * (count != 1)} ({', '.join(map(str, told['kinds']))})"
    for device, why in bad.items():
        yield wrong(DEVICES, f"{device} does not compute: {why}", _remedy(program))
    there = "tpu" if chips() else "gpu" if missing_gpu() is None else None
    wanted = program.platform or there
    if wanted in ("gpu", "tpu") and platform != wanted:
        what = "the config asks for" if program.platform else "this machine has"
        text = f"jax {told['jax']} sees {seen}, and {what} a {wanted.upper()}"
        yield wrong(DEVICES, text, _remedy(program, wanted))
        return
    enough = program.num_devices
    if platform != "cpu" and enough is not None and count < enough:
        text = f"jax sees {seen}, and the config asks for {enough}"
        yield wrong(DEVICES, text, "have the host see them (nvidia-smi, ls /dev), or ask for fewer")
    elif not bad:
        yield ok(DEVICES, f"jax {told['jax']} sees {seen}, and each computes")


def _remedy(program: Program, wanted: str | None = None) -> str:
    extra = {"gpu": "cuda12", "tpu": "tpu"}.get(wanted or program.platform or "")
    install = f"; perhaps {program} -m pip install -U 'jax[{extra}]'" if extra else ""
    return f"see all that it says: {program} -c 'import jax; print(jax.devices())'{install}"
