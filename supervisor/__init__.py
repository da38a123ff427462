"""The supervisor: starts, watches and restarts a training job. It never imports jax.

`run` and `Result` are in `python_api`, which is imported when they are first used: every process of
the supervisor imports this file.
"""

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name not in ("Result", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("supervisor.python_api"), name)
