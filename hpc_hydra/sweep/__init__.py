"""The sweep directory: its names, formats, reading and writing. What launcher and node both know.

Must not know: how anything is submitted, watched or run.
"""
