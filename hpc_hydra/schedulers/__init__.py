"""Schedulers: the interface, what they have in common, and a folder for each one."""
