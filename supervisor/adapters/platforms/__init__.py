"""Adapters for accelerators, and for the clouds that lend them."""
