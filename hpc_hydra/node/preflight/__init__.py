"""The check of all nodes of a job before its ranks start: ``launch.preflight``."""
