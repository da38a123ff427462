"""The folder that the supervisor puts on the PYTHONPATH of workers, for `import supervise_worker`.

It holds that module alone, so that it hides no other. `supervisor` is not on their path.
"""
