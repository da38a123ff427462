"""Makes the startup script of a slice: on a bare machine, it runs the job under our systemd unit.

The script is part of the request for the slice. It runs as root at each boot, and repeats only the
steps that are not done yet. Everybody who can see the machine can read the script, so it has only
names and digests. The config, our wheel and the lock file with its dependencies are objects in the
bucket of the job. The machine fetches them with its own credentials, and uses them only if they
have the digests in the script.

If the script fails, and whenever the unit ends, the machine writes a report to an object of its
own. A job that never began, or whose model_dir another supervisor owns, cannot report that itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from shlex import quote
from urllib.parse import quote as url_quote

from supervisor.protocol.location import Uri
from supervisor.protocol.messages import printable
from supervisor.provision.decide import MachineReport

UNIT_NAME = "supervise@.service"
FILES = "provision/files"
"""The folder, below model_dir, of the files that slices fetch."""
_RULES_NAME = "70-supervise.rules"
_LOCK_NAME = "requirements-tpu.lock"
_ROOT = "root"
_JOB = "job"
_MAX_TOLD = 500
_UV = "uv==0.13.9 --hash=sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19"
"""uv's wheel for Linux on x86_64, which all TPU machines have. uv knows the digests of the Python
interpreters that it downloads from GitHub, and installs none with another digest (astral-sh/uv,
crates/uv-python/download-metadata.json; seen with 0.13.9)."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that the machine fetches from the bucket."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 digest of the content, as hex."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def path(self) -> str:
        """The name of the object, below model_dir. It has the digest, so other content has another
        name."""
        return f"{FILES}/{self.sha256}/{self.name}"


@dataclass(frozen=True, slots=True)
class MachineSetup:
    """What the machine must have to run the job; `user` is the user that runs the job."""

    name: str
    model_dir: Uri
    config: File
    wheel: File
    lock: File
    user: str

    @property
    def files(self) -> tuple[File, ...]:
        """The files that must be in the bucket before the machine boots."""
        return (self.config, self.wheel, self.lock)


def default_lock() -> File:
    """Returns the requirements file with hashes that our wheel needs on a TPU: the one in
    deploy/."""
    return File(_LOCK_NAME, resources.files(__package__).joinpath(_LOCK_NAME).read_bytes())


def unit_text() -> str:
    """Returns the text of our systemd unit: the one in deploy/systemd."""
    return resources.files(__package__).joinpath(UNIT_NAME).read_text(encoding="utf-8")


def report_path(generation: int) -> str:
    """Returns the name of the object, below model_dir, with the report of the slice
    `generation`."""
    return f"provision/{generation:06d}.txt"


def parse_report(text: str) -> MachineReport:
    """Parses the report of a machine: `exit CODE`, or `failed WHERE` and the end of its log."""
    head, *log = text.strip().splitlines() or [""]
    word, _, rest = head.partition(" ")
    if word == "exit" and re.fullmatch(r"\d{1,3}", rest, re.ASCII):
        return MachineReport(exit_code=int(rest))
    end = " | ".join(line for line in log if line.strip())[-_MAX_TOLD:]
    return MachineReport(failed=printable(f"{head}: {end}" if end else head))


def startup_script(machine: MachineSetup, generation: int) -> str:
    """Returns the startup script of the slice `generation`."""
    folder = resources.files(__package__)
    return _SCRIPT.format(
        name=machine.name,
        unit_name=UNIT_NAME,
        generation=generation,
        bucket=_quoted(machine.model_dir.bucket),
        report=_quoted((machine.model_dir / report_path(generation)).path),
        fetch_config=_fetch(machine, machine.config, f"/etc/supervise/{_JOB}.yaml"),
        fetch_wheel=_fetch(machine, machine.wheel, f"/opt/supervise/{machine.wheel.name}"),
        fetch_lock=_fetch(machine, machine.lock, "/opt/supervise/requirements.lock"),
        wheel=quote(f"/opt/supervise/{machine.wheel.name}"),
        uv=_UV,
        installed=f"{machine.wheel.sha256} {machine.lock.sha256}",
        user=_user(machine.user, folder.joinpath(_RULES_NAME).read_text(encoding="utf-8")),
        group=quote(machine.user),
        unit=_file(f"/etc/systemd/system/{UNIT_NAME}", unit_text()),
        here=_file(
            f"/etc/systemd/system/{UNIT_NAME}.d/provision.conf",
            _DROP_IN.format(user=machine.user, more=_AS_ROOT if machine.user == _ROOT else ""),
        ),
        job=_JOB,
    )


