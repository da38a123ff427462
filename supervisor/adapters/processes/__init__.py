"""The processes of the job: started, read from, and ended."""
