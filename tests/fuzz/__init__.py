"""Fuzzing of everything that the supervisor reads and that somebody else may have written.

`python -m tests.fuzz --seconds 3600 --seed 7` takes valid samples of every format (`targets`),
changes them at random (`mutations`) and lets the real readers read them. The result must be a value
or the reader's own error: no other exception, no hang, no growth.
"""
