"""`supervise serve`: shows jobs over HTTP, to browsers and to Prometheus, and changes nothing.

It is a process of its own that reads what the files of a job say, so it cannot harm a job. Nothing
here knows how a job is read: `supervisor.cli.served_job` does.
"""
