"""`supervise report`: a job's history as one page, as text and as JSON, from its journal."""
