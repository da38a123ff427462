"""The supervisor: starts, watches and restarts a training job. It never imports jax."""

__version__ = "0.1.0"
