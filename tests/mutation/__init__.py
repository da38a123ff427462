"""Mutation tests: do the fast tests notice when the decision core is changed? See README.md."""
