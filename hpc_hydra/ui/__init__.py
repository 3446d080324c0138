"""What a person sees: progress, tables, dry run, HTML report. Renders what it is given."""
