"""One lane: plays the rounds whose seeds it reads, and writes a line about each. Runs within `lane.sh`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.chaos.game import play
from tests.chaos.plan import drawn


def main(folder: str) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(play(drawn(int(line)), Path(folder)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
