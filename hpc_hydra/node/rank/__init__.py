"""One rank: who it is, its environment, its rendezvous, the program it runs, what it returns."""
