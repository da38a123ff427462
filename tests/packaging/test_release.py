"""What `make dist` makes: whole, the same bytes each time, and enough to run a job."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import supervisor
from deploy.sbom import Pin, needed, pins, sbom
from supervisor.provision.package import own_wheel

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements-run.lock").read_text()
PYTHONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.M)
THIS_PYTHON = ".".join(map(str, sys.version_info[:2]))
LICENCES = ["LICENSE", "supervisor/report/assets/uplot/LICENSE"]
WORKER = "deploy/worker"
MODULE = "supervisor/protocol/worker_path/supervise_worker.py"
EXTRAS = {
    "aot",
    "build",
    "cuda",
    "debug",
    "dev",
    "gcs",
    "http",
    "models",
    "ray",
    "s3",
    "tensorboard",
    "tpu",
    "trainer",
}

USES_OWN_PACKAGES = """
import sys
import supervise_worker, supervisor, trainer

assert trainer.owner == supervisor.owner == "the user"
for step in range(1, 4):
    supervise_worker.step(step)
    if step == 2 and sys.argv[1] == "1":
        sys.exit("the first attempt fails")
"""
TRIES_TWICE = """
import sys
for step in range(1, 4):
    print("completed step:", step, flush=True)
    if step == 2 and sys.argv[1] == "1":
        sys.exit("the first attempt fails")
