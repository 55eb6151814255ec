#!/usr/bin/env bash
# mpi.sh FOLDER BIN: the part of scripts/test --extra launchers that runs Open MPI, MPICH and Intel MPI, each on one host and
# on two (network namespaces).
#
# FOLDER has the MPIs (openmpi, mpich, impi-rt) and the program of README.md (train); BIN has lockstep, e2e_meet and
# e2e_training. Every rank finds out who it is and meets the others; README's program trains; a rank fails; the launcher
# gets SIGTERM and SIGUSR1. After each job nothing may be left on any host.
# SPDX-License-Identifier: Apache-2.0
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
source "$root/tests/launchers/hosts.sh"
program="scripts/test --extra launchers"
folder=$1 bin=$2

# Everything lives in namespaces that end with this script.
if [[ ${3-} != --within ]]; then
  status=0
  setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc -- \
    "$self" "$folder" "$bin" --within || status=$?
  exit "$status"
fi

cd "$folder"
make_hosts
# A loaded machine may pause a rank for longer than silence is borne, which is not what is tested.
export LOCKSTEP_LIVENESS=off OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
output=$folder/output
words=$folder/words
fail() { die "$*; the job said: $(tail -n 40 "$output")"; }

# job MPI HOSTS RANKS [NAME=VALUE...] -- COMMAND...: sets `command`, which starts so many ranks on host1, or half of them
# there and half on host2, with these variables, and `launcher`, the process that gets a user's signal.
job() {
  local mpi=$1 hosts=$2 ranks=$3 list assignment
  shift 3
  list=host1:$((ranks / hosts))
  ((hosts == 1)) || list+=,host2:$((ranks / hosts))
  case $mpi in
    "Open MPI 4"*)
      launcher=mpirun
      command=("$system_mpirun" --mca plm_rsh_agent "$folder/ssh" --host "$list")
      ;;
    "Open MPI 5"*)
      launcher=prterun
      command=("$folder/openmpi/bin/mpirun" --prtemca plm_ssh_agent "$folder/ssh" --host "$list")
      ;;
    MPICH*)
      launcher=mpiexec
      command=("$folder/mpich/bin/mpiexec" -launcher ssh -launcher-exec "$folder/ssh" -hosts "$list")
      ;;
    "Intel MPI"*)
      launcher=mpiexec.hydra
      command=("$folder/impi-rt/bin/mpiexec.hydra" -launcher ssh -launcher-exec "$folder/ssh"
               -hosts "${list//:[0-9]/}" -ppn $((ranks / hosts)))
      ;;
  esac
  while [[ $1 != -- ]]; do
    assignment=$1
    case $mpi in
      Open*) command+=(-x "$assignment") ;;
      *) command+=(-genv "${assignment%%=*}" "${assignment#*=}") ;;
    esac
    shift
  done
  shift
  command+=(-n "$ranks" "$@")
}

# address_of MPI HOSTS: sets `address`, the variables without which ranks on two hosts don't meet.
address_of() {
  address=()
  [[ $1 == Open* ]] || (($2 == 1)) || address=(MASTER_ADDR=host1 MASTER_PORT=23456)
}

begin() {
  (trap - ERR && on 1 timeout --foreground -s KILL 600 "${command[@]}") >"$output" 2>&1 </dev/null &
  begun=$!
}
# end CODE: what begin started ends with an exit code that this pattern matches, which is left in `code`, and leaves nothing.
end() {
  code=0
  wait "$begun" || code=$?
  [[ $code =~ ^($1)$ ]] || fail "exit code $code, not $1, of: ${command[*]}"
  await "no process is left" none_is_left
}
run() { begin; end "$1"; }

# literal TEXT: the pattern that matches it.
literal() { printf '%s' "$1" | sed 's/[()]/\\&/g'; }
# says PATTERN: the last job wrote a line with it.
says() { grep -qE -- "$1" "$output" || fail "nowhere in the output: $1"; }