def _quoted(name: str) -> str:
    """Returns `name` escaped for use in a URL."""
    return url_quote(name, safe="")


def _fetch(machine: MachineSetup, file: File, path: str) -> str:
    """Returns shell code that fetches `file` to `path`, and checks its digest."""
    place = _quoted((machine.model_dir / file.path).path)
    return f"fetch {quote(place)} {file.sha256} {quote(path)}"


def _user(name: str, rules: str) -> str:
    """Returns shell code that creates the user of the job and gives it the devices; empty for
    root."""
    if name == _ROOT:
        return ""
    return _USER.format(
        name=quote(name),
        rules=_file(f"/etc/udev/rules.d/{_RULES_NAME}", rules.replace('"supervise"', f'"{name}"')),
    ).rstrip()


def _file(path: str, text: str) -> str:
    """Returns shell code that writes any `text` to the file at `path`."""
    end = f"END-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return f"cat > {quote(path)} <<'{end}'\n{text.rstrip()}\n{end}"


_DROP_IN = """\
[Service]
User={user}
Group={user}
{more}ExecStopPost=-/opt/supervise/report
"""

_AS_ROOT = "CapabilityBoundingSet=~\n"
"""For a job that runs as root: a device may need root's capabilities, which our unit takes away."""

_USER = """\
if ! id -u {name} > /dev/null 2>&1; then
  useradd --system --user-group --home-dir /var/lib/supervise --shell /usr/sbin/nologin {name}
fi
{rules}
if [ -S /run/udev/control ]; then
  udevadm control --reload
  udevadm trigger --settle --sysname-match='accel*'
  udevadm trigger --settle --subsystem-match=vfio
fi
"""

