"""User interface: progress, tables, dry run. Renders what it is given."""
