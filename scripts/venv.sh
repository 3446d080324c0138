#!/bin/sh
# scripts/venv.sh DIR CONSTRAINTS: a virtual environment DIR with this project (editable) and all that its tests and (from
# Python 3.11) its site need, at the versions of CONSTRAINTS.
# scripts/venv.sh DIR BASE OVERRIDES: the same as in the virtual environment BASE, and then OVERRIDES, a requirements file,
# in place of what pyproject.toml allows.
# Needs only a Python ≥ 3.10 ($PYTHON, else the first one found) with pip, and pip's index.
# torch: pip takes the build that its index offers; where that is a large CUDA build and a CPU build would do,
# point PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to one.
set -eu
dir=$1 overrides=${3:-}
pip() { "$dir/bin/python" -m pip --disable-pip-version-check -q --no-input "$@"; }

if [ -n "$overrides" ]; then
  base=$2
  echo "$dir: as $base, with $overrides"
  rm -rf "$dir"
  cp -Rl "$base" "$dir" 2>/dev/null || { rm -rf "$dir"; cp -R "$base" "$dir"; } # links: pip replaces files, it changes none
  rm -f "$dir/.ready"
  for file in "$dir/pyvenv.cfg" "$dir"/bin/*; do # some hold the path of BASE
    if [ -f "$file" ] && [ ! -L "$file" ] && grep -Iqs "$PWD/$base/" "$file"; then
      cp -p "$file" "$file.new" && sed "s#$PWD/$base/#$PWD/$dir/#g" "$file" >"$file.new" && mv "$file.new" "$file"
    fi
  done
  pip install --no-compile --no-deps -r "$overrides"
  touch "$dir/.ready"
  exit
fi

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
echo "$dir: installing ($2)"
extras=dev
if "$dir/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then extras=dev,docs; fi
# built in isolation: a dependency that has no wheel gets what builds it; only what is imported is ever compiled
pip install --no-compile -c "$2" -e ".[$extras]"
pip check
touch "$dir/.ready"
