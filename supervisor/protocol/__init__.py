"""The worker protocol: the code that both the workers and the supervisor run.

A worker learns who it is from its environment (`environment`), reports what it does on a pipe
(`reporter`, `messages`), and leaves a record of the exception that ends it (`failure_record`). Both
sides agree on what a committed checkpoint looks like (`committed`). The package imports only the
standard library, so that any program can afford to import it.
"""
