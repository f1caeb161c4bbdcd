#!/usr/bin/env bash
# Makes an archive that runs on a machine without a checkout: the program, its licence and documents, what deploys it, and what
# shells complete; with a SHA-256 sum beside it. Prints both paths. The same commit gives an archive of the same name, with the same
# files, owners and times.
#
#   deploy/dist.sh [DIR]        DIR: where the archive is put; default target/dist
#
# MYCORA_DIST_PROFILE names the profile of cargo that it is built with; default release.
# MYCORA_COMMIT is the commit that `mycora --version` names; default that of the checkout.
# MYCORA_DIST_PROGRAM names a `mycora` that is built already, instead of building one.
# MYCORA_DIST_GZIP is how hard it is compressed, from 1 to 9; default 9.
# SOURCE_DATE_EPOCH is the time that the files bear; default that of the commit.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$(realpath -m "${1:-$root/target/dist}")
cd "$root"
profile=${MYCORA_DIST_PROFILE:-release}
program=${MYCORA_DIST_PROGRAM:-}

if [ -z "$program" ]; then
  # `mycora --version` names it.
  MYCORA_COMMIT=${MYCORA_COMMIT-$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)}
  export MYCORA_COMMIT
  "${CARGO:-cargo}" build --locked --profile "$profile" -p mycora
  # What cargo calls the folder of its first profile.
  folder=${profile/#dev/debug}
  program=${CARGO_TARGET_DIR:-target}/$folder/mycora
fi
version=$("$program" --version | cut -d' ' -f2)
host=$(rustc -vV | sed -n 's/^host: //p')
name=mycora-$version-$host
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
place=$stage/$name
mkdir -p "$place/completions" "$out"
# Symbols stay, for crash reports; debug information does not.
strip --strip-debug -o "$place/mycora" "$program"
chmod 755 "$place/mycora"
cp README.md CHANGELOG.md CONTRIBUTING.md LICENSE SECURITY.md "$place/"
cp -r specs deploy "$place/"
# What starts programs of a checkout is of no use here.
rm -r "$place/deploy/local" "$place/deploy/dist.sh"
rmdir "$place/deploy" 2>/dev/null || true
"$program" completions bash >"$place/completions/mycora.bash"
"$program" completions zsh >"$place/completions/_mycora"
"$program" completions fish >"$place/completions/mycora.fish"
chmod -R u=rwX,go=rX "$place"

archive=$name.tar.gz
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" | gzip -n "-${MYCORA_DIST_GZIP:-9}" >"$out/$archive"
(cd "$out" && sha256sum "$archive" >"$archive.sha256")
echo "$out/$archive"
echo "$out/$archive.sha256"