on_hosts() { if (($1 == 1)); then echo "one host"; else echo "two hosts"; fi; }

# met WHAT SOURCE HOSTS RANKS: the last job's ranks met, each with its place on its host.
met() {
  local what=$1 source=$2 hosts=$3 ranks=$4 rank node wanted=() places
  for ((rank = 0; rank < ranks; ++rank)); do says "^rank $rank/$ranks \(.*\) from $(literal "$source"), store "; done
  for ((node = 0; node < hosts; ++node)); do
    for ((rank = 0; rank < ranks / hosts; ++rank)); do wanted+=("local $rank/$((ranks / hosts)), node $node"); done
  done
  places=$(sed -nE 's/^rank [0-9/]+ \((local .*, node [0-9]+)\) from .*/\1/p' "$output" | sort)
  [[ $places == "$(printf '%s\n' "${wanted[@]}" | sort)" ]] || fail "the ranks' places are $places, not ${wanted[*]}"
  say "$what: $ranks ranks from $source"
}

# meetings MPI SOURCE: on one host, on two with what finds rank 0, and how two hosts are refused without that.
meetings() {
  local mpi=$1 source=$2
  job "$mpi" 1 2 -- "$bin/e2e_meet"
  run 0
  met "$mpi, one host" "$source" 1 2
  job "$mpi" 2 4 -- "$bin/e2e_meet"
  if [[ $mpi == Open* ]]; then
    run 0
    met "$mpi, two hosts, through PMIx" "$source" 2 4
  else
    run '[1-9][0-9]*'
    says "\(from $(literal "$source")\) doesn't know where to meet the others: MASTER_ADDR and MASTER_PORT are not set"
    say "$mpi, two hosts without an address: refused, with the remedy"
  fi
  job "$mpi" 2 4 LOCKSTEP_BOOTSTRAP=address MASTER_ADDR=host1 MASTER_PORT=23456 -- "$bin/e2e_meet"
  run 0
  met "$mpi, two hosts, with MASTER_ADDR and MASTER_PORT" "$source" 2 4
}

# oversubscription MPI VARIABLE: without it more ranks than slots are refused, and with it they start.
oversubscription() {
  local mpi=$1 variable=$2
  job "$mpi" 1 3 -- "$bin/e2e_meet"
  command=("${command[@]/#host1:3/host1:1}")
  run 1
  says 'not enough slots'
  command=(env "$variable" "${command[@]}")
  run 0
  met "$mpi, more ranks than slots, with $variable" "Open MPI" 1 3
}

# readme MPI: README's program trains, to the weights of as many ranks of lockstep run.
readme() {
  local mpi=$1 hosts
  for hosts in 1 2; do
    rm -f model.safetensors
    address_of "$mpi" "$hosts"
    job "$mpi" "$hosts" $((2 * hosts)) "${address[@]}" -- "$folder/train"
    run 0
    cmp model.safetensors "weights.$((2 * hosts))" || fail "the weights are not those of lockstep run"
    ((hosts == 1)) || says '2 hosts x 2 ranks: shm within, tcp between'
    say "$mpi, $(on_hosts $hosts): README's program ends with 0 and the weights of lockstep run"
  done
}

# training MPI HOSTS [NAME=VALUE...]: sets the command of a long job. Its ranks write into the file `words`, since Open MPI
# stops reading their output when it ends them.
training() {
  local mpi=$1 hosts=$2
  shift 2
  rm -rf snapshots trained.weights
  : >"$words"
  address_of "$mpi" "$hosts"
  # shellcheck disable=SC2016
  job "$mpi" "$hosts" $((2 * hosts)) "${address[@]}" "$@" -- sh -c 'words=$1; shift; exec "$@" >>"$words" 2>&1' sh "$words" \
    "$bin/e2e_training" "$folder/snapshots" "$folder/trained.weights" 1000000
}

