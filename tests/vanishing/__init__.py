"""Machines that vanish with everything on them; the job is in a bucket, which stays."""
