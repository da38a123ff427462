"""Files that only the supervisor reads and writes: their names, and how they are opened safely."""
