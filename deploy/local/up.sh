#!/usr/bin/env bash
# Starts Mycora as separate processes on this machine, each with a certificate of its own, over one redis-server:
#   deploy/local/up.sh [DIR]        default: .mycora/local in the repository
# What runs already is left alone, so the same command brings back a service that died. deploy/local/down.sh [DIR] ends it all.
#
# MYCORA_BIN        folder with the programs; default target/release, or target/debug where only that was built
# MYCORA_PORT_BASE  services listen on this + 1 to 6 and serve operators 100 above; default 7700
# MYCORA_SCHEDULERS how many scheduler replicas there are; default 1. The others are scheduler-2 on + 12, scheduler-3 on + 22 …
# MYCORA_RUNNERS    how many runners there are; default 1. The others are runner-2 on + 17, runner-3 on + 27 … and instance 2, 3 …
# MYCORA_GROUP_OF_runner_2 (and so on): the group of that runner; default "default"
# MYCORA_SLOTS, MYCORA_TYPES, MYCORA_ISOLATION, MYCORA_ALLOW_READ, MYCORA_ALLOW_WRITE, MYCORA_POLICY: as the services take them
# MYCORA_COORDINATOR: root keys of further coordinators whose jobs the supervisor takes, with commas between them; its own it takes anyway
# MYCORA_MYCELIUM_IP, MYCORA_MYCELIUM_PORT: the Mycelium daemon that gateway and supervisor use; default none
# MYCORA_RUNNER_ADDRESSES which addresses actors may give for runners and mail; default 127.0.0.1
# MYCORA_MAIL_FROM, MYCORA_MAIL_FROM_STRANGERS: whose mail the gateway accepts; default none from elsewhere
# MYCORA_DURABILITY what an answered change survives: fast (default) or synced
# MYCORA_SAGA       yes: sagas as well, on + 8, over a nats-server on + 50 with its streams in DIR/nats; the aggregate service
#                   creates the stream AGGREGATE_EVENTS there, as the user mycora with the password in DIR/nats.password
# MYCORA_NATS_SERVER the program for that; default nats-server in the PATH, or /usr/sbin/nats-server
# MYCORA_MANIFESTS, MYCORA_SECRETS: default DIR/manifests and DIR/secrets; MYCORA_TENANTS, MYCORA_GATEWAY: as the service takes them
set -euo pipefail
# Files made here are for this user alone, unless noted otherwise.
umask 077
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-$root/.mycora/local}
base=${MYCORA_PORT_BASE:-7700}
schedulers=${MYCORA_SCHEDULERS:-1}
runners=${MYCORA_RUNNERS:-1}
durability=${MYCORA_DURABILITY:-fast}
saga=${MYCORA_SAGA:-}
# The supervisor is on this machine.
export MYCORA_RUNNER_ADDRESSES=${MYCORA_RUNNER_ADDRESSES:-127.0.0.1}
# shellcheck source=deploy/local/processes.sh
source "$root/deploy/local/processes.sh"

bin=${MYCORA_BIN:-}
if [ -z "$bin" ]; then
  bin=$root/target/release
  [ -x "$bin/mycora-storage" ] || bin=$root/target/debug
  if [ ! -x "$bin/mycora-storage" ]; then
    "$root/deploy/local/need.sh" cargo cc
    echo "building"
    cargo build --quiet --manifest-path "$root/Cargo.toml" --bins
  fi
fi
"$root/deploy/local/need.sh" redis-server python3
nats=${MYCORA_NATS_SERVER:-}
if [ "$saga" = yes ] && [ -z "$nats" ]; then
  "$root/deploy/local/need.sh" nats-server
  nats=$(command -v nats-server || echo /usr/sbin/nats-server)
fi

mkdir -p "$dir"/{redis,run,log,work}
# Users of contexts pass through to the work directory; the rest is for this user alone.
chmod 711 "$dir"
chmod 700 "$dir"/{redis,run,log}
if [ "$saga" = yes ]; then
  mkdir -p "$dir"/{nats,saga,manifests,secrets}
  chmod 700 "$dir"/{nats,saga,manifests,secrets}
