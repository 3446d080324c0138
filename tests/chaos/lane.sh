#!/bin/bash
# lane.sh DIR COMMAND...: run a command on a machine of its own, as far as the tests can see: own network, processes,
# mounts (/tmp, /run, /dev/shm, /etc/hosts, /etc/slurm) and a whole test cluster, whose state is in DIR/slurm. All of it
# ends with this process, whatever ends it.
set -u
HERE=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
if [ "${1:-}" != --inside ]; then
  bash "$HERE/../cluster/slurm/up" --install >&2 </dev/null || exit 1
  exec unshare --mount --net --pid --uts --ipc --fork --kill-child --mount-proc bash "$HERE/lane.sh" --inside "$@"
fi
dir=$2; shift 2
mount --make-rprivate /
mkdir -p "$dir" /etc/slurm
cp /etc/hosts "$dir/hosts" && mount --bind "$dir/hosts" /etc/hosts
for at in /run /etc/slurm; do mount -t tmpfs -o mode=755 tmpfs $at; done
for at in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $at; done
mkdir -p /run/lock
ip link set lo up
export TEST_SLURM_DIR="$dir/slurm" TEST_SLURM_NODE_TMP=16m TEST_SLURM_TIMEOUT="${TEST_SLURM_TIMEOUT:-6}" TEST_SLURM_GRACE=2 TEST_SLURM_CRED_EXPIRE=5
bash "$HERE/../cluster/slurm/up" >"$dir/up.log" 2>&1 </dev/null || { tail -5 "$dir/up.log" >&2; exit 1; }
"$@" <&0 &  # of its own, as bash would give it none
wait $!
code=$?
kill -KILL -1 2>/dev/null  # all but this shell, which is the first process here
exit $code
