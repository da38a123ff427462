"""What is made ready for the next start while an attempt runs: standbys, a probe, compiles."""
