"""Capabilities at a console."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from hpc_hydra import envvars
from hpc_hydra.schedulers import capability_defaults
from hpc_hydra.schedulers.capabilities import Attach
from hpc_hydra.schedulers.watcher import environment
from tests.conformance.driver import Driver, declares
from tests.conformance.jobs import Jobs


@declares(Attach)
@pytest.mark.ranks
def test_an_attached_run_has_input_output_and_exit_code(jobs: Jobs, driver: Driver) -> None:
    assert isinstance(jobs.adapter, Attach)
    spec = jobs.spec('read line; echo "got $line"; echo wrong >&2; exit 7')
    spec = replace(spec, attached=True, environ={**spec.environ, envvars.ATTACHED: "1"})
    argv = jobs.adapter.attach_command(jobs.write(spec), spec, {})
    env = environment(jobs.adapter, keep=capability_defaults.inherited_variables(jobs.adapter, spec.plan.request))
    done = subprocess.run(argv, env=env, cwd=jobs.root, input="a b\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
    assert ("got a b\n" if driver.gives_input else "got \n") in done.stdout
    assert "wrong\n" in done.stdout + done.stderr
