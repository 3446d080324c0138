"""The types and checks of our config groups, and their registration with Hydra."""
