"""Machines that vanish with all that is on them, and the job in a bucket that does not."""
