"""Judges what happened: takes a program's output, failure record and exit, returns a `Failure`.

Pure, like the decision core; nothing here imports the core.
"""
