"""Where worker groups run. An engine starts, signals and kills; it never decides."""
