"""Time, descriptors and signals, and what the kernel tells of this host and its processes."""