# failing MPI HOSTS CODE: the last rank ends with 9.
failing() {
  local mpi=$1 hosts=$2
  training "$mpi" "$hosts" LOCKSTEP_TEST_FAIL_AT=15
  run "$3"
  [[ ! -e trained.weights ]] || fail "the job came to its end"
  say "$mpi, $(on_hosts "$hosts"): a rank ends with 9: exit code $code, nothing is left"
}

# stopped MPI HOSTS SIGNAL CODE SAVES: the launcher gets the signal. SAVES: all ranks have the time to save.
stopped() {
  local mpi=$1 hosts=$2 signal=$3 saves=$5 saved="not saved"
  training "$mpi" "$hosts"
  begin
  await "a job of training" grep -q '^at 20$' "$words"
  kill -s "$signal" "$(pgrep -x "$launcher")"
  end "$4"
  [[ ! -e trained.weights ]] || fail "the job came to its end"
  # By all ranks, or by one, to which the launcher left no other.
  if grep -qE "is saved in .* \(rank [0-9] got SIG$signal\)|rank [0-9] got SIG$signal, .* is saved in " "$words"; then
    saved=saved
  elif [[ $saves == true ]]; then
    fail "it did not save: $(tail -n 20 "$words")"
  fi
  say "$mpi, $(on_hosts "$hosts"): SIG$signal to $launcher: $saved, exit code $code, nothing is left"
}

for ranks in 2 4; do
  on 1 "$bin/lockstep" run -n $ranks "$folder/train" >"$output" 2>&1 || fail "lockstep run failed"
  mv model.safetensors "weights.$ranks"
done

system_mpirun=$(command -v mpirun || true)
mpis=()
if [[ -n $system_mpirun && $("$system_mpirun" --version) =~ "(Open MPI) "(4[0-9.]*) ]]; then
  mpis+=("Open MPI ${BASH_REMATCH[1]}")
fi
mpis+=("Open MPI $("$folder/openmpi/bin/mpirun" --version | sed -n '1s/.* //p')"
       "MPICH $("$folder/mpich/bin/mpiexec" --version | sed -n 's/^ *Version: *//p')"
       "Intel MPI $("$folder/impi-rt/bin/mpiexec.hydra" --version | sed -n '1s/.*Version \([0-9.]*\).*/\1/p')")
for mpi in "${mpis[@]}"; do
  say "$mpi"
  if [[ $mpi == Open* ]]; then meetings "$mpi" "Open MPI"; else meetings "$mpi" "Hydra (MPICH, Intel MPI)"; fi
  case $mpi in
    "Open MPI 4"*) oversubscription "$mpi" OMPI_MCA_rmaps_base_oversubscribe=1 ;;
    "Open MPI 5"*) oversubscription "$mpi" PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe ;;
  esac
  readme "$mpi"
  for hosts in 1 2; do
    case $mpi in
      # The code of the rank that mpirun heard of first: that of a survivor on the other host may be faster.
      Open*)
        failing "$mpi" $hosts '9|75'
        stopped "$mpi" $hosts TERM 1 false
        stopped "$mpi" $hosts USR1 75 true
        ;;
      # All ranks' codes, joined by bitwise or: 9 | 75 is 75.
      MPICH*)
        failing "$mpi" $hosts 75
        stopped "$mpi" $hosts TERM 75 true
        stopped "$mpi" $hosts USR1 75 true
        ;;
      # On two hosts 255 instead, if one host's ranks have ended before the other's.
      Intel*)
        failing "$mpi" $hosts "$( ((hosts == 1)) && echo 75 || echo '75|255')"
        stopped "$mpi" $hosts TERM "$( ((hosts == 1)) && echo 75 || echo '75|255')" true
        stopped "$mpi" $hosts USR1 "$( ((hosts == 1)) && echo 75 || echo '75|255')" true
        ;;
    esac
  done
done
