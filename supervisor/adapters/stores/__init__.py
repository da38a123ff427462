"""Files and buckets, and what is kept in them: journal, lease, checkpoints, caches, logs."""
