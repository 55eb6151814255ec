# shellcheck shell=bash
# Sourced: a root file system that holds Debian's minbase and nothing else, and commands in it.
#
# make_root needs root and debootstrap. What this machine says of how packages are reached (apt's sources of Debian, its
# options, proxies, certificates, name servers) goes along; nothing else of this machine does.
# SPDX-License-Identifier: Apache-2.0
bare_suite=trixie  # unless --debian names another

# why_no_root: why none can be made here, as a sentence; nothing if one can.
why_no_root() {
  local probe
  if ((EUID != 0)); then
    echo "it takes root: debootstrap and mounts. Remedy: sudo $program"
  elif ! command -v debootstrap >/dev/null; then
    echo "debootstrap is not installed. Remedy: apt-get install debootstrap"
  elif ! probe=$(unshare --mount --pid --fork --kill-child true 2>&1); then
    echo "no namespaces can be made here ($probe). Remedy: a container needs --privileged, or --cap-add SYS_ADMIN,NET_ADMIN,SYS_PTRACE"
  fi
}

# make_root FOLDER: anew, with the lists of packages.
make_root() {
  local folder=$1 log=$1.log sources mirror name
  rm -rf --one-file-system "$folder"
  mkdir -p "$folder"
  # The repositories of Debian that this machine's apt has read, of the wanted release.
  sources=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk -v here="$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" -v suite="$bare_suite" \
      '$1 == "Debian" && here && $4 == "main" && sub("^" here, suite, $3) {print "deb", $2, $3, $4}' | sort -u)
  mirror=$(awk -v suite="$bare_suite" '$3 == suite {print $2; exit}' <<<"$sources")
  if [[ -z $mirror ]]; then
    mirror=http://deb.debian.org/debian/
    sources="deb $mirror $bare_suite main"
  fi
  # With mounts of its own: what it mounts within goes with it, also when it is killed.
  unshare --mount --pid --fork --kill-child --propagation private \
    debootstrap --variant=minbase "$bare_suite" "$folder" "$mirror" >"$log" 2>&1 || { tail -n 20 "$log" >&2; return 1; }
  printf '%s\n' "$sources" >"$folder/etc/apt/sources.list"
  # The options of its downloads, but for those that name a program of this machine.
  apt-config dump | grep -E '^Acquire::' | grep -v ' "";$' >"$folder/etc/apt/apt.conf.d/99machine" || true
  cp /etc/resolv.conf "$folder/etc/resolv.conf"
  printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' >"$folder/etc/hosts"  # as Debian's installer
  if grep -q https: <<<"$sources"; then
    mkdir -p "$folder/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
    for name in $(sed -n 's/^Acquire::https::.*CAInfo "\(.*\)";$/\1/Ip' "$folder/etc/apt/apt.conf.d/99machine"); do
      mkdir -p "$folder/$(dirname "$name")"
      cp "$name" "$folder/$name"
    done
  fi
  in_root "$folder" 'apt-get update -q' >>"$log" 2>&1 || { tail -n 20 "$log" >&2; return 1; }
}

# in_root FOLDER WORDS: a shell of root's with processes and mounts of its own, all of which end with it. The folder is its
# root, by pivot_root: a process below a chroot may make no namespaces of users and can leave it by those of mounts. It ends with
# the shell that called this, also when that is killed.
in_root() {
  local variables=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive) name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY CI WERROR; do
    [[ -z ${!name-} ]] || variables+=("$name=${!name}")
  done
  # shellcheck disable=SC2016  # expanded within
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --propagation private bash -euo pipefail -c '
    folder=$1 words=$2
    shift 2
    mount --bind "$folder" "$folder"
    cd "$folder"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount -t tmpfs -o mode=755 tmpfs run
    mkdir -p .outside
    pivot_root . .outside
    cd /
    umount -l .outside
    rmdir .outside
    env -i "$@" bash -euo pipefail -c "$words" || exit  # a child: process 1 of these is here to reap
  ' in_root "$1" "$2" "${variables[@]}" 9>&-
}
