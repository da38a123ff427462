"""The history of a job: what is recorded of each turn, in every format that there ever was, and how
the job's state follows from it. No I/O: `adapters.stores.journal` keeps it in files.
"""