_SCRIPT = """\
#!/bin/bash
# Written by `supervise provision`: slice {generation} of {name}. Runs as root at each boot.
set -eEuo pipefail
log=/var/log/supervise-boot.log
exec 3>&1 > "$log" 2>&1  # 3: what the machine's serial console shows
mkdir -p /opt/supervise /etc/supervise /etc/udev/rules.d /etc/systemd/system/{unit_name}.d

# bucket get OBJECT PATH, bucket put OBJECT: by the credentials of the machine, which no command
# line shows.
cat > /opt/supervise/bucket <<'END-OF-BUCKET'
#!/bin/bash
set -euo pipefail
metadata=http://${{GCE_METADATA_HOST:-metadata.google.internal}}/computeMetadata/v1
# asked SECONDS CURL-ARGUMENTS...: ends a slow try, and repeats it for 10 minutes at most.
asked() {{
  curl -sSf --connect-timeout 20 --speed-limit 1000 --speed-time 60 --max-time "$1" \\
    --retry 5 --retry-connrefused --retry-max-time 600 "${{@:2}}"
}}
token=$(asked 60 -H 'Metadata-Flavor: Google' \\
  "$metadata/instance/service-accounts/default/token" |
  grep -o '"access_token" *: *"[^"]*"' | cut -d '"' -f 4 | head -n 1)
storage=${{STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}}
authorized() {{
  asked 300 -H @<(printf 'Authorization: Bearer %s\\n' "$token") "$@"
}}
case $1 in
  get) authorized -o "$3" "$storage/storage/v1/b/{bucket}/o/$2?alt=media" ;;
  put) authorized -o /dev/null -X POST --data-binary @- -H 'Content-Type: text/plain' \\
    "$storage/upload/storage/v1/b/{bucket}/o?uploadType=media&name=$2" ;;
esac
END-OF-BUCKET
# Tells `supervise provision` what its standard input says.
cat > /opt/supervise/tell <<'END-OF-TELL'
#!/bin/bash
exec /opt/supervise/bucket put '{report}'
END-OF-TELL
# What systemd runs whenever the job's unit has ended.
cat > /opt/supervise/report <<'END-OF-REPORT'
#!/bin/bash
if [ "${{EXIT_CODE:-}}" = exited ]; then echo "exit $EXIT_STATUS" | /opt/supervise/tell; fi
END-OF-REPORT
chmod 755 /opt/supervise/bucket /opt/supervise/tell /opt/supervise/report

failed() {{
  local last
  last=$(tail -n 1 "$log")
  echo "supervise: failed at line $1 of the startup script: $last (all of it: $log)" >&3
  {{ echo "failed at line $1 of the startup script"; tail -c 2000 "$log"; }} | /opt/supervise/tell
}}
trap 'failed $LINENO' ERR

# fetch OBJECT SHA256 PATH: what is there is what this script was written with, or nothing.
fetch() {{
  if echo "$2  $3" | sha256sum --check --status 2> /dev/null; then return; fi
  /opt/supervise/bucket get "$1" "$3.part"
  echo "$2  $3.part" | sha256sum --check
  mv "$3.part" "$3"
}}

# again TIMES COMMAND...: others hold apt's locks at boot (DPkg::Lock::Timeout waits for dpkg's lock
# and not for that of the package lists: apt 2.6.1 gives up at once), and networks have bad minutes.
again() {{
  local left=$1
  shift
  until "$@"; do
    left=$((left - 1))
    if [ "$left" -le 0 ]; then return 1; fi
    echo "retrying in 20 s, at most $left more times: $*"
    sleep 20
  done
}}
apt() {{
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 \\
    -o Acquire::Retries=3 "$@" 3>&-
}}
# usable PYTHON: one that is there, new enough, can make a virtual environment and is no preview.
usable() {{
  "$1" -c 'import ensurepip, sys; v = sys.version_info; sys.exit(v < (3, 11) or v[3] != "final")' \\
    2> /dev/null
}}
# packaged PYTHON: from the distribution, unless that has only a release candidate, as Ubuntu 22.04
# has of 3.11. A backport (3.11.2-6~bpo11+1) is final.
packaged() {{
  case $(apt-cache policy "$1" | sed -n 's/^ *Candidate: //p') in
    '' | '(none)' | *~a[0-9]* | *~b[0-9]* | *~rc[0-9]*) return 1 ;;
  esac
  again 5 apt install -y "$1" "$1-venv" && usable "$1"
}}
# managed: installs an interpreter with uv; pip and uv check the digests of uv and interpreter.
managed() {{
  export UV_PYTHON_INSTALL_DIR=/opt/supervise/python
  echo '{uv}' > /opt/supervise/uv.lock
  again 5 apt install -y python3-venv && python3 -m venv /opt/supervise/uv &&
    /opt/supervise/uv/bin/pip install --retries 10 --require-hashes --only-binary :all: \\
      -r /opt/supervise/uv.lock &&
    again 3 timeout 300 /opt/supervise/uv/bin/uv --no-config python install --no-bin 3.12 &&
    python=$(/opt/supervise/uv/bin/uv --no-config python find --managed-python 3.12) &&
    usable "$python"
}}
find_python() {{
  for python in python3.12 python3.13 python3.11; do
    if usable "$python"; then return; fi
  done
  again 15 apt update || echo "apt update failed: using the old package lists"
  for python in python3.12 python3.13 python3.11; do
    if packaged "$python"; then return; fi
  done
  if managed; then return; fi
  echo "uv gave no final Python: using python3.11 of this image"
  python=python3.11
  again 5 apt install -y "$python" "$python-venv"
}}

installed='{installed}'
if [ "$(cat /opt/supervise/installed 2>/dev/null || true)" != "$installed" ]; then
  {fetch_wheel}
  {fetch_lock}
  find_python
  "$python" -m venv /opt/supervise
  # By hash alone, and nothing that is built here: no name of an index decides what runs as root.
  /opt/supervise/bin/pip install --retries 10 --require-hashes --only-binary :all: \\
    -r /opt/supervise/requirements.lock
  /opt/supervise/bin/pip install --no-index --no-deps {wheel}
  echo "$installed" > /opt/supervise/installed
fi

{user}
umask 027
{fetch_config}
chgrp {group} /etc/supervise/{job}.yaml
chmod 640 /etc/supervise/{job}.yaml
umask 022
{unit}
{here}
systemctl daemon-reload
systemctl enable supervise@{job}
systemctl start --no-block supervise@{job}
echo "supervise: the machine is set up, and the job is started as supervise@{job}" >&3
"""
