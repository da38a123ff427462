"""Adapters for files and buckets: journal, lock, lease, checkpoints, caches, disk space, logs."""
