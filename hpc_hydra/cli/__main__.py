"""``python -m hpc_hydra.cli``: same as ``hpc-hydra``."""

import sys

from hpc_hydra.cli.main import main

sys.exit(main())
