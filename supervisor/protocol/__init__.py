"""The worker protocol: what runs in a worker as well as in the supervisor, and nothing else.

A worker learns who it is from its environment (`environment`), says what it is doing on a pipe
(`reporter`, `messages`), leaves a record of the exception it dies of (`failure_record`), and both
sides agree on what a committed checkpoint looks like (`committed`). Standard library only, so that
any program can afford to import it.
"""
