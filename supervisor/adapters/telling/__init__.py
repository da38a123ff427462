"""Adapters that tell the state of the job: to people, to systemd, and to readers elsewhere."""
