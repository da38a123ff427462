"""Probes the devices: finds out which exist, and which compute correctly."""
