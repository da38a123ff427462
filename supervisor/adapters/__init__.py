"""The edges: one file per outside thing, in rooms by what is outside. They do not import one
another."""
