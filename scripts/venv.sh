#!/bin/sh
# scripts/venv.sh DIR CONSTRAINTS [OVERRIDES]: a virtual environment DIR with this project (editable) and all that its
# tests and (from Python 3.11) its site need, at the versions of CONSTRAINTS; then OVERRIDES, a requirements file, in
# place of what pyproject.toml allows.
# Needs only a Python ≥ 3.10 ($PYTHON, else the first one found) with pip, and pip's index.
# torch: pip takes the build that its index offers; where that is a large CUDA build and a CPU build would do,
# point PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to one.
set -eu
dir=$1 constraints=$2 overrides=${3:-}

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }
if [ -n "${PYTHON:-}" ]; then
  usable "$PYTHON" || { echo "PYTHON=$PYTHON is not a Python 3.10 or newer with venv and ensurepip" >&2; exit 1; }
else
  for PYTHON in python3 python3.13 python3.12 python3.11 python3.10 ''; do
    [ -n "$PYTHON" ] || {
      echo "no Python 3.10 or newer with venv found. Try: apt-get install python3-venv, or make PYTHON=/path/to/python3" >&2
      exit 1
    }
    if usable "$PYTHON"; then break; fi
  done
fi

"$dir/bin/python" -c '' 2>/dev/null || { rm -rf "$dir"; "$PYTHON" -m venv "$dir"; }
echo "$dir: installing ($constraints${overrides:+, $overrides})"
pip() { "$dir/bin/python" -m pip --disable-pip-version-check -q --no-input "$@"; }
extras=dev
if [ -z "$overrides" ] && "$dir/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then extras=dev,docs; fi
pip install -c "$constraints" -e ".[$extras]" # built in isolation: a dependency that has no wheel gets what builds it
pip check
if [ -n "$overrides" ]; then pip install --no-deps -r "$overrides"; fi
touch "$dir/.ready"
