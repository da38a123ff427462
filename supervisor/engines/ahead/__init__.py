"""Prepares the next start while an attempt runs: standbys, a probe process, compilations."""
