#!/usr/bin/env bash
# Ends what deploy/local/up.sh started in the same directory, and nothing else:
#   deploy/local/down.sh [DIR]      default: .mycora/local in the repository
# The data stay; up.sh goes on with them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-$root/.mycora/local}
# shellcheck source=deploy/local/processes.sh
source "$root/deploy/local/processes.sh"

if [ ! -d "$dir/run" ]; then
  echo "nothing was started in $dir"
  exit 0
fi
dir=$(cd "$dir" && pwd)
# Those that take work first, what they need last.
for name in saga router mycelium-gateway scheduler runner; do
  for record in "$dir/run/$name".pid "$dir/run/$name"-[0-9]*.pid; do
    if [ -f "$record" ]; then stop "$(basename "$record" .pid)"; fi
  done
done
for name in supervisor runner-registry storage redis nats mycelium; do
  stop "$name"
done
