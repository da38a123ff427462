"""Runs one job on all hosts of an allocation: each host has started the same command.

The first host starts the head of a Ray cluster and `supervise run`, which leads; the others join.
Who is a member, and what runs where, is decided by the leader alone: this package only has Ray
there for it, and ends with the leader's exit code on every host. docs/adr/0087 says why
`ray symmetric-run` does not do.
"""
