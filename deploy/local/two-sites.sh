#!/usr/bin/env bash
# Starts two complete suites on this machine, each with its own Redis and certificate authority, joined by Mycelium alone:
#   deploy/local/two-sites.sh [DIR]        default: .mycora/sites in the repository
# Site a may run jobs on the runners of site b: they are runner 2 of its context 1. The same command brings back what died;
# deploy/local/down.sh DIR/a and deploy/local/down.sh DIR/b end it all.
#
# MYCELIUM_BIN           the daemon; default mycelium from the PATH
# MYCORA_SITES_PORT_BASE site a has the ports from here on, site b those from 300 above; the daemons have 250 above theirs. Default 7000
# Everything that deploy/local/up.sh takes goes to both suites.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
sites=${1:-$root/.mycora/sites}
base=${MYCORA_SITES_PORT_BASE:-7000}
daemon=${MYCELIUM_BIN:-$(command -v mycelium || true)}
if [ -z "$daemon" ]; then
  echo "no Mycelium daemon: put mycelium into the PATH, or name one with MYCELIUM_BIN" >&2
  exit 2
fi
mkdir -p "$sites"
chmod 711 "$sites"
sites=$(cd "$sites" && pwd)
# shellcheck source=deploy/local/processes.sh
source "$root/deploy/local/processes.sh"

port() { # SITE OFFSET
  case $1 in a) echo $((base + $2)) ;; b) echo $((base + 300 + $2)) ;; esac
}

answers() { # PORT
  (exec 4<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

start_daemon() { # SITE OTHER
  local dir=$sites/$1
  mkdir -p "$dir"/{run,log}
  is_running mycelium && return
  # Its key is its identity: readable by this user only.
  (umask 077 && mkdir -p "$dir/mycelium")
  start mycelium "$daemon" --no-tun --disable-quic --disable-peer-discovery --key-file "$dir/mycelium/key.bin" \
    --tcp-listen-port "$(port "$1" 250)" --jsonrpc-addr "127.0.0.1:$(port "$1" 251)" \
    --api-addr "127.0.0.1:$(port "$1" 252)" --peers "tcp://127.0.0.1:$(port "$2" 250)"
  wait_until mycelium "answers" answers "$(port "$1" 251)"
}

# Makes what up.sh would make as well, before either gateway starts: each is configured with the other's root.
make_root() { # SITE
  local pki=$sites/$1/pki
  mkdir -p "$sites/$1"
  [ -f "$pki/ca.pem" ] || "$MYCORA_BIN/mycora" pki init --dir "$pki" >/dev/null
  [ -f "$pki/mycelium-gateway.signing.json" ] ||
    "$MYCORA_BIN/mycora" pki issue service/mycelium-gateway --dir "$pki" >/dev/null
}

root_of() { # SITE
  "$MYCORA_BIN/mycora" pki root --dir "$sites/$1/pki"
}

start_site() { # SITE OTHER
  MYCORA_MAIL_FROM=$(root_of "$2") MYCORA_PORT_BASE=$(port "$1" 0) MYCORA_MYCELIUM_IP=127.0.0.1 MYCORA_MYCELIUM_PORT=$(port "$1" 251) \
    "$root/deploy/local/up.sh" "$sites/$1"
}

mycora() { # SITE COMMAND...
  local dir=$sites/$1
  shift
  "$MYCORA_BIN/mycora" --config "$dir/client.toml" "$@"
}

MYCORA_BIN=${MYCORA_BIN:-$root/target/release}
[ -x "$MYCORA_BIN/mycora" ] || MYCORA_BIN=$root/target/debug
export MYCORA_BIN
start_daemon a b
start_daemon b a
make_root a
make_root b
start_site a b
# Site b's supervisor takes jobs of its own coordinator and of site a's.
MYCORA_COORDINATOR=$(root_of a) start_site b a
# Address of site b's supervisor: its node's key, which it reports to the operator of the machine.
admin=$sites/b/pki/admin
address=$(mycora b --output json --cert "$admin.pem" --key "$admin.key" supervisor show | sed -n 's/.*"myceliumAddress": *"\([^"]*\)".*/\1/p')
mycora a bootstrap --admin "$sites/a/pki/admin.pem" --runner "grpc://127.0.0.1:$(port a 6)" --runner "$address"
echo "site b's runners take jobs of site a as $address"
echo "  MYCORA_CONFIG=$sites/a/client.toml $MYCORA_BIN/mycora flow list"
