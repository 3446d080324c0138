"""Hosts without a scheduler, reached by ssh."""
