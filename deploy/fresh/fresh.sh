#!/usr/bin/env bash
# Proves the README on a machine that has nothing: makes a minimal Debian 12 root, clones this repository into it and runs
# exactly the README's two commands there. Needs root and mmdebstrap; uses this machine's package settings (apt sources,
# pip configuration and certificates), nothing else of it.
#   deploy/fresh/fresh.sh [--root DIR] [--keep]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
target=
keep=0
while [ $# -gt 0 ]; do
  case $1 in
    --root) target=$2; shift ;;
    --keep) keep=1 ;;
    *) echo 'usage: ./run fresh [--root DIR] [--keep]' >&2; exit 2 ;;
  esac
  shift
done
[ "$(id -u)" = 0 ] || { echo 'fresh: making a Debian root needs root' >&2; exit 2; }
command -v mmdebstrap >/dev/null || { apt-get update -qq; apt-get install -y -qq --no-install-recommends mmdebstrap; }
target=${target:-$(mktemp -d)/root}
mkdir -p "${target%/*}"
log=${target%/*}/fresh.log
: >"$log"

mounts=()
cleanup() {
  local mount
  for mount in "${mounts[@]}"; do umount -l "$mount" || true; done
  [ $keep = 1 ] || rm -rf --one-file-system "$target"
}
trap cleanup EXIT
bind() { mkdir -p "$target$1"; mount --bind "$1" "$target$1"; mounts=("$target$1" "${mounts[@]}"); }

stage() {  # name, command…: prints and logs the seconds of one stage
  local name=$1 start; shift
  start=$(date +%s)
  echo "fresh: $name" | tee -a "$log"
  "$@" >>"$log" 2>&1 || { tail -n 40 "$log"; echo "fresh: $name FAILED after $(($(date +%s) - start)) s (log: $log)"; exit 1; }
  echo "fresh: $name took $(($(date +%s) - start)) s" | tee -a "$log"
}

make_root() {
  mmdebstrap --variant=minbase --include=ca-certificates,git,python3,python3-venv bookworm "$target" \
    /etc/apt/sources.list.d/debian.sources
}
# Package settings only: what a machine behind the same mirror would be set up with.
copy_settings() {
  local path
  for path in /etc/pip.conf /etc/xdg/pip /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/hosts; do
    [ -e "$path" ] || continue
    # The root's own copy holds links that would lead out of the root from here.
    rm -rf --one-file-system "${target:?}$path"
    mkdir -p "$target${path%/*}"
    cp -aLT "$path" "$target$path"
  done
  [ -d "$HOME/.config/pip" ] && mkdir -p "$target/root/.config" && cp -aL "$HOME/.config/pip" "$target/root/.config/"
  [ -f "$HOME/.pip/pip.conf" ] && mkdir -p "$target/root/.pip" && cp -aL "$HOME/.pip/pip.conf" "$target/root/.pip/"
  for path in $(pip config list 2>/dev/null | grep -oE "(file://)?/[^ '\"]+" | sed 's,^file://,,' | sort -u) ; do
    path=${path%/simple}  # an index on disk has its files beside the pages
    [ -d "$path" ] && bind "$path"
  done
  return 0
}
inside() {
  env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
    $(env | grep -E '^(PIP_|SSL_CERT|REQUESTS_CA|NODE_EXTRA_CA|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY)' || true) \
    chroot "$target" bash -c "cd /root/neuraldbg && $1"
}

stage 'minimal Debian 12 root' make_root
stage 'package settings' copy_settings
for path in /proc /sys /dev /dev/pts /dev/shm; do [ -e "$path" ] && bind "$path"; done
stage 'clone' git clone -q . "$target/root/neuraldbg"
stage './run demo' inside './run demo'
stage './run test' inside './run test'
grep -E '^(== suite|Verdict|[0-9]+ passed)' "$log" || true
PYTHONPATH=$PWD python3 -m tests.evaluate.fresh_section "$log"
echo "fresh: both commands green (log: $log)"
