"""The edges: one file per outside thing. Adapters do not import one another."""
