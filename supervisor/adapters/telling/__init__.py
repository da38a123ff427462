"""Who is told how the job stands: people, systemd, and readers elsewhere."""