"""


@dataclass(frozen=True)
class Built:
    """The two wheels and the sdist."""

    wheel: Path
    worker: Path
    """The wheel of `supervise_worker`."""
    sdist: Path

    @property
    def digests(self) -> tuple[str, ...]:
        paths = (self.wheel, self.worker, self.sdist)
        return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)


def tracked() -> list[str]:
    """The files of this checkout, as git knows them."""
    options = ["--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", *options], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    return sorted(name for name in listed if name and os.path.lexists(ROOT / name))


def copied(folder: Path, mode: int, time: int) -> Path:
    """Copies this checkout, with this mode and time for each file."""
    names = tracked()
    if not names:
        pytest.skip("this is no checkout: nothing says which files are ours")
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target, follow_symlinks=False)
        if not target.is_symlink():
            target.chmod(mode)
            os.utime(target, (time, time))
    return folder


def built(source: Path, out: Path) -> Built:
    """Builds with the locked hatchling; nothing is fetched."""
    for folder, options in ((source, []), (source / WORKER, ["--target", "wheel"])):
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", *options, "--directory", str(out)],
            cwd=folder,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1800000000"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    names = ("supervise_jax-*.whl", "supervise_worker-*.whl", "*.tar.gz")
    (wheel,), (worker,), (sdist,) = (out.glob(name) for name in names)
    return Built(wheel, worker, sdist)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Built:
    base = tmp_path_factory.mktemp("release")
    return built(copied(base / "checkout", 0o644, 1_700_000_000), base / "dist")


def in_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def described(wheel: Path) -> Message:
    """The METADATA of a wheel."""
    (text,) = (
        data for name, data in in_wheel(wheel).items() if name.endswith(".dist-info/METADATA")
    )
    return Parser().parsestr(text.decode())


def test_the_wheel_has_our_packages_and_nothing_else(release: Built) -> None:
    files = in_wheel(release.wheel)
    info = f"supervise_jax-{PROJECT['version']}.dist-info"
    ours = {name for name in files if not name.startswith(f"{info}/")}
    assert ours == {name for name in tracked() if name.startswith(("supervisor/", "trainer/"))}
    assert ours >= {
        "supervisor/py.typed",
        "trainer/py.typed",
        "supervisor/config/trainer.schema.json",
        "supervisor/provision/requirements-tpu.lock",
        "supervisor/provision/supervise@.service",
        "supervisor/provision/70-supervise.rules",
        "supervisor/report/assets/page.html",
        "supervisor/report/assets/uplot/uPlot.iife.min.js",
        "supervisor/report/assets/uplot/LICENSE",
    }
    for name in LICENCES:
        assert files[f"{info}/licenses/{name}"] == (ROOT / name).read_bytes()
    assert b"supervise = supervisor.__main__:main" in files[f"{info}/entry_points.txt"]


def test_a_slice_gets_the_same_code(release: Built, tmp_path: Path) -> None:
    path = tmp_path / "slice.whl"
    path.write_bytes(own_wheel().data)
    ours, of_slice = (
        {name: data for name, data in in_wheel(each).items() if ".dist-info/" not in name}
        for each in (release.wheel, path)
    )
    assert of_slice == ours


def test_what_the_wheel_says_of_itself(release: Built) -> None:
    said = described(release.wheel)
    assert (said["Name"], said["Version"]) == ("supervise-jax", supervisor.__version__)
    assert said["License-Expression"] == "Apache-2.0 AND MIT"
    assert said.get_all("License-File") == LICENCES
    assert set(said.get_all("Provides-Extra") or []) == EXTRAS
    requirements = [Requirement(text) for text in said.get_all("Requires-Dist") or []]
    assert all(each.url is None for each in requirements)
    supported = Requirement(f"python {said['Requires-Python']}").specifier
    minors = [f"3.{minor}" for minor in range(20)]
    assert [each for each in minors if supported.contains(f"{each}.1")] == PYTHONS


def test_the_same_commit_gives_the_same_bytes(release: Built, tmp_path: Path) -> None:
    """Elsewhere, at another time, with another umask."""
    again = built(copied(tmp_path / "else" / "where", 0o600, 1_000_000_000), tmp_path / "dist")
    assert again.digests == release.digests


def test_the_sdist_gives_the_same_wheel(release: Built, tmp_path: Path) -> None:
    with tarfile.open(release.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    again = built(source, tmp_path / "dist")
    assert again.digests[:2] == release.digests[:2]


def test_the_second_wheel_is_one_file_with_no_dependencies(release: Built) -> None:
    version = PROJECT["version"]
    assert release.worker.name == f"supervise_worker-{version}-py3-none-any.whl"
    files = in_wheel(release.worker)
    info = f"supervise_worker-{version}.dist-info"
    assert [name for name in files if not name.startswith(f"{info}/")] == ["supervise_worker.py"]
    assert files["supervise_worker.py"] == (ROOT / MODULE).read_bytes()
    assert files[f"{info}/extra_metadata/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    said = described(release.worker)
    assert said["License-Expression"] == "Apache-2.0"
    assert said.get_all("Requires-Dist") is None
    assert said["Requires-Python"] == ">=3.9"


def runs_a_job(
    python: Path, folder: Path, argv: Sequence[str], pattern: str | None = r"completed step: (\d+)"
) -> None:
    """Has the command that is installed beside `python` run a job whose first attempt fails."""
    config = {
        "trainer": {
            "init": {"model_dir": "./run", "autorestart": {"max_num_restarts": 1}},
            "command": {
                "argv": [*argv, "{attempt}"],
                **({"progress": {"pattern": pattern}} if pattern else {}),
                "success": {"step": 3},
            },
        }
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(config))
    ours = ("PYTHON", "VIRTUAL_ENV", "SUPERVISE")
    done = subprocess.run(
        [str(python.parent / "supervise"), "run", "--log-format", "json", "job.yaml"],
        cwd=folder,
        env={name: text for name, text in os.environ.items() if not name.startswith(ours)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (ended,) = (event for event in events if event["event"] == "job-ended")
    assert (ended["status"], ended["code"]) == ("SUCCEEDED", 0)
    ends = [event["status"] for event in events if event["event"] == "attempt-ended"]
    assert ends == ["FAILED", "SUCCEEDED"]


def needs(requirements: list[str]) -> Iterator[metadata.Distribution]:
    """The packages of this environment that `requirements` need, each once."""
    names, waiting = set[str](), [*requirements]
    while waiting:
        required = Requirement(waiting.pop())
        name = canonicalize_name(required.name)
        wanted = required.marker is None or required.marker.evaluate({"extra": ""})
        if not wanted or name in names:
            continue
        assert not required.extras, "copy what the extra needs, too"
        names.add(name)
        found = metadata.distribution(name)
        waiting += found.requires or []
        yield found


def installed_alone(wheel: Path, folder: Path) -> Path:
    """Makes a clean environment in `folder`, and returns its interpreter. Into it go the wheel and
    what it says it needs: copies of what is installed here, in the locked versions, so that nothing
    is fetched."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*our_pip(python), *install, str(wheel)], check=True)
    (site,) = folder.glob("lib/*/site-packages")
    locked = {(pin.name, pin.version) for pin in pins(LOCK, [THIS_PYTHON])}
    for package in needs(described(wheel).get_all("Requires-Dist") or []):
        assert (canonicalize_name(package.name), package.version) in locked
        for file in package.files or []:
            if ".." not in file.parts and file.suffix != ".pyc":
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(package.locate_file(file)), site / file)
    return python


