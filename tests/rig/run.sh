#!/bin/bash
# run.sh SCRIPT [ARGS...]: boot the guest, run SCRIPT in it as root, power off, exit with its status.
#
# The guest is a User-Mode Linux kernel: a group of ordinary processes of this user, no privilege needed. It sees every file of this
# machine (the checkout, a virtual environment) at the same path and starts in the same directory; what it writes vanishes, except
# under SHARE. stdout and stderr come out as they are; stdin is empty. RIG_*, TRANSPORT_*, PYTEST_*, SHARE, VENV and CI reach the script,
# and so do the variables named in RIG_ENV.
#
#   SHARE=DIR          mounted read-write at the same path
#   RIG_TIMEOUT=2400    seconds for the script; then it is ended, with a list of what ran, and the status is 124
#   RIG_BOOT_TIMEOUT=300
#   RIG_CONSOLE=FILE   keep the guest kernel's messages there
#   RIG_KERNEL=FILE    use this kernel
#   MEM=6G NCPUS=2     the guest's size; memory is taken when it is touched
#   OVSIZE=50% SHMSIZE=50%   limits of the guest's own writes and of its /dev/shm
#
# Status 124: the script took too long. 125: the rig failed (no kernel, no boot, the guest crashed), with the console's last lines.
# run.sh --tty SCRIPT: on this terminal, without a time limit (see shell.sh).
set -uo pipefail
# shellcheck source=tests/rig/lib.sh
. "$(dirname "$(readlink -f "$0")")/lib.sh"

grace=20     # s after RIG_TIMEOUT before the guest is killed from outside

