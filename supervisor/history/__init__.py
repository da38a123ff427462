"""The history of a job: the journal's records in all formats, and how the job's state follows from
them. No I/O: `adapters.stores.journal` keeps the records in files.
"""
