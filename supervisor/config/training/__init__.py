"""What the supervisor and our trainer both read of trainer.yaml; without jax, and quick to import.

The trainer may import from here, `config.problems` and `protocol`, and nothing else of the
supervisor.
"""
