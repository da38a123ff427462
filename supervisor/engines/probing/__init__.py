"""Looks at the devices: which are there, and which compute as they should."""
