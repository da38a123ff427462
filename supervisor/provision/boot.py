"""What a slice begins with: a script that makes a bare machine run the job under our systemd unit.

It is part of the request for the slice, runs as root at each boot, and does again only what is not
done. Whoever may look at the machine can read it: it holds no secrets. Where it fails, and whenever
the unit ends, the machine tells so in an object beside the job's: a job that never began, or whose
model_dir belongs to somebody else, cannot say so itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from shlex import quote
from urllib.parse import quote as url_quote

from supervisor.protocol.location import Uri
from supervisor.protocol.messages import printable
from supervisor.provision.decide import MachineReport

UNIT_NAME = "supervise@.service"
MAX_BYTES = 256 << 10
"""Of one value in the metadata of a machine (Compute Engine's own limit)."""
_JOB = "job"
_MAX_TOLD = 500


@dataclass(frozen=True, slots=True)
class Machine:
    """What is to be on it. `package` is what pip is asked to install."""

    name: str
    config: str
    package: str
    model_dir: Uri


def unit() -> str:
    """Our systemd unit: the one in deploy/systemd."""
    return resources.files(__package__).joinpath(UNIT_NAME).read_text(encoding="utf-8")


def report_path(generation: int) -> str:
    """The object, below model_dir, in which a slice tells of itself."""
    return f"provision/{generation:06d}.txt"


def read_report(text: str) -> MachineReport:
    """What a machine has told: `exit CODE`, or `failed WHERE` and the end of its log."""
    head, *log = text.strip().splitlines() or [""]
    word, _, rest = head.partition(" ")
    if word == "exit" and rest.isdecimal():
        return MachineReport(exit_code=int(rest))
    end = " | ".join(line for line in log if line.strip())[-_MAX_TOLD:]
    return MachineReport(failed=printable(f"{head}: {end}" if end else head))


def script(machine: Machine, generation: int) -> str:
    """The startup script."""
    return _SCRIPT.format(
        name=machine.name,
        unit_name=UNIT_NAME,
        generation=generation,
        bucket=url_quote(machine.model_dir.bucket, safe=""),
        object=url_quote((machine.model_dir / report_path(generation)).path, safe=""),
        package=quote(machine.package),
        config=_file(f"/etc/supervise/{_JOB}.yaml", machine.config),
        unit=_file(f"/etc/systemd/system/{UNIT_NAME}", unit()),
        report=_file(f"/etc/systemd/system/{UNIT_NAME}.d/report.conf", _REPORT_UNIT),
        job=_JOB,
    )


def _file(path: str, text: str) -> str:
    """Shell that writes `text`, whatever is in it, to the file at `path`."""
    end = f"END-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return f"cat > {quote(path)} <<'{end}'\n{text.rstrip()}\n{end}"


_REPORT_UNIT = """\
[Service]
ExecStopPost=-/opt/supervise/report
"""

_SCRIPT = """\
#!/bin/bash
# Written by `supervise provision`: slice {generation} of {name}. Runs as root at each boot.
set -euo pipefail
log=/var/log/supervise-boot.log
exec > "$log" 2>&1
mkdir -p /opt/supervise /etc/supervise /etc/systemd/system/{unit_name}.d

# Tells `supervise provision` what its standard input says.
cat > /opt/supervise/tell <<'END-OF-TELL'
#!/bin/bash
set -euo pipefail
metadata=http://${{GCE_METADATA_HOST:-metadata.google.internal}}/computeMetadata/v1
token=$(curl -sSf --retry 5 -H 'Metadata-Flavor: Google' \\
  "$metadata/instance/service-accounts/default/token" |
  grep -o '"access_token" *: *"[^"]*"' | cut -d '"' -f 4)
storage=${{STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}}/upload/storage/v1/b/{bucket}
curl -sSf --retry 5 -o /dev/null -X POST --data-binary @- \\
  -H "Authorization: Bearer $token" -H 'Content-Type: text/plain' \\
  "$storage/o?uploadType=media&name={object}"
END-OF-TELL
# What systemd runs whenever the job's unit has ended.
cat > /opt/supervise/report <<'END-OF-REPORT'
#!/bin/bash
if [ "${{EXIT_CODE:-}}" = exited ]; then echo "exit $EXIT_STATUS" | /opt/supervise/tell; fi
END-OF-REPORT
chmod +x /opt/supervise/tell /opt/supervise/report

failed() {{
  {{ echo "failed at line $1 of the startup script"; tail -c 2000 "$log"; }} | /opt/supervise/tell
}}
trap 'failed $LINENO' ERR

package={package}
if [ "$(cat /opt/supervise/installed 2>/dev/null)" != "$package" ]; then
  python=python3.11
  if command -v python3.12; then python=python3.12; fi
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=600 update
    apt-get -o DPkg::Lock::Timeout=600 install -y "$python" "$python-venv"
  fi
  "$python" -m venv /opt/supervise
  /opt/supervise/bin/pip install --retries 10 "$package"
  echo "$package" > /opt/supervise/installed
fi

{config}
{unit}
{report}
systemctl daemon-reload
systemctl enable supervise@{job}
systemctl start --no-block supervise@{job}
"""
