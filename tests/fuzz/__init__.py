"""Fuzzing of all that the supervisor reads and somebody else may have written.

`python -m tests.fuzz --seconds 3600 --seed 7`: valid samples of every format (`targets`), changed
at random (`mutations`), read by the real readers. What comes out must be a value or the reader's
own error: no other exception, no hang, no growth.
"""
