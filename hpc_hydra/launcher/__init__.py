"""Hydra's launcher and sweeper: compose, plan, batch, submit, watch, interrupt, resume."""
