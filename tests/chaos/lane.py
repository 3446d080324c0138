"""One lane: plays the rounds whose seeds it reads, and writes a line about each. Runs within `lane.sh`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from tests.chaos.game import play
from tests.chaos.plan import Round, drawn
from tests.chaos.seeds import FOUND, PLANNED


def _round(seed: int) -> Round:
    return drawn(seed) if seed >= 0 else (*FOUND, PLANNED)[-seed - 1]


def main(folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a round prints is no answer
    answers.write("ready\n")
    for line in sys.stdin:
        answers.write(json.dumps(asdict(play(_round(int(line)), Path(folder)))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
