"""Real failures of JAX programs with the verdict that is right for each."""
