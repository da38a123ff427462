"""Mutation tests: do the fast tests notice changes to the modules that decide, and to the rules?
survivors.md has the changes that they need not notice."""
