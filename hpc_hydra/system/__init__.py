"""Which machine this is: detection, facts from the operating system, a person's own defaults."""
