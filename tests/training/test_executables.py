"""A compiled step is loaded only where it is what would be compiled, and only if it is ours."""

# mypy: allow-untyped-calls
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, PartitionSpec

from supervisor.protocol.messages import NoticeCode
from tests.training.notices import Notices
from trainer import environment_fingerprint
from trainer.executables import CACHE, EXECUTABLE, Executables
from trainer.log import WorkerLog

from . import harness  # noqa: F401  (sets the devices)

MESH = jax.make_mesh((4,), ("data",))
EVERYWHERE = NamedSharding(MESH, PartitionSpec())
COMPILED = ""


class _Listener(WorkerLog):
    """Hears what is said, and where a step came from."""

    __slots__ = ("said", "source")

    def __init__(self, said: Notices) -> None:
        super().__init__()
        self.said = said
        self.source = "nothing"

    def warn(self, text: str, code: NoticeCode, step: int | None = None) -> None:
        self.said(text, code, step)

    def obtained(self, seconds: float, name: str, source: str) -> None:
        self.source = source


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    """What comes from the compilation cache is not kept."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def said() -> Notices:
    return Notices()


@pytest.fixture
def start(tmp_path: Path, said: Notices) -> Callable[..., tuple[Any, str]]:
    """A start of the program x * factor + 1: the compiled step, and where it came from."""

    def begin(factor: float = 2.0, count: int = 4, **config: Any) -> tuple[Any, str]:
        listener = _Listener(said)
        directory = tmp_path / "cache" / "executables"
        executables = Executables(directory, config, listener)
        executables.begin_loading("step", MESH)
        function = jax.jit(
            lambda x: {"y": x * factor + 1, "n": (jnp.sum(x),)}, out_shardings=EVERYWHERE
        )
        step = executables.get("step", function, numbers(count)).result()
        executables.close()
        return step, listener.source

    return begin


def numbers(count: int = 4) -> jax.Array:
    """An argument of the program: a copy on every device."""
    placed: jax.Array = jax.device_put(jnp.arange(float(count)), EVERYWHERE)
    return placed


def the_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "executables").glob("*.executable")
    return path


def result(step: Any, count: int = 4) -> list[float]:
    value = step(numbers(count))
    assert list(value) == ["n", "y"]
    return list(np.asarray(value["y"]))


def test_the_second_start_loads_what_the_first_compiled(
    tmp_path: Path, start: Callable[..., tuple[Any, str]], said: Notices
) -> None:
    first, source = start()
    assert source == COMPILED
    assert result(first) == [1, 3, 5, 7]
    second, source = start()
    assert source == EXECUTABLE
    assert [result(second), result(second)] == [[1, 3, 5, 7], [1, 3, 5, 7]]
    assert said == []
    assert the_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in the_file(tmp_path).parent.iterdir()] == [the_file(tmp_path).name]


def test_whatever_decides_the_program_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., tuple[Any, str]]
) -> None:
    start()
    assert start(hidden_size=3)[1] == COMPILED
    for name, value in {"XLA_FLAGS": "--xla_a=1", "JAX_DEFAULT_MATMUL_PRECISION": "high"}.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert start()[1] == COMPILED, name
    for name in ("_code", "_cpu", "_device"):
        with monkeypatch.context() as patch:
            patch.setattr(environment_fingerprint, name, lambda *_: "another")
            assert start()[1] == COMPILED, name
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "99")
        assert start()[1] == COMPILED
    with monkeypatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
        assert start()[1] == EXECUTABLE


def test_other_arguments_are_seen_beside_the_key(
    start: Callable[..., tuple[Any, str]], said: Notices
) -> None:
    start()
    step, source = start(count=3)
    assert source == COMPILED
    assert result(step, 3) == [1, 3, 5]
    assert said.codes == [NoticeCode.EXECUTABLE_REMOVED]
    assert "it was compiled for other arguments" in said[0]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def open_to_others(path: Path) -> None:
    path.chmod(0o666)


def another_format(path: Path) -> None:
    from trainer import private_files

    private_files.write(path, b"not a pickle")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip, "the file is damaged"),
        (open_to_others, "others can write to the file"),
        (another_format, "UnpicklingError"),
    ],
)
def test_what_cannot_be_trusted_is_removed_and_made_anew(
    tmp_path: Path,
    start: Callable[..., tuple[Any, str]],
    said: Notices,
    damage: Callable[[Path], None],
    reason: str,
) -> None:
    start()
    damage(the_file(tmp_path))
    assert start()[1] == COMPILED
    assert reason in said[0]
    assert start()[1] == EXECUTABLE


def test_a_link_is_not_followed(
    tmp_path: Path, start: Callable[..., tuple[Any, str]], said: Notices
) -> None:
    start()
    path = the_file(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert start()[1] == COMPILED
    assert "is a link" in said[0]


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_directory_that_others_can_write_to_is_not_used(
    tmp_path: Path, start: Callable[..., tuple[Any, str]], said: Notices, mode: int
) -> None:
    start()
    the_file(tmp_path).parent.chmod(mode)
    assert start()[1] == COMPILED
    assert "must be a directory of this user that nobody else can write to" in said[0]


def test_one_that_failed_in_its_first_call_is_not_used_again(
    start: Callable[..., tuple[Any, str]], said: Notices
) -> None:
    start()
    step, source = start()
    assert source == EXECUTABLE
    with pytest.raises(TypeError):
        step(numbers(5))  # in the place of whatever can go wrong
    assert start()[1] == COMPILED
    assert said.codes == [NoticeCode.EXECUTABLE_REMOVED]
    assert "the last start with it did not complete a call" in said[0]
    assert start()[1] == EXECUTABLE


def test_what_came_from_the_compilation_cache_is_not_kept(
    tmp_path: Path, start: Callable[..., tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA on CPU would write less of it than it needs."""
    assert start()[1] == COMPILED
    the_file(tmp_path).unlink()
    record = jax.monitoring.record_event
    compiled = jax.stages.Lowered.compile

    def from_cache(self: Any, *options: Any, **more: Any) -> Any:
        record("/jax/compilation_cache/cache_hits")
        return compiled(self, *options, **more)

    with monkeypatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", from_cache)
        assert start()[1] == CACHE
    assert start()[1] == COMPILED


def test_old_ones_are_bounded(tmp_path: Path, start: Callable[..., tuple[Any, str]]) -> None:
    for size in range(10):
        start(size=size)
    assert len(list((tmp_path / "cache" / "executables").iterdir())) == 8
    assert start(size=9)[1] == EXECUTABLE
    assert start(size=0)[1] == COMPILED
