# shellcheck shell=bash disable=SC2154
# Sourced by mpi.sh, within namespaces of its own: two hosts, each with a network, a name and a boot id, and the ssh that
# MPIs are given to start processes there. Expects $folder, which both hosts see.
# SPDX-License-Identifier: Apache-2.0

anchors=()  # a process that lasts for each host

# make_hosts: host1 and host2, at 10.88.0.11 and 12.
make_hosts() {
  local i
  mount -t tmpfs tmpfs /run
  mkdir /run/netns
  printf '127.0.0.1 localhost\n10.88.0.11 host1\n10.88.0.12 host2\n' >"$folder/etc_hosts"
  mount --bind "$folder/etc_hosts" /etc/hosts
  ip link set lo up
  ip link add cables type bridge
  ip link set cables up
  for i in 1 2; do
    ip netns add "host$i"
    ip link add "to$i" type veth peer name eth0 netns "host$i"
    ip link set "to$i" master cables up
    ip -n "host$i" link set lo up
    ip -n "host$i" addr add "10.88.0.1$i/24" dev eth0
    ip -n "host$i" link set eth0 up
    cat /proc/sys/kernel/random/uuid >"$folder/boot_id.host$i"
    mkfifo "$folder/up.host$i"
    # shellcheck disable=SC2016
    ip netns exec "host$i" unshare --uts --mount sh -c 'hostname "$1" &&
      mount --bind "$2/boot_id.$1" /proc/sys/kernel/random/boot_id && echo $$ >"$2/up.$1" && exec sleep infinity' \
      sh "host$i" "$folder" &
    read -r anchors["$i"] <"$folder/up.host$i"
  done
  # Like sshd it starts a command in a session and an environment of its own.
  cat >"$folder/ssh" <<SSH
#!/bin/sh
while :; do
  case \$1 in
    -[lpioFJ]) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
case \$1 in
  host1) anchor=${anchors[1]} ;;
  host2) anchor=${anchors[2]} ;;
  *) echo "ssh: no host \$1" >&2; exit 255 ;;
esac
shift
exec nsenter --target \$anchor --net --uts --mount -- \
  env -i HOME=/root USER=root SHELL=/bin/sh PATH=/usr/sbin:/usr/bin:/sbin:/bin setsid --fork --wait sh -c "cd; \$*"
SSH
  chmod +x "$folder/ssh"
}

# on HOST COMMAND...: runs it there, in this folder.
on() {
  local host=$1
  shift
  # shellcheck disable=SC2016
  nsenter --target "${anchors[$host]}" --net --uts --mount -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

# await WHAT COMMAND...: until it is true, for five minutes.
await() {
  local what=$1 until=$((SECONDS + 300))
  shift
  until "$@"; do
    ((SECONDS < until)) || fail "not within five minutes: $what"
    sleep 0.05
  done
}

# left: the ranks and daemons of MPIs that run on any host.
left() { ps -eo pid=,stat=,comm= | awk '$2 !~ /^Z/ && $3 ~ /^(e2e_|train$|hydra_|mpiexec|mpirun|prte|orted|srun)/'; }
none_is_left() { [[ -z $(left) ]]; }
