"""Types and checks every configuration group; registers their schemas with Hydra."""
