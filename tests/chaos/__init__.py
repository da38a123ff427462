"""The chaos run: one real JAX job in a storm of faults must end as if there had been none."""
