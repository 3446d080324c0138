"""Hydra's own conformance suites for launchers and sweepers, run on ours."""

from __future__ import annotations

from hydra.core.plugins import Plugins

Plugins.instance()  # before Hydra's fixtures keep the state of its singletons, which they restore after each test