fi
dir=$(cd "$dir" && pwd)
# What readers of /metrics and /info show.
[ -s "$dir/ops.token" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$dir/ops.token"
socket=$dir/redis.sock
if [ ${#socket} -gt 100 ]; then
  echo "$socket is too long for a socket; choose a directory with a shorter name" >&2
  exit 2
fi

# name and number of each service: it listens on base + number, for operators on base + 100 + number
services=(storage:1 runner-registry:4 scheduler:2 mycelium-gateway:5 router:3 supervisor:6 runner:7)
for ((replica = 2; replica <= schedulers; replica++)); do
  services+=("scheduler-$replica:$((2 + 10 * (replica - 1)))")
done
for ((replica = 2; replica <= runners; replica++)); do
  services+=("runner-$replica:$((7 + 10 * (replica - 1)))")
done
if [ "$saga" = yes ]; then services+=(saga:8); fi
url() { echo "https://127.0.0.1:$((base + $1))"; }
nats_port=$((base + 50))

start_redis() {
  is_running redis && return
  local fsync=everysec
  if [ "$durability" = synced ]; then fsync=always; fi
  # Only this user reaches the socket; the last database is the supervisor's. Records in one piece take a third less memory.
  start redis redis-server --port 0 --unixsocket "$socket" --unixsocketperm 700 --dir "$dir/redis" \
    --databases 64 --appendonly yes --appendfsync $fsync --notify-keyspace-events Kl --save "" \
    --hash-max-listpack-value 1024 --hash-max-listpack-entries 128
  wait_until redis "answers on $socket" test -S "$socket"
}

listens() ( # PORT
  exec 4<>"/dev/tcp/127.0.0.1/$1"
) 2>/dev/null

start_nats() {
  is_running nats && return
  [ -s "$dir/nats.password" ] || od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$dir/nats.password"
  local version sync=
  version=$("$nats" --version)
  # Version 2.9 does not know the key, and does not start with it.
  case $version in *" v2.9."*) ;; *) sync="sync_interval: always" ;; esac
  cat >"$dir/nats/nats.conf" <<END
listen: "127.0.0.1:$nats_port"
authorization { user: mycora, password: "$(cat "$dir/nats.password")" }
jetstream { store_dir: "$dir/nats/store"
$sync
}
END
  start nats "$nats" -c "$dir/nats/nats.conf"
  wait_until nats "listens" listens "$nats_port"
}

issue() { # IDENTITY FILE
  local needed=$dir/pki/$2.pem
  # What a gateway signs with is made together with its certificate.
  if [ "$2" = mycelium-gateway ] && [ ! -f "$dir/pki/$2.signing.json" ]; then needed=; fi
  [ -f "$needed" ] || "$bin/mycora" pki issue "$1" --dir "$dir/pki" >/dev/null
}

make_certificates() {
  [ -f "$dir/pki/ca.pem" ] || "$bin/mycora" pki init --dir "$dir/pki" >/dev/null
  local service
  for service in "${services[@]}"; do
    service=$(program "${service%:*}")
    issue "service/$service" "$service"
  done
  issue actor/1 actor-1
}

# Replicas of a service are one program.
program() { # NAME
  case $1 in
    scheduler-*) echo scheduler ;;
    runner-[0-9]*) echo runner ;;
    *) echo "$1" ;;
  esac
}

start_service() { # NAME NUMBER
  local name=$1 number=$2 database=0 program storage group instance=1
  is_running "$name" && return
  program=$(program "$name")
  # A replica may be given a way of its own to storage, such as through a proxy that breaks.
  storage=MYCORA_STORAGE_OF_${name//-/_}
  storage=${!storage:-$(url 1)}
  group=MYCORA_GROUP_OF_${name//-/_}
  local signing=()
  if [ "$program" = mycelium-gateway ]; then
    signing=(MYCORA_SIGNING_KEY="$dir/pki/$program.signing.key"
      MYCORA_SIGNING_CERTIFICATE="$dir/pki/$program.signing.json")
  fi
  local sagas=()
  if [ "$program" = saga ]; then
    # Its rows are its own: not in the Redis of the others.
    sagas=(-u MYCORA_REDIS_URL MYCORA_STORE_DIR="$dir/saga" MYCORA_SCHEDULER="$(url 2)"
      MYCORA_NATS_URL="nats://127.0.0.1:$nats_port" MYCORA_NATS_USER=mycora
      MYCORA_NATS_PASSWORD_FILE="$dir/nats.password"
      MYCORA_MANIFESTS="${MYCORA_MANIFESTS:-$dir/manifests}" MYCORA_SECRETS="${MYCORA_SECRETS:-$dir/secrets}")
  fi
  case $name in supervisor | runner | runner-[0-9]*) database=63 ;; esac
  case $name in runner-[0-9]*) instance=${name#runner-} ;; esac
  MYCORA_LISTEN=127.0.0.1:$((base + number)) MYCORA_OPS_LISTEN=127.0.0.1:$((base + 100 + number)) \
    MYCORA_OPS_TOKEN_FILE=$dir/ops.token \
    MYCORA_TLS_CA=$dir/pki/ca.pem MYCORA_TLS_CERT=$dir/pki/$program.pem MYCORA_TLS_KEY=$dir/pki/$program.key \
    MYCORA_REDIS_URL="unix://$socket?db=$database" MYCORA_WORK_DIR=$dir/work \
    MYCORA_STORAGE=$storage MYCORA_RUNNER_REGISTRY=$(url 4) MYCORA_MYCELIUM_GATEWAY=$(url 5) \
    MYCORA_COORDINATOR=$coordinators MYCORA_DURABILITY=$durability MYCORA_GROUP=${!group:-default} MYCORA_INSTANCE=$instance \
    start "$name" env "${sagas[@]}" "${signing[@]}" "$bin/mycora-$program"
}

write_profile() {
  local sagas=
  if [ "$saga" = yes ]; then sagas="saga = \"$(url 8)\""; fi
  cat >"$dir/client.toml" <<END
ca = "pki/ca.pem"
cert = "pki/actor-1.pem"
key = "pki/actor-1.key"
context = 1
actor = 1

[addresses]
scheduler = "$(url 2)"
storage = "$(url 1)"
runner-registry = "$(url 4)"
router = "$(url 3)"
mycelium-gateway = "$(url 5)"
supervisor = "$(url 6)"
$sagas

[profiles.admin]
cert = "pki/admin.pem"
key = "pki/admin.key"
END
}

start_redis
if [ "$saga" = yes ]; then start_nats; fi
make_certificates
coordinators=$("$bin/mycora" pki root --dir "$dir/pki")${MYCORA_COORDINATOR:+,$MYCORA_COORDINATOR}
for service in "${services[@]}"; do
  start_service "${service%:*}" "${service#*:}"
done
for service in "${services[@]}"; do
  wait_until "${service%:*}" "is ready" is_ready $((base + 100 + ${service#*:}))
done
write_profile
"$bin/mycora" --config "$dir/client.toml" bootstrap --admin "$dir/pki/admin.pem" --runner "grpc://127.0.0.1:$((base + 6))"

echo "mycora is ready: separate processes, logs in $dir/log"
echo "  MYCORA_CONFIG=$dir/client.toml $bin/mycora flow list"
echo "  $root/deploy/local/down.sh $dir"
