#!/bin/bash
# PID 1 of the guest; run.sh starts it, nobody else. Root is the host's / through hostfs, read-only: lay a tmpfs over it, pivot into
# that, run the guest script, leave its exit status in the job directory, power off.
# The job directory (rig=DIR on the kernel's command line) has `env`, a bash file with everything run.sh has to say.

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8

job_directory() {
  local word
  for word in $(</proc/cmdline); do
    case $word in rig=*) echo "${word#rig=}" ;; esac
  done
}

# hostfs calls its one option by name since it moved to the new mount API; before, the option was the bare path.
mount_host_dir() {
  mount -t hostfs none "$2" -o "hostfs=$1" 2>/dev/null || mount -t hostfs none "$2" -o "$1"
}

enter_overlay() {
  mount -t tmpfs -o "mode=755,size=$RIG_OVERLAY_SIZE" tmpfs /mnt
  mkdir -p /mnt/up /mnt/work /mnt/root /mnt/up/mnt/old
  mount -t overlay -o lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work overlay /mnt/root
  umount /proc
  cd /mnt/root || return
  pivot_root . mnt/old && cd /
}

mount_system() {
  mount -t proc proc /proc
  mount -t sysfs sys /sys
  mount -t devtmpfs dev /dev
  mkdir -p /dev/shm /dev/pts
  mount -t tmpfs -o "mode=1777,size=$RIG_SHM_SIZE" tmpfs /dev/shm
  mount -t devpts devpts /dev/pts
  mount -t tmpfs -o mode=755 tmpfs /run
  mount -t configfs configfs /sys/kernel/config 2>/dev/null
  mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
  ln -sfn /proc/self/fd /dev/fd
  ln -sfn fd/0 /dev/stdin
  ln -sfn fd/1 /dev/stdout
  ln -sfn fd/2 /dev/stderr
}

mount_shared() {
  mkdir -p /run/rig
  mount_host_dir "$job" /run/rig
  if [ -n "${SHARE:-}" ]; then mount_host_dir "$SHARE" "$SHARE"; fi
  umount -l /mnt/old
}

tune() {
  # The guest's cpuinfo has no "cpu MHz", and perftest refuses to convert its cycle counts without it.
  sed "/^mode/a cpu MHz\t\t: $RIG_HOST_MHZ" /proc/cpuinfo >/run/cpuinfo
  mount --bind /run/cpuinfo /proc/cpuinfo
  # process_vm_readv between siblings; a test that wants Yama's refusal writes 1 itself.
  [ -e /proc/sys/kernel/yama/ptrace_scope ] && echo 0 >/proc/sys/kernel/yama/ptrace_scope
  hostname guest
  ip link set lo up
  ulimit -l unlimited      # memory registration pins pages
  ulimit -n 65536
}

# The script talks through serial ttys so that kernel messages, which go to the console, stay out of its output.
run_on_lines() {
  stty -F /dev/tty1 raw
  stty -F /dev/tty2 raw
  exec </dev/null >/dev/tty1 2>"/dev/$RIG_STDERR"
  setsid bash "$RIG_SCRIPT" "${RIG_ARGS[@]}" &
  script=$!
  watchdog &
  exec 2>/dev/null     # no comment of this shell on how the script ended
  wait "$script"
}

run_on_terminal() {
  export TERM=$RIG_TERM
  stty -F /dev/tty1 rows "${RIG_WINDOW% *}" cols "${RIG_WINDOW#* }"
  setsid -cw bash "$RIG_SCRIPT" "${RIG_ARGS[@]}" <>/dev/tty1 >&0 2>&0
}

# Ends the script from inside, where files in SHARE still get flushed; run.sh ends the guest from outside if this fails.
watchdog() {
  sleep "$RIG_TIMEOUT"
  echo "rig: no end after $RIG_TIMEOUT s; what ran in the guest:"
  ps -N -p 2 --ppid 2 -o pid,ppid,stat,etimes,wchan:20,args     # all but the kernel's threads
  touch /run/timed-out
  kill -TERM -- "-$script"
  sleep 2
  kill -KILL -- "-$script"
} >&2 2>/dev/null

unset rig     # from the command line
mount -t proc proc /proc
job=$(job_directory)
# shellcheck disable=SC1091
. "$job/env"
enter_overlay && mount_system && mount_shared || echo "rig: could not set up the guest's root"
tune
cd "$RIG_CWD" || cd /
touch /run/rig/booted
if [ -n "${RIG_TERM:-}" ]; then run_on_terminal; else run_on_lines; fi
status=$?
[ -e /run/timed-out ] && status=124
sync
# An empty file whose name says it: a creation reaches the host at once, contents only when they are written back.
touch "/run/rig/status.$status"
sync
echo o >/proc/sysrq-trigger
sleep 10
