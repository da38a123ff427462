"""Deterministic simulation: the real core, engine, runtime and journal, in a world whose faults are
drawn from one seed."""
