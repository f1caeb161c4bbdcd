#!/usr/bin/env bash
# Makes sure that the programs named on the command line are there:
#   need.sh cargo cc c++ redis-server nats-server python3 venv npm
# Installs what is missing with apt where that needs no password, after a notice; otherwise prints exactly what to
# install, and fails.
set -euo pipefail

# The Debian package of a program, or nothing when no package will do.
package() {
  case "$1" in
    cc) echo gcc libc6-dev ;;
    c++) echo g++ ;;
    redis-server) echo redis-server ;;
    nats-server) echo nats-server ;;
    python3) echo python3 ;;
    venv) echo python3-venv ;;
    faketime) echo faketime ;;
    haproxy) echo haproxy ;;
    npm) echo npm ;;
  esac
}

# How to get it where apt is not at hand.
advice() {
  case "$1" in
    cargo) echo "Rust: see https://rustup.rs, or: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" ;;
    cc) echo "a C compiler: apt-get install gcc libc6-dev | dnf install gcc | xcode-select --install" ;;
    c++) echo "a C++ compiler: apt-get install g++ | dnf install gcc-c++ | xcode-select --install" ;;
    redis-server) echo "Redis 7.0 or newer: apt-get install redis-server | dnf install redis | brew install redis" ;;
    nats-server) echo "NATS 2.9.10 or newer: apt-get install nats-server | brew install nats-server" ;;
    python3) echo "Python 3: apt-get install python3 | dnf install python3 | brew install python" ;;
    venv) echo "Python's venv: apt-get install python3-venv" ;;
    faketime) echo "libfaketime: apt-get install faketime | dnf install libfaketime" ;;
    haproxy) echo "HAProxy 2.6 or newer: apt-get install haproxy | dnf install haproxy" ;;
    npm) echo "npm: apt-get install npm | dnf install npm | brew install node" ;;
    *) echo "$1" ;;
  esac
}

have() {
  case "$1" in
    venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    # Debian has it outside of the usual PATH.
    nats-server | haproxy) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing=()
for program in "$@"; do
  have "$program" || missing+=("$program")
done
[ ${#missing[@]} -gt 0 ] || exit 0

packages=()
for program in "${missing[@]}"; do
  read -ra found <<<"$(package "$program")"
  packages+=("${found[@]}")
done

as_root=none
if [ "$(id -u)" = 0 ]; then
  as_root=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root="sudo -n"
fi

if [ ${#packages[@]} -gt 0 ] && [ "$as_root" != none ] && command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]}"
  echo "installing with apt: ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # A failure shows below, as something that is still missing.
  $as_root apt-get update -qq || true
  $as_root apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null || true
fi

still=()
for program in "${missing[@]}"; do
  have "$program" || still+=("$program")
done
[ ${#still[@]} -gt 0 ] || exit 0
{
  echo "Please install what is missing, then try again:"
  for program in "${still[@]}"; do
    echo "  $(advice "$program")"
  done
} >&2
exit 2
