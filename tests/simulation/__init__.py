"""Deterministic simulation: the real core, runtime and journal in a world that one seed breaks."""