def our_pip(python: Path) -> list[str]:
    """The command line of our pip, for the environment of `python`."""
    return [sys.executable, "-m", "pip", "--python", str(python)]


@pytest.fixture(scope="module")
def alone(release: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has nothing but the wheel and its needs."""
    return installed_alone(release.wheel, tmp_path_factory.mktemp("alone") / "clean")


@pytest.mark.slow
def test_the_wheel_runs_a_job_where_nothing_else_is_installed(alone: Path, tmp_path: Path) -> None:
    checked = subprocess.run(
        [*our_pip(alone), "check"], capture_output=True, text=True, check=False
    )
    assert checked.stdout.strip() == "No broken requirements found."
    version = subprocess.run(
        [str(alone.parent / "supervise"), "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert version.stdout.startswith(f"supervise {PROJECT['version']}+")
    runs_a_job(alone, tmp_path, [str(alone), "-c", TRIES_TWICE])


def test_a_tool_environment_never_meets_the_packages_of_the_user(
    alone: Path, tmp_path: Path
) -> None:
    """supervise alone in one environment, and in another the user's program, with a `trainer` and a
    `supervisor` of theirs. The program finds these, and `supervise_worker` of the release."""
    theirs = tmp_path / "theirs"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(theirs)], check=True)
    program = tmp_path / "program"
    program.mkdir()
    for name in ("trainer", "supervisor"):
        (program / f"{name}.py").write_text("owner = 'the user'\n")
    (program / "train.py").write_text(USES_OWN_PACKAGES)
    python = theirs / "bin" / "python"
    runs_a_job(alone, tmp_path, [str(python), str(program / "train.py")], None)


def interpreter(version: str) -> str | None:
    """An interpreter of that version with which one can make an environment with pip."""
    managed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    source = "import ensurepip, sys; print('.'.join(map(str, sys.version_info[:2])))"
    for path in (shutil.which(f"python{version}"), *map(str, managed)):
        if path is not None:
            answer = subprocess.run(
                [path, "-c", source], capture_output=True, text=True, check=False
            )
            if answer.stdout.strip() == version:
                return path
    return None


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_pip_installs_the_wheel_on_each_python(
    release: Built, tmp_path: Path, version: str
) -> None:
    """As a user does it, with the index, in the locked versions."""
    here = interpreter(version)
    if here is None:
        pytest.skip(f"python{version} with ensurepip is not installed")
    subprocess.run([here, "-m", "venv", str(tmp_path / "clean")], check=True)
    python = tmp_path / "clean" / "bin" / "python"
    versions = tmp_path / "versions.txt"
    versions.write_text("".join(f"{p.name}=={p.version}\n" for p in pins(LOCK, [version])))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(versions)]
    subprocess.run([*pip, str(release.wheel)], check=True, timeout=600)
    runs_a_job(python, tmp_path, [str(python), "-c", TRIES_TWICE])


def test_the_sbom_has_all_that_a_run_installs_beside_us() -> None:
    found = sbom(PROJECT, LOCK)
    components = {each["bom-ref"]: each for each in found["components"]}
    assert len(components) == len(found["components"])
    installed = {pin.purl: pin for pin in pins(LOCK, PYTHONS)}
    builds = needed({"editables", "hatchling"}, installed.values())
    assert components.keys() == {
        purl for purl, pin in installed.items() if pin.name not in builds
    }, "nothing that builds us is also needed to run"
    required = {each["name"] for each in components.values() if each["scope"] == "required"}
    here = {canonicalize_name(each.name) for each in needs(PROJECT["dependencies"])}
    assert required == here, "as the packages themselves say"
    assert {each["name"] for each in components.values()} >= {"jax", "flax", "orbax-checkpoint"}


def test_the_sbom_tells_who_needs_whom() -> None:
    found = sbom(PROJECT, LOCK)
    itself = found["metadata"]["component"]["bom-ref"]
    refs = {itself, *(each["bom-ref"] for each in found["components"])}
    edges = {each["ref"]: set(each["dependsOn"]) for each in found["dependencies"]}
    assert edges.keys() == refs
    assert set[str]().union(*edges.values()) == refs - {itself}, "somebody needs each of them"
    for ref, needed_by_it in edges.items():
        if ref.startswith("pkg:pypi/pydantic@"):
            names = {each.removeprefix("pkg:pypi/").partition("@")[0] for each in needed_by_it}
            assert names == {
                "annotated-types",
                "pydantic-core",
                "typing-extensions",
                "typing-inspection",
            }


def test_an_sbom_is_written_the_same_each_time(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        subprocess.run(
            [sys.executable, "-m", "deploy.sbom", str(tmp_path / name)],
            cwd=ROOT,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1800000000"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (path,) = (tmp_path / name).iterdir()
        assert path.name == f"supervise_jax-{PROJECT['version']}.cdx.json"
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["metadata"]["timestamp"] == "2027-01-15T08:00:00+00:00"


def test_a_package_of_one_python_needs_none_of_another() -> None:
    both = [
        Pin("a", "1", ("3.11",), frozenset({"supervise-jax"})),
        Pin("a", "2", ("3.12",), frozenset({"supervise-jax"})),
        Pin("b", "1", ("3.11",), frozenset({"a"})),
    ]
    lock = "\n".join(
        f"{pin.name}=={pin.version} ; python_version == '{pin.pythons[0]}' \\\n"
        f"    --hash=sha256:0\n    # via {next(iter(pin.wanted_by))}"
        for pin in both
    )
    assert pins(lock, ["3.11", "3.12"]) == both
    project = {
        "version": "1",
        "description": "x",
        "license": "x",
        "classifiers": ["Programming Language :: Python :: 3.11", "P :: Python :: 3.12"],
        "dependencies": ["a"],
        "optional-dependencies": {"trainer": []},
    }
    edges = {each["ref"]: each["dependsOn"] for each in sbom(project, lock)["dependencies"]}
    assert edges["pkg:pypi/a@1"] == ["pkg:pypi/b@1"]
    assert edges["pkg:pypi/a@2"] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_a_run_installs_few_packages_and_no_tools(python: str) -> None:
    ours = {pin.name for pin in pins(LOCK, [python])}
    beside = {"pip", "setuptools", "supervise-jax"}
    assert len(ours | beside) < 60
    tools = {
        canonicalize_name(Requirement(text).name)
        for text in PROJECT["optional-dependencies"]["dev"]
    }
    assert not ours & (tools - {"supervise-jax"})


@pytest.mark.parametrize("target", ["run", "install"])
def test_make_installs_from_the_lock_of_the_target(target: str, tmp_path: Path) -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, f"VENV={tmp_path / 'new'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    locks = re.findall(r"--require-hashes -r (\S+)", shown)
    assert locks == ["requirements-run.lock", "requirements.lock"][: 1 if target == "run" else 2]


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert supervisor.__version__ == version
    changes = (ROOT / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d\S*)\] - \d{4}-\d\d-\d\d$", changes, re.M)
    assert released[0] == version
    for name in ("job.yaml", "jobset.yaml"):
        text = (ROOT / "deploy" / "kubernetes" / name).read_text()
        assert f"/supervise:{version}\n" in text


def test_messages_and_pages_name_only_extras_that_exist() -> None:
    assert set(PROJECT["optional-dependencies"]) == EXTRAS
    named = set[str]()
    for name in tracked() or [str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")]:
        if name.endswith((".md", ".py")) and not name.startswith("tests/"):
            for found in re.findall(r"'\.\[([\w,]+)\]'", (ROOT / name).read_text()):
                named.update(found.split(","))
    assert {"gcs", "trainer", "tpu", "cuda"} <= named <= EXTRAS
