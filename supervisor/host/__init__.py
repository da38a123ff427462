"""What every process of ours needs on a Linux host: standard library only, and cheap to import."""
