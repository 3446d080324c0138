"""The only code that touches names that Hydra and OmegaConf keep private."""
