"""What several rules say in the same words, and the fragments that their patterns share."""

from __future__ import annotations

FIX_CODE = "Fix the program; run the same command again to go on from the newest checkpoint."
FIX_CONFIG = "Correct the config; run the same command again."
FIX_PATH = (
    "Correct what the message names where it is set (the command, the config or the program), or "
    "put it in place; run the same command again."
)
NONE_NEEDED = "None needed: it is restarted."
PREEMPTED = "preempted (SIGTERM that the supervisor did not send)"

STATUS = r"(?:^|[\s:(\"'])"
"""What stands before the name of an absl status."""
HTTP = (
    r"(?:http_response_code='|[\"']code[\"']: |[Ss]tatus(?:[_ ][Cc]ode)?[=: ]+|"
    r"(?:Server|Client) [Ee]rror '?|HTTP(?:/[\d.]+| Error| [Ss]tatus)?:? |status code', |"
    r"[Rr]esponse [Cc]ode:? |\((?=\d{3}\))|"
    r"^[\w.]+: (?=\d{3} (?:GET|HEAD|POST|PUT|PATCH|DELETE|Client|Server)\b))"
)
"""What stands before the number of an HTTP status."""
CHECKPOINT_FRAMES = (
    r"orbax[/.]",
    r"(?i)[/_.-](?:checkpoint|ckpt)\w*\.py:",
    r"(?i):\w*(?:restore|load_?(?:checkpoint|ckpt|state)|from_bytes|from_state_dict)\w*(?:\n|$)",
)
"""Frames of code that reads or writes checkpoints."""
