"""`python -m deploy.acceptance`: checks on this machine what we claim about TPUs and GPUs.

CI has no accelerators. So a person who has some runs this once, in about ten minutes, and attaches
the file that it writes to an issue. Each check reports what it expects, the source of that, and
what it saw. A check that cannot run on this machine is skipped with the reason; it never passes.
`checks.ORDER` lists all checks. Only separate processes (`device`) use an accelerator, so that a
check can kill them, and nothing is held when the next check begins.
"""
