# Shared by up, down and node: settings and helpers. Sourced, not executed.
# The cluster is one per machine: its bridge, links, name spaces and /run directory have fixed names; its state directory may be chosen.
STATE=${TEST_SLURM_DIR:-/var/lib/hpc-hydra-slurm} # all state: config, database, spool, logs, pids
NODES=${TEST_SLURM_NODES:-4}                    # node01..nodeNN
CPUS=${TEST_SLURM_CPUS:-8}                      # declared CPUs a node (even number; overcommitted)
GPUS=${TEST_SLURM_GPUS:-4}                      # fake GPUs a node
MEM=${TEST_SLURM_MEM:-32000}                    # declared MiB a node
NET=${TEST_SLURM_NET:-10.77.0}                  # /24 that exists only on a bridge of this machine
BR=slurmbr0
CTL_IP=$NET.254
CTL=$(hostname -s)
DBPORT=${TEST_SLURM_DBPORT:-33306}
RUN=$STATE/run
UP_LOCK=/run/lock/hpc-hydra-slurm.up            # one up or down at a time
CONF=/etc/slurm/slurm.conf
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
LC_ALL=C; export LC_ALL

nodename() { printf 'node%02d' "$1"; }
is_ours() { [ "$(readlink "$CONF")" = "$STATE/etc/slurm.conf" ]; }
answers() { timeout 5 scontrol ping 2>/dev/null | grep -q 'is UP'; }
ready() { [ "$(timeout 5 sinfo -h -N -p gpu -o '%T' 2>/dev/null | grep -cxE 'idle|mixed|allocated|completing')" = "$NODES" ]; }
say() { echo "[hpc-hydra-slurm $(($(date +%s%N)/1000000-T0))ms] $*"; }
T0=$(($(date +%s%N)/1000000))

# pid files hold "PID STARTTIME": a reused pid is never signalled.
# (A zombie counts as ended: a container's pid 1 may reap late or never.)
starttime() { local a; read -r a 2>/dev/null < "/proc/$1/stat" || return 0; set -- ${a##*) }; [ "$1" = Z ] || echo "${20}"; }
savepid() { echo "$2 $(starttime "$2")" > "$RUN/$1.pid"; }
alive() { local p s; [ -s "$RUN/$1.pid" ] && read -r p s < "$RUN/$1.pid" && [ -n "$s" ] && [ "$(starttime "$p")" = "$s" ]; }
pidof_() { local p s; read -r p s < "$RUN/$1.pid"; echo "$p"; }
stop() {  # NAME [SIGNAL] [SECONDS]
  local n=$1 sig=${2:-TERM} secs=${3:-15} i
  alive "$n" || { rm -f "$RUN/$n.pid"; return 0; }
  kill -"$sig" "$(pidof_ "$n")" 2>/dev/null
  for ((i=0; i<secs*20; i++)); do alive "$n" || break; sleep 0.05; done
  alive "$n" && { kill -KILL "$(pidof_ "$n")" 2>/dev/null; sleep 0.2; }
  rm -f "$RUN/$n.pid"; return 0
}
bg() {  # NAME CMD...: own session, no stdio, pid recorded
  local n=$1; shift
  setsid "$@" </dev/null >>"$STATE/log/$n.out" 2>&1 9>&- &
  savepid "$n" $!
  disown $! 2>/dev/null
}
waitfor() {  # SECONDS WHAT CMD...
  local end=$((SECONDS+$1)) what=$2; shift 2
  while :; do "$@" >/dev/null 2>&1 && return 0; [ $SECONDS -lt $end ] || break; sleep 0.05; done
  echo "hpc-hydra-slurm: timed out waiting for $what" >&2; return 1
}

start_node() {  # INDEX
  local i=$1 n ns; n=$(nodename "$i"); ns=slurm-$n
  alive "$n" && return 0
  [ -n "$(ip netns pids "$ns" 2>/dev/null)" ] || drop_node_net "$i"   # of an earlier cluster, maybe with another NET
  if ! ip netns list | grep -qw "$ns"; then ip netns add "$ns"; fi
  if ! ip link show "sv$i" >/dev/null 2>&1; then
    ip link add "sv$i" type veth peer name eth0 netns "$ns"
    ip link set "sv$i" master $BR up
    ip -n "$ns" addr add "$NET.$i/24" dev eth0
    ip -n "$ns" link set eth0 up
    ip -n "$ns" link set lo up
  fi
  ip link set "sv$i" up
  # pid 1 of the node is node-init; killing it kills everything on the node.
  bg "$n-outer" nsenter --net="/run/netns/$ns" unshare --uts --mount --ipc --pid --fork --kill-child --mount-proc \
     env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
     bash "$STATE/etc/node-init" "$n"
  local outer; outer=$(pidof_ "$n-outer")
  local k c
  for ((k=0; k<100; k++)); do
    c=$(cat "/proc/$outer/task/$outer/children" 2>/dev/null); c=${c%% *}
    [ -n "$c" ] && break; sleep 0.02
  done
  savepid "$n" "$c"
}
stop_node() {  # INDEX [SIGNAL]
  local n; n=$(nodename "$1")
  stop "$n" "${2:-TERM}" 8; stop "$n-outer" TERM 2
}
drop_node_net() { ip link del "sv$1" 2>/dev/null; ip netns del "slurm-$(nodename "$1")" 2>/dev/null; return 0; }

# ---- what a cluster with these settings cannot be beside: one line each; nothing is changed
in_the_way() {
  local other ns pids p what
  other=$(readlink "$CONF"); other=${other%/etc/slurm.conf}
  if [ -n "$other" ] && [ "$other" != "$STATE" ] && [ -e "$other/etc/node-init" ] && runs_any "$other/run"; then
    echo "another test cluster runs here, from $other. Try: TEST_SLURM_DIR=$other bash $HERE/down"
    return
  fi
  for ns in $(ip netns list 2>/dev/null | grep -o '^slurm-node[0-9]*'); do
    alive "${ns#slurm-}" && continue
    pids=$(echo $(ip netns pids "$ns" 2>/dev/null))
    [ -z "$pids" ] || echo "processes of another test cluster run in the network namespace $ns. Try: kill $pids"
  done
  while read -r p what hint; do
    ! alive "$what" && listens "$p" || continue
    pids=$(ss -Hltnp "sport = :$p" 2>/dev/null | grep -o '"[^"]*",pid=[0-9]*' | head -1 | tr -d '"' | sed 's/,pid=/, pid /')
    echo "port $p, which $what needs, is taken${pids:+ by $pids}. Try: $hint"
  done <<P
$DBPORT mariadbd TEST_SLURM_DBPORT=$((DBPORT+1))
6819 slurmdbd end it
6817 slurmctld end it
P
  what=$(ip -o addr show 2>/dev/null | grep -F " $CTL_IP/" | awk -v br=$BR '$2 != br {print $2}')
  [ -z "$what" ] || echo "the address $CTL_IP belongs to the interface $what. Try: TEST_SLURM_NET=10.78.0"
}
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
runs_any() (RUN=$1; for f in "$RUN"/*.pid; do f=${f##*/}; alive "${f%.pid}" && exit 0; done; exit 1)
