"""Adapters to the kernel: clocks, descriptors, signals, and facts about this host's processes."""
