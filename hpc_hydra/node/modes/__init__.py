"""Start modes: how the ranks of a run come to life, one module each."""
