"""This machine, without a scheduler."""
