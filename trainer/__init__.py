"""A small, real JAX trainer: the program that `fit:` runs under the supervisor."""
