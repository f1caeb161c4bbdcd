# shellcheck shell=bash
# Sourced by up.sh and down.sh: processes that are known by pid and start time, so that a number which the system gave to
# another process is never taken for ours.
# shellcheck disable=SC2154 # $dir: the directory of the suite, set by the script that sources this

# When a process started, in clock ticks since boot; nothing when it is gone or a zombie.
started_at() { # PID
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  # The name in brackets may hold blanks: what counts comes behind it.
  read -ra stat <<<"${stat##*) }"
  [ "${stat[0]}" = Z ] || echo "${stat[19]}"
}

is_running() { # NAME
  local pid since
  [ -f "$dir/run/$1.pid" ] || return 1
  read -r pid since <"$dir/run/$1.pid"
  [ -n "$since" ] && [ "$(started_at "$pid")" = "$since" ]
}

# Starts a program that outlives this script, with its log in a file of its own.
start() { # NAME COMMAND...
  local name=$1 pid
  shift
  echo "starting $name"
  nohup setsid "$@" >>"$dir/log/$name.log" 2>&1 </dev/null &
  pid=$!
  disown "$pid"
  echo "$pid $(started_at "$pid")" >"$dir/run/$name.pid"
}

# Whether the operators' port reports that the service is ready.
is_ready() ( # PORT
  exec 4<>"/dev/tcp/127.0.0.1/$1" || exit 1
  printf 'GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&4
  read -r -t 5 line <&4
  [[ $line == *" 200 "* ]]
) 2>/dev/null

wait_until() { # NAME WHAT CONDITION...
  local name=$1 what=$2 deadline=$((SECONDS + 60))
  shift 2
  until "$@"; do
    if ! is_running "$name" || [ $SECONDS -ge $deadline ]; then
      echo "$name was started and never $what; the end of $dir/log/$name.log:" >&2
      tail -n 20 "$dir/log/$name.log" >&2
      exit 1
    fi
    sleep 0.1
  done
}

# Asks a process to end; kills it when it has not after 30 seconds.
stop() { # NAME
  local name=$1 pid deadline=$((SECONDS + 30))
  if is_running "$name"; then
    read -r pid _ <"$dir/run/$name.pid"
    echo "ending $name"
    kill -TERM "$pid" 2>/dev/null || true
    while is_running "$name"; do
      if [ $SECONDS -ge $deadline ]; then
        echo "$name did not end in time and is killed"
        kill -KILL "$pid" 2>/dev/null || true
        deadline=$((SECONDS + 30))
      fi
      sleep 0.1
    done
  fi
  rm -f "$dir/run/$name.pid"
}
