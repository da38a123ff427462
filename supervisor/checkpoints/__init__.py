"""Reads the checkpoints of programs: whether one is complete, and whether it is as committed."""
