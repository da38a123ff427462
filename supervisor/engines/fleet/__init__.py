"""Worker groups over many hosts: one agent per host runs its ranks, the leader decides."""