write_env() {
  local name names
  names=$(compgen -e | grep -E '^(RIG_|TRANSPORT_|PYTEST_|VENV$|CI$)')
  for name in $names ${RIG_ENV:-}; do
    [ -n "${!name+set}" ] && printf 'export %s=%q\n' "$name" "${!name}"
  done
  printf 'RIG_SCRIPT=%q\nRIG_CWD=%q\nRIG_TIMEOUT=%q\nRIG_TERM=%q\n' "$script" "$PWD" "$timeout" "$term"
  [ -z "$term" ] || printf 'RIG_WINDOW=%q\n' "$(stty size </dev/tty)"
  printf 'RIG_OVERLAY_SIZE=%q\nRIG_SHM_SIZE=%q\n' "${OVSIZE:-50%}" "${SHMSIZE:-50%}"
  printf 'RIG_HOST_MHZ=%q\nRIG_STDERR=%q\n' "$(awk -F': ' '/cpu MHz/ { print $2; exit }' /proc/cpuinfo)" "$stderr_tty"
  [ -z "$share" ] || printf 'export SHARE=%q\n' "$share"
  printf 'RIG_ARGS=('; [ $# -eq 0 ] || printf '%q ' "$@"; printf ')\n'
}

# The guest's memory is a sparse file, in /dev/shm when that is a tmpfs. Containers often have 64 MB there, and then the guest would die
# of SIGBUS in mid-run: use a disk directory instead.
choose_memory_dir() {
  local want have
  want=$(numfmt --from=iec "${MEM:-6G}")
  have=$(df --output=avail -B1 /dev/shm 2>/dev/null | tail -1)
  [ "${have:-0}" -ge "$want" ] || export TMPDIR=${TMPDIR:-/tmp}
}

# A session of its own makes every process of the guest killable as one group; setpriv ends it also when this script is killed hard.
# Its lines 1 and 2 are the script's stdout and stderr. They pass through a cat because the guest's kernel makes its descriptors
# non-blocking, which would stick to the caller's terminal or pipe.
start_guest() {
  local lines input=/dev/null
  exec 3>&1 4>&2
  if [ -n "$term" ]; then
    lines=("con1=fd:0,fd:5") input=/dev/tty
    exec 5>/dev/tty 6>/dev/null
  else
    lines=("con1=null,fd:5" "con2=null,fd:6")
    exec 5> >(exec cat >&3); out_cat=$!
    exec 6> >(exec cat >&4 5>&-); err_cat=$!
  fi
  setsid setpriv --pdeathsig KILL \
    "$kernel" "mem=${MEM:-6G}" "ncpus=${NCPUS:-2}" seccomp=on root=/dev/root rootfstype=hostfs rootflags=/ ro \
    "init=$job/init.sh" "rig=$job" "uml_dir=$job/" umid=guest con=null con0=null,fd:1 "${lines[@]}" ssl=null quiet \
    <"$input" >>"$console" 2>&1 3>&- 4>&- &
  guest=$!
  disown "$guest"      # or the shell would comment on how it ended
  exec 3>&- 4>&- 5>&- 6>&-
}

alive() { kill -0 "$guest" 2>/dev/null; }

# A pause without a process: this loop must not disturb what is measured in the guest.
nap() { read -rt 0.05 -u "$nothing"; }

# wait_guest: until it ends or a limit passes. Leaves the reason in $killed.
wait_guest() {
  local boot_limit=$((SECONDS + boot_timeout)) limit=
  while alive; do
    if [ -z "$limit" ]; then
      [ ! -e "$job/booted" ] || limit=$((SECONDS + timeout + grace))
      [ "$SECONDS" -lt "$boot_limit" ] || { killed="the guest did not boot within $boot_timeout s"; break; }
    elif [ -z "$term" ] && [ "$SECONDS" -ge "$limit" ]; then
      killed="the guest did not end $grace s after the time limit of $timeout s"; break
    fi
    nap
  done
}

# Kills what start_guest started and nothing else: the group is the guest's own. Also after a normal end, for a leftover process.
end_guest() {
  local patience=100
  [ -n "$guest" ] || return 0
  kill -KILL -- "-$guest" 2>/dev/null
  while alive && [ $((patience -= 1)) -gt 0 ]; do nap; done
  guest=
}

# shellcheck disable=SC2317     # called by the traps
cleanup() {
  end_guest
  [ -z "$saved_tty" ] || stty "$saved_tty" </dev/tty
  rm -rf "$job"
}

show_console() {
  rig_note "the console's last lines:"
  tail -n 25 "$console" | tr -d '\r' >&2
}

# The script's own output is in the cats: let them finish writing before the caller sees the end.
drain() { [ -n "$term" ] || wait "$out_cat" "$err_cat" 2>/dev/null; }

finish() {
  local file
  for file in "$job"/status.*; do
    [ -e "$file" ] || break
    exit "${file##*.}"
  done
  show_console
  case $killed in
    *"time limit"*) rig_note "$killed"; exit 124 ;;
    *) rig_die "${killed:-the guest ended without a status: it crashed or was killed}" ;;
  esac
}

term=
if [ "${1:-}" = --tty ]; then shift; term=${TERM:-dumb}; fi
[ -f "${1:-}" ] || rig_die "usage: run.sh SCRIPT [ARGS...]"
script=$(readlink -f "$1"); shift
timeout=${RIG_TIMEOUT:-2400} boot_timeout=${RIG_BOOT_TIMEOUT:-300}
kernel=$(rig_kernel) || rig_die "no guest kernel: run tests/rig/setup.sh"
share=
if [ -n "${SHARE:-}" ]; then mkdir -p "$SHARE"; share=$(readlink -f "$SHARE"); fi

guest='' killed='' saved_tty=''
job=$(mktemp -d /tmp/transport-rig.XXXXXX)     # not TMPDIR: the kernel's command line takes no blanks
exec {nothing}<> <(:)
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
console=${RIG_CONSOLE:-$job/console}
: >"$console"
cp "$rig_dir/init.sh" "$job/init.sh"
# One line for both when the caller sends both to the same place: the order of what is printed is then kept.
stderr_tty=tty2
[ "$(readlink /proc/$$/fd/1)" != "$(readlink /proc/$$/fd/2)" ] || stderr_tty=tty1
write_env "$@" >"$job/env"
[ -z "$term" ] || saved_tty=$(stty -g </dev/tty)
choose_memory_dir
start_guest
wait_guest
end_guest
drain
finish
