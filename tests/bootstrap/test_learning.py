"""What an attempt leaves for the next standby: its imports, and their environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.bootstrap.learning import Change, Learned, Replay, digest
from tests.bootstrap.programs import Twice

_JAX = """
told = []
def register_event_duration_secs_listener(f): told.append(f)
register_scalar_listener = register_event_listener = id
def clear_event_listeners(): pass
def traces(): told[0]('/jax/core/compile/jaxpr_trace_duration', 0.1)
"""


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, str]:
    """The environment in which a small `jax` and two more packages are installed."""
    place = tmp_path / "site-packages"
    (place / "jax").mkdir(parents=True)
    (place / "jax" / "__init__.py").write_text("")
    (place / "jax" / "monitoring.py").write_text(_JAX)
    (place / "early.py").write_text("")
    (place / "late.py").write_text("import os; os.environ['JAX_LATE'] = '1'")
    learned = str(tmp_path / "modules.json")
    return {"PYTHONPATH": str(place), "SUPERVISE_MODULES_FILE": learned}


def learned_by(twice: Twice, packages: dict[str, str], program: str) -> Learned:
    twice.write({"program.py": program})
    outcome = twice.bootstrapped("program.py", env=packages)
    assert outcome.status == 0, outcome.stderr
    return Learned.read(packages["SUPERVISE_MODULES_FILE"])


def test_a_change_has_its_place_among_the_imports(twice: Twice, packages: dict[str, str]) -> None:
    program = (
        "import os, early; os.environ['JAX_A'] = '1'; import jax.monitoring\n"
        "os.environ['JAX_A'] = '2'; import late; jax.monitoring.traces()"
    )
    learned = learned_by(twice, packages, program)
    modules = list(learned.modules)
    assert modules.index("early") < modules.index("jax.monitoring") < modules.index("late")
    one, two, by_import = [each for each in learned.changes if each.name.startswith("JAX_")]
    assert modules[one.place] == "jax"
    assert (one.name, one.value, one.is_known) == ("JAX_A", "1", True)
    assert (modules[two.place], two.value) == ("late", "2")
    assert (by_import.name, by_import.by) == ("JAX_LATE", "late")
    assert by_import.place == modules.index("late") + 1
    assert not one.by


def test_of_what_may_be_a_secret_only_a_hash_is_kept(
    twice: Twice, packages: dict[str, str]
) -> None:
    program = (
        "import os\nfor name in ('WANDB_RUN', 'JAX_AUTH', 'TF_KEY'): os.environ[name] = 'hush'\n"
        "os.environ.pop('JAX_AUTH'); import jax.monitoring; jax.monitoring.traces()"
    )
    learned = learned_by(twice, packages, program)
    changes = [each for each in learned.changes if each.digest == digest("hush")]
    assert [each.name for each in changes] == ["WANDB_RUN", "JAX_AUTH", "TF_KEY"]
    assert not any(each.is_known for each in learned.changes if each.name != "WANDB_RUN")
    assert "hush" not in Path(packages["SUPERVISE_MODULES_FILE"]).read_text()


def test_the_backend_that_a_keras_program_chooses_is_set_ahead(
    twice: Twice, packages: dict[str, str]
) -> None:
    program = (
        "import os; os.environ['KERAS_BACKEND'] = 'jax'; import jax.monitoring\n"
        "jax.monitoring.traces()"
    )
    (chosen,) = (
        each
        for each in learned_by(twice, packages, program).changes
        if each.name == "KERAS_BACKEND"
    )
    assert (chosen.value, chosen.is_known) == ("jax", True)


def test_what_is_set_after_the_first_use_of_jax_is_not_set_ahead(
    twice: Twice, packages: dict[str, str]
) -> None:
    """The worker of a standby checks at that moment that the program has set all of it."""
    program = (
        "import os, jax.monitoring; jax.monitoring.traces(); os.environ['JAX_A'] = '1'\n"
        "import late; jax.monitoring.traces()"
    )
    learned = learned_by(twice, packages, program)
    (change,) = [each for each in learned.changes if each.name == "JAX_A"]
    assert (change.value, change.is_known) == (None, False)


def replayed(learned: Learned, environ: dict[str, str]) -> tuple[Replay, list[tuple[str, str]]]:
    """Replay without importing; returns it, and each module with what it sees of A."""
    replay, seen = Replay(learned, environ), list[tuple[str, str]]()
    replay.run(lambda name: seen.append((name, environ.get("A", ""))))
    return replay, seen


def test_a_change_that_is_taken_back_holds_in_between() -> None:
    changes = [
        Change(1, "A", digest("1"), "1", is_known=True),
        Change(2, "A", digest(None), None, is_known=True),
    ]
    replay, seen = replayed(Learned(("x", "y", "z"), changes), {})
    assert seen == [("x", ""), ("y", "1"), ("z", "")]
    assert replay.made == {"A": ["1", None]}


def test_it_ends_at_a_change_that_it_cannot_make() -> None:
    changes = [Change(1, "A", digest("1")), Change(2, "A", digest(None))]
    replay, seen = replayed(Learned(("x", "y", "z"), changes), {})
    assert seen == [("x", "")]
    assert (replay.ended_by, replay.prepared.modules) == ("A", ("x",))
    assert replayed(Learned(("x", "y"), changes), {"A": "1"})[0].ended_by is None


def test_what_an_import_changes_is_made_by_a_standby_only_without_that_import() -> None:
    """numpy sets variables while it is imported, and takes them back."""
    changes = [Change(1, "A", digest("1"), by="x"), Change(1, "A", digest(None), by="x")]
    replay, seen = replayed(Learned(("x", "y"), changes), {})
    assert seen == [("x", ""), ("y", "")]
    assert replay.ended_by is None
    assert replayed(Learned(("x", "y"), changes, ("x",)), {})[0].ended_by == "A"
