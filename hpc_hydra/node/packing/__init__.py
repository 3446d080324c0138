"""Several runs in one allocation."""
