"""The sweep directory: its layout, records and their codec. Shared by launcher and node."""
