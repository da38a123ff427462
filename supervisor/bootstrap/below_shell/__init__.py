"""The folder that the supervisor puts first on the PYTHONPATH of a command without the bootstrap.

It holds a `sitecustomize` alone, which takes the folder from `sys.path` again.
"""
