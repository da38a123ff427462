"""Accelerators, and the clouds that lend them."""
