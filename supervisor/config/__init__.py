"""The job's configuration: read with line numbers, checked, and resolved, all without jax."""
