# Shared by the outside tests: where things are, one virtual environment for all, a way to start a process and learn
# its address, and one to leave nothing running. Source it; it changes to the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SCRATCH=$PWD/scratch
mkdir -p "$SCRATCH"
WARMROUTE=${WARMROUTE:-$PWD/target/debug/warmroute}
[ -x "$WARMROUTE" ] || cargo build --quiet

children=()
stop_children() {
  for pid in "${children[@]:-}"; do
    [ -n "$pid" ] && kill "$pid" 2>/dev/null || true
  done
  wait 2>/dev/null || true
}
trap stop_children EXIT

# venv NAME PACKAGE==VERSION...: a virtual environment in scratch/, made once for this list of packages.
venv() {
  local name=$1 stamp
  shift
  stamp=$SCRATCH/$name/installed
  if [ "$(cat "$stamp" 2>/dev/null)" != "$*" ]; then
    python3 -m venv --clear "$SCRATCH/$name"
    "$SCRATCH/$name/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$@"
    printf '%s' "$*" >"$stamp"
  fi
}

# start LOG COMMAND...: runs it in the background, stopped at exit; both of its outputs go to LOG.
start() {
  local log=$1
  shift
  : >"$log"
  "$@" >>"$log" 2>&1 &
  children+=($!)
}

# address LOG PATTERN: waits for the address that follows PATTERN (a sed expression) in LOG.
address() {
  local found
  for _ in $(seq 600); do
    found=$(tr -d '"' <"$1" | sed -n "s,.*$2\([0-9.]*:[0-9]*\).*,\1,p" | head -n 1)
    [ -n "$found" ] && { echo "$found"; return; }
    sleep 0.05
  done
  echo "no address after $2 in $1:" >&2
  cat "$1" >&2
  return 1
}

# until_true WHAT SECONDS COMMAND...: waits for a command to succeed.
until_true() {
  local what=$1 end=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { echo "not in time: $what" >&2; return 1; }
    sleep 0.1
  done
}
