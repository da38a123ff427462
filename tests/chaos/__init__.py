"""The chaos run: one real JAX job in a storm of faults that ends as if there had been none."""
