"""The HTML report of a sweep: its data (`data`), and the page that shows them (`page`, with HTML, CSS and scripts)."""
