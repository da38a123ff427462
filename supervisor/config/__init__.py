"""Reads the config of a job with its line numbers, checks it and resolves it, without jax."""
