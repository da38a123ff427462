"""The history of a job: the journal's records in all formats, and the state that they lead to.

There is no I/O here: `adapters.stores.journal` keeps the records in files.
"""
