"""Mutation tests: do the fast tests notice changes to the decision core, the diagnosis and its
rules? See README.md."""
