#!/bin/sh
# scripts/test.sh PYTHON: the whole suite, in two processes side by side, because the tests of the real SLURM mostly wait
# for it. What those print comes at the end.
set -u
python=$1
log='' slurm=''

half() { # NAME ARGUMENT...: in place of this shell
  name=$1
  shift
  exec "$python" -m pytest --half "$name" -o cache_dir=".pytest_cache/$name" "$@"
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
half slurm >"$log" 2>&1 &
slurm=$!
(half other)
other=$?
wait "$slurm"
code=$?
slurm=''
echo
echo '=== the tests of the real SLURM, which ran beside these'
cat "$log"
rm -f "$log"
passed "$other" && passed "$code"
