#!/bin/sh
# scripts/test.sh PYTHON: the whole suite, in two sessions side by side: the tests of the real SLURM mostly wait for it.
# What that session prints comes at the end. Tests that mostly wait come first (tests/conftest.py), one by one, so that
# those at the end keep all cores busy.
set -u
python=$1
rm -rf .pytest_cache/other .pytest_cache/slurm
log='' slurm=''

half() { # NAME ARGUMENT...: in place of this shell
  name=$1 workers=$2
  shift 2
  exec "$python" -m pytest --half "$name" -q -n "$workers" --maxschedchunk 1 -o cache_dir=".pytest_cache/$name" "$@"
}
passed() { [ "$1" -eq 0 ] || [ "$1" -eq 5 ]; } # 5: none of these tests is here
stop() {
  trap '' INT TERM
  [ -z "$slurm" ] || { kill -INT "$slurm" 2>/dev/null && wait "$slurm"; }
  [ -z "$log" ] || rm -f "$log"
  exit "$1"
}

trap 'stop 130' INT
trap 'stop 143' TERM
log=$(mktemp)
# compiles the tests and torch once, and not in each worker
"$python" -c 'import torch._dynamo, torch.distributed.fsdp, torch.distributed.checkpoint' 2>/dev/null &
files=$("$python" -m pytest -q --collect-only --half slurm 2>/dev/null | sed -n 's/::.*//p' | sort -u) # all if none
wait
# shellcheck disable=SC2086 # names of files
half slurm 4 $files >"$log" 2>&1 &
slurm=$!
(half other "$((1 + $(nproc)))")
other=$?
wait "$slurm"
code=$?
slurm=''
echo
echo '=== the tests of the real SLURM, which ran beside these'
cat "$log"
rm -f "$log"
passed "$other" && passed "$code" && exit
for each in "$other" "$code"; do passed "$each" || [ "$each" -eq 1 ] || exit 1; done # 1: all have run, and some failed
tests=$("$python" -m tests.again .pytest_cache/other .pytest_cache/slurm) || exit 1
echo
echo '=== failed, and tried once more alone, as tests/again.py says why:'
echo "$tests"
echo "$tests" | tr '\n' '\0' | xargs -0 "$python" -m pytest -q -p no:cacheprovider
