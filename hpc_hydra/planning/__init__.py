"""cfg → Plan. No I/O, no environment, no clock."""
