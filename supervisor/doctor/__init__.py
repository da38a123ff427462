"""`supervise doctor`: what of this machine, or of the place of a job, would hurt a job.

It only looks: what it must write to find out, it removes at once. Each check has a time limit, and
works beside a running job.
"""
