"""Adapters to the job's processes: they start them, read from them, and end them."""
