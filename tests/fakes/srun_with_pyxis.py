"""Takes srun's command line as the pyxis plugin does, and refuses what its manual does not have.

Options as of github.com/NVIDIA/pyxis/wiki/Usage, 0.20. Prints what it understood as JSON; starts nothing.
"""

import json
import re
import sys

VALUE = {"image", "mounts", "workdir", "name", "save", "env"}
SWITCH = {"mount-home", "remap-root", "entrypoint"}  # each also as --no-container-…
FLAG = {"writable", "readonly", "entrypoint-log"}


def fail(text):
    sys.exit(f"srun: error: pyxis: {text}")


def main(argv):
    seen = {}
    while argv and argv[0].startswith("--"):
        option, has_value, value = argv.pop(0)[2:].partition("=")
        found = re.fullmatch(r"(no-)?container-(.+)", option)
        if not found:
            continue  # srun's own
        off, name = found.groups()
        if name in seen:
            fail(f"--container-{name} given twice")
        if name in VALUE and not off and has_value and value:
            seen[name] = value
        elif name in SWITCH and not has_value:
            seen[name] = not off
        elif name in FLAG and not off and not has_value:
            seen[name] = True
        else:
            fail(f"unrecognized option --{option}")
    if {"writable", "readonly"} <= set(seen):
        fail("--container-writable and --container-readonly are mutually exclusive")
    mounts = []
    for spec in seen.get("mounts", "").split(","):
        parts = spec.split(":")
        if not 2 <= len(parts) <= 3 or not all(parts) or re.search(r"\s", spec):
            fail(f"invalid format for --container-mounts: {spec}")
        if not parts[1].startswith(("/", "./")):
            fail(f"mount target {parts[1]} must start with / or .")
        mounts.append(parts)
    print(json.dumps({**seen, "mounts": mounts, "command": argv}))


main(sys.argv[1:])
