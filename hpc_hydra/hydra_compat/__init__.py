"""The only code that uses private names of Hydra and OmegaConf."""
