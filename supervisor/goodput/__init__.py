"""Goodput and badput: how much of a job's wall time became training that is kept, and where the
rest went. A fold over the journal alone, without I/O.
"""
