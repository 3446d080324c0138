"""What hpc_hydra adds to the start of a Hydra app: `--help` and a dry run of one run.

The reference is a bare Hydra app with eight config groups, in an environment that has nothing but Hydra. Beside it: an
app with eight groups in all, of which six are ours; and one with the same eight and ours on top.

    python benchmarks/hydra_start.py                     15 rounds
"""

from __future__ import annotations

from pathlib import Path

import _bench

BARE, IN_ALL, ON_TOP = "bare app, 8 groups", "2 groups + hpc (8 in all)", "8 groups + hpc (14 in all)"


def main() -> None:
    parser = _bench.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="default: 15")
    options = parser.parse_args()
    with _bench.workplace(options.work) as work:
        ours = _bench.make_venv(work / "ours", _bench.ROOT, _bench.HYDRA)
        bare = _bench.make_venv(work / "bare", _bench.HYDRA)
        apps = {
            BARE: (bare, _bench.make_app(work / "case" / "bare")),
            IN_ALL: (ours, _bench.make_app(work / "case" / "in_all", "hpc", groups=2)),
            ON_TOP: (ours, _bench.make_app(work / "case" / "on_top", "hpc")),
        }
        env = _bench.environment()

        def timed(name: str, *overrides: str) -> dict[str, float]:
            python, app = apps[name]
            usage = _bench.measure([python, app, *overrides], cwd=Path(app).parent, env=env)
            return {"wall seconds": usage.wall, "CPU seconds": usage.cpu}

        dry = ["-m", "launch.dry_run=true", "system=frontier"]
        found = {
            "--help": _bench.interleaved({name: lambda n=name: timed(n, "--help") for name in apps}, options.rounds),
            "a dry run of one run (bare app: its run)": _bench.interleaved(
                {name: lambda n=name: timed(n, *([] if n == BARE else dry)) for name in apps}, options.rounds
            ),
        }
    table = []
    for title, samples in found.items():
        for quantity in ("CPU seconds", "wall seconds"):
            table += [{"case": title, **line} for line in _bench.compare(title, samples, quantity, [BARE])]
    _bench.write_json(options.json, samples=found, table=table)


if __name__ == "__main__":
    main()
