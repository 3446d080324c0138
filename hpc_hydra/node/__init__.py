"""What runs on a compute node."""
