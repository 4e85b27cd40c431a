# shellcheck shell=bash
# Source in the guest after two_hosts.sh: perftest between two hosts, one line of JSON per message size.
#
#   perftest_pair ib_write_bw -s 1048576 -n 500 -q 1
#   {"tool":"ib_write_bw","bytes":1048576,"qps":1,"iterations":500,"gb_per_s_avg":1.3713,"gb_per_s_peak":1.4776,"messages_per_s":1308}
#
#   perftest_pair ib_write_lat -s 8 -n 2000
#   {"tool":"ib_write_lat","bytes":8,"iterations":2000,"us_min":...,"us_max":...,"us_typical":...,"us_avg":...,"us_p99":...,"us_p99_9":...}
#
# The server runs on host PERFTEST_SERVER (a), the client on PERFTEST_CLIENT (b); both c: loopback through one device. Writes and sends
# go from client to server, reads the other way. GB is 1e9 bytes. The status is that of the first side that failed.

perftest_limit=${PERFTEST_LIMIT:-60}      # s for one run

# perftest calls 2^20 bytes "MB"; only --report_gbits gives decimal units (1e9 bits). Peak is 0 where perftest does not measure it (-D).
# -q N makes N * iterations messages, which is what the column says; "iterations" here is what one queue pair did.
_perftest_json() {
  awk -v tool="$1" -v qps="$2" '
    /#bytes.*BW/            { unit = /Gb\/sec/ ? 1e9 / 8 : 1048576; kind = "bw"; next }
    /#bytes.*t_min/         { kind = "lat"; next }
    !/^ *[0-9]+ +[0-9]+ /   { next }
    kind == "bw"  { printf "{\"tool\":\"%s\",\"bytes\":%d,\"qps\":%d,\"iterations\":%d,\"gb_per_s_avg\":%.4f,\"gb_per_s_peak\":%.4f,\"messages_per_s\":%.0f}\n",
                    tool, $1, qps, $2 / qps, $4 * unit / 1e9, $3 * unit / 1e9, $5 * 1e6; n++ }
    kind == "lat" { printf "{\"tool\":\"%s\",\"bytes\":%d,\"iterations\":%d,\"us_min\":%s,\"us_max\":%s,\"us_typical\":%s,\"us_avg\":%s,\"us_p99\":%s,\"us_p99_9\":%s}\n",
                    tool, $1, $2, $3, $4, $5, $6, $8, $9; n++ }
    END { exit !n }' "$3"
}

# _perftest_clock: print the library to preload, made once per guest; see perftest_clock.c. Without a compiler perftest does without it.
_perftest_clock() {
  local source library=/run/perftest_clock.so
  source=$(dirname "${BASH_SOURCE[0]}")/perftest_clock.c
  [ -e "$library" ] || cc -O2 -shared -fPIC -o "$library" "$source" 2>/dev/null || return 0
  echo "$library"
}

# The whole run cannot have been shorter than the transfers in it: lines that say otherwise come from a failed calibration of perftest's
# clock (see perftest_clock.c), and are not results.
_perftest_plausible() {
  awk -v wall="$1" -F'[:,}]' '
    /gb_per_s_avg/ { for (i = 1; i < NF; i++) v[$i] = $(i + 1)
                     rate = v["\"gb_per_s_avg\""] * 1e9; sum += rate ? v["\"bytes\""] * v["\"qps\""] * v["\"iterations\""] / rate : wall + 1 }
    END { exit sum > wall }'
}

_perftest_qps() {
  local previous=
  for arg in "$@"; do
    case $previous:$arg in
      -q:* | --qp:*) echo "$arg"; return ;;
      *:--qp=*) echo "${arg#--qp=}"; return ;;
    esac
    previous=$arg
  done
  echo 1
}

_perftest_await_listener() {
  local i
  for ((i = 0; i < 200; i++)); do
    [ -z "$(ip netns exec "$1" ss -Hltn "sport = :$2")" ] || return 0
    sleep 0.05
  done
  return 1
}

# _perftest_run TOOL ARGS...: both sides, their output in $log.server and $log.client, the client's seconds in $wall.
_perftest_run() {
  local tool=$1 server=${PERFTEST_SERVER:-a} client=${PERFTEST_CLIENT:-b} port=$((18515 + RANDOM % 1000)) pid status start clock
  shift
  clock=$(_perftest_clock)
  ip netns exec "$server" env LD_PRELOAD="$clock" timeout "$perftest_limit" "$tool" -d "$(rig_host_device "$server")" -x 1 -F -p "$port" "$@" >"$log.server" 2>&1 &
  pid=$!
  _perftest_await_listener "$server" "$port"
  start=$EPOCHREALTIME
  ip netns exec "$client" env LD_PRELOAD="$clock" timeout "$perftest_limit" "$tool" -d "$(rig_host_device "$client")" -x 1 -F -p "$port" "$@" \
    "$(rig_host_address "$server")" >"$log.client" 2>&1
  status=$?
  wall=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
  [ "$status" = 0 ] || kill "$pid" 2>/dev/null      # it would wait for its client until the limit
  wait "$pid" || [ "$status" != 0 ] || status=$?
  return "$status"
}

perftest_pair() {
  local log wall status=1 attempt json
  log=$(mktemp /run/perftest.XXXXXX)
  for attempt in 1 2 3; do
    _perftest_run "$@"
    status=$?
    [ "$status" = 0 ] || break
    json=$(_perftest_json "$1" "$(_perftest_qps "$@")" "$log.client") || { status=1; break; }
    if _perftest_plausible "$wall" <<<"$json"; then echo "$json"; rm -f "$log"*; return 0; fi
    echo "rig: $1 says its transfers took longer than the whole run (attempt $attempt): its clock calibration failed, is the machine busy?" >&2
    status=1
  done
  { echo "rig: perftest_pair $* failed with status $status"; tail -n 5 "$log.server" "$log.client"; } >&2
  rm -f "$log"*
  return "$status"
}
