"""The startup script of a slice, under a real systemd and with our unit, to the end of its job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from supervisor.protocol.location import Uri
from supervisor.provision.boot import File, parse_report, startup_script
from supervisor.provision.boot import MachineSetup as Wanted
from supervisor.provision.decide import MachineReport
from tests.deploy.machine import SEEN, USER, CannotBootError, Machine, booted
from tests.deploy.test_deploy import ROOT
from tests.running import command_config, eventually

WHEEL, LOCK = File("supervise_jax-0-py3-none-any.whl", b"wheel"), File("lock", b"lock")
ADDRESS = "127.0.0.1:8099"
ENVIRONMENT = (f"GCE_METADATA_HOST={ADDRESS}", f"STORAGE_EMULATOR_HOST=http://{ADDRESS}")
BOOT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""As a machine boots: the PATH of who runs the tests may have a python3.12 that installs."""
TOKEN = "the-token-of-this-machine"

SERVER = f"""
# The metadata server and the object store of the machine: what is uploaded becomes a file.
import pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/storage/v1/b/bucket/o/runs%2Fdemo%2Fprovision%2Ffiles%2F"):
            assert self.headers["Authorization"] == "Bearer {TOKEN}"
            name = unquote(urlsplit(self.path).path).rpartition("/")[2]
            return self.answer(pathlib.Path("/shared/objects", name).read_bytes())
        assert self.path.endswith("/instance/service-accounts/default/token"), self.path
        assert self.headers["Metadata-Flavor"] == "Google"
        self.answer(b'{{"access_token":"{TOKEN}","expires_in":3599,"token_type":"Bearer"}}')

    def do_POST(self):
        url = urlsplit(self.path)
        assert url.path == "/upload/storage/v1/b/bucket/o", self.path
        assert self.headers["Authorization"] == "Bearer {TOKEN}"
        (name,) = parse_qs(url.query)["name"]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        pathlib.Path("/shared", name.replace("/", "_")).write_bytes(body)
        self.answer(b"{{}}")

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("127.0.0.1", 8099), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with what is around a slice: a metadata server and an object store."""
    try:
        with booted(tmp_path_factory.mktemp("machine")) as machine:
            (machine.shared / "server.py").write_text(SERVER)
            machine.run("systemd-run", "--unit=around", sys.executable, "/shared/server.py")
            yield machine
    except CannotBootError as error:
        pytest.skip(f"NOT TESTED: the startup script under a real systemd: {error}")


def boot(machine: Machine, generation: int, config: str = "", tampered: bool = False) -> str:
    """Run the startup script of that slice as the machine does when it boots; what its serial
    console shows."""
    files = File("job.yaml", config.encode()), WHEEL, LOCK
    wanted = Wanted("supervise-demo", Uri("gs", "bucket", "runs/demo"), *files, user=USER)
    (machine.shared / "objects").mkdir(exist_ok=True)
    for file in files:
        (machine.shared / "objects" / file.name).write_bytes(file.data + b"x" * tampered)
    (machine.shared / "startup.sh").write_text(startup_script(wanted, generation))
    return machine.run("env", BOOT_PATH, *ENVIRONMENT, "bash", "/shared/startup.sh", check=False)


def told(machine: Machine, generation: int) -> Path:
    """The file with what the slice of that generation has told."""
    return machine.shared / f"runs_demo_provision_{generation:06d}.txt"


def test_a_machine_that_cannot_install_says_so(machine: Machine) -> None:
    broken = '#!/bin/sh\n[ "$1" = -c ] || { echo "no network to install from" >&2; exit 1; }\n'
    (machine.shared / "python3.12").write_text(broken)
    machine.run("install", "-D", "/shared/python3.12", "/usr/local/bin/python3.12")
    console = boot(machine, 1)
    report = parse_report(told(machine, 1).read_text())
    assert report.failed is not None
    assert report.failed.startswith("failed at line ")
    assert "no network to install from" in report.failed
    (line,) = console.splitlines()
    assert line.startswith("supervise: failed at line ")
    assert "no network to install from (all of it: /var/log/supervise-boot.log)" in line
    assert not machine.run("systemctl", "list-units", "--all", "--no-legend", "supervise@*")


def test_a_machine_that_is_given_something_else_says_so(machine: Machine) -> None:
    """Whoever can write to the bucket decides nothing: the digests are in the script."""
    machine.run("rm", "-f", f"/opt/supervise/{WHEEL.name}")
    boot(machine, 9, tampered=True)
    report = parse_report(told(machine, 9).read_text())
    assert report.failed is not None
    assert f"{WHEEL.name}.part: FAILED" in report.failed
    assert WHEEL.name not in machine.run("ls", "/opt/supervise").split()


def test_a_machine_boots_into_the_job_and_tells_its_end(machine: Machine) -> None:
    machine.run("mkdir", "-p", "/opt/supervise", "/etc/systemd/system/supervise@.service.d")
    machine.run("ln", "-s", str(Path(sys.executable).parent), "/opt/supervise/bin")
    (machine.shared / "installed").write_text(f"{WHEEL.sha256} {LOCK.sha256}\n")
    folders = {parent for seen in SEEN for parent in Path(seen).parents}
    machine.run("chmod", "a+x", *map(str, folders))
    machine.run("chmod", "a+rwx", "/shared")
    machine.run("cp", "/shared/installed", "/opt/supervise/installed")
    around = "\n".join(f"Environment={each}" for each in (*ENVIRONMENT, f"PYTHONPATH={ROOT}"))
    (machine.shared / "test.conf").write_text(f"[Service]\n{around}\n")
    machine.run("cp", "/shared/test.conf", "/etc/systemd/system/supervise@.service.d/test.conf")
    config = command_config(
        Path("/shared/demo"), "--steps", "6", restart={"preemption": {"source": "none"}}
    )
    for generation in (2, 3):  # the second time as at a boot of the same machine
        console = boot(machine, generation, yaml.safe_dump(config))
        assert console.splitlines()[-1].endswith("the job is started as supervise@job")
        machine.wait_for("supervise@job", ActiveState="inactive", Result="success")
        assert eventually(told(machine, generation).exists)
        assert parse_report(told(machine, generation).read_text()) == MachineReport(exit_code=0)
        assert machine.run("systemctl", "is-enabled", "supervise@job") == "enabled"
        where = Path("/etc/supervise/job.yaml")
        assert machine.run("stat", "-c", "%U:%G %a", str(where)) == f"root:{USER} 640"
        (log,) = (machine.shared / "demo").glob("*_restartable/run.log")
        assert machine.run("stat", "-c", "%U", f"/shared/demo/{log.parent.name}/run.log") == USER
    assert "has succeeded already" in machine.log("supervise@job")
    assert yaml.safe_load(machine.run("cat", "/etc/supervise/job.yaml")) == config
