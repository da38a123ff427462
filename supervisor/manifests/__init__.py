"""Makes what other systems start a job by: a batch script for Slurm, manifests for Kubernetes.

All of it is pure: a `Submission` in, text out. The exit codes that start a job again are those of
`core.exit_codes`, in the numbers to which the config maps them.
"""
