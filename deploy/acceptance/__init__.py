"""`python -m deploy.acceptance`: does all that we claim of TPUs and GPUs hold on this machine?

Nobody can run a test on hardware that CI does not have. So whoever has it runs this once, in about
ten minutes, and attaches the one file that it writes to an issue. Each check says what it expects
and by which source, and what it saw; one that cannot run here is skipped with the reason, and never
passes. The checks are below `CHECKS` in `checks`; what touches an accelerator is a process of its
own (`device`), so that a check can kill it, and nothing is held when the next one begins.
"""
