"""Runs any Python program as the interpreter would, and reports to the supervisor for it.

The interpreter gets `start` in place of the program. It finds what to run (`target`), records how
that ends (`fatal_exceptions`) and, once the program imports jax, what it does (`monitoring`, by way
of `import_watch`).

The program must not notice. So this package is not on the program's `sys.path`: it is loaded by
path, as part of a package of another name (`_supervise`), together with `supervisor.protocol`.
Hence the relative imports. It must not slow down the start either: a module that is not built into
the interpreter is imported only when there is something to report.
"""
