"""Runs any Python program as the interpreter would, and reports for it.

`start` is what the interpreter is given in place of the program; it works out what to run
(`target`), watches how that ends (`fatal_exceptions`) and, once the program imports jax, what it
does (`monitoring`, by way of `arrivals`).

The program must not notice. So this package is not on its `sys.path` and not in its way: it is
loaded by path, as part of a package of another name (`_supervise`), together with
`supervisor.protocol`. Hence the relative imports. And it must cost nothing: whatever is not built
into the interpreter is imported when there is something to report, not before.
"""
