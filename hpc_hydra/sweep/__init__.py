"""Reads a sweep from any process, while it runs or later: states, selection, logs, results, history."""
