"""The supervisor: launches, watches and relaunches a training job. Never imports jax."""

__version__ = "0.1.0"
