"""Facts about this machine: detection, hardware, and the user's own defaults."""
