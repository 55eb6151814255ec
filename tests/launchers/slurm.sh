# shellcheck shell=bash disable=SC2154
# Sourced by scripts/test --extra launchers: a rank under the real srun (plain, PMI2, PMIx, in a batch script, with torchrun
# or mpirun as its task) and the mpiexec of Debian's MPICH, each finding out who it is and meeting the others.
#
# Slurm and MPICH are Debian's packages, unpacked into $folder. A cluster of one node runs out of it for the time of the
# script.
# SPDX-License-Identifier: Apache-2.0

packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm38 munge libmunge2 mpich libmpich12 libhwloc15)
say "unpacking ${packages[*]}"
mkdir "$folder/packages"
(cd "$folder/packages" && logged "$folder/apt.log" "apt-get download" "" apt-get download "${packages[@]}")
for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$folder"; done
libraries=$folder/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)
export LD_LIBRARY_PATH=$libraries:$libraries/slurm-wlm
export SLURM_CONF=$folder/slurm.conf
host=$(hostname -s)

# A cluster of one.
(umask 077 && head -c 1024 /dev/urandom >"$folder/munge.key")
cat >"$SLURM_CONF" <<CONF
ClusterName=compat
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
PluginDir=$libraries/slurm-wlm
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=compat Nodes=$host Default=YES State=UP OverSubscribe=YES
CONF
mkdir "$folder/state" "$folder/spool"
"$folder/usr/sbin/munged" --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munged.pid" --seed-file="$folder/munge.seed" >"$folder/munged.log" 2>&1 &
daemons+=($!)
"$folder/usr/sbin/slurmctld-wlm" -D >"$folder/slurmctld.log" 2>&1 &
daemons+=($!)
"$folder/usr/sbin/slurmd-wlm" -D -N "$host" -d "$folder/usr/sbin/slurmstepd-wlm" >"$folder/slurmd.log" 2>&1 &
daemons+=($!)
srun=("$folder/usr/bin/srun" --overcommit)
deadline=$((SECONDS + 60))
until "$folder/usr/bin/sinfo" -h -o %T 2>/dev/null | grep -q idle; do
  ((SECONDS < deadline)) || { tail -n 20 "$folder"/*.log >&2; die "Slurm does not come up"; }
done

# expect WHAT RANKS SOURCE COMMAND...: RANKS lines "rank R/RANKS ... from SOURCE".
expect() {
  local what=$1 ranks=$2 source=$3 rank
  shift 3
  timeout 60 "$@" >"$folder/output" 2>&1 || { cat "$folder/output" >&2; die "$what failed"; }
  for ((rank = 0; rank < ranks; ++rank)); do
    grep -q "rank $rank/$ranks (.*) from $source, .* ranks\? 0.*$((ranks - 1))" "$folder/output" ||
      { cat "$folder/output" >&2; die "$what: rank $rank of $ranks is not from $source"; }
  done
  say "$what: $ranks ranks from $source"
}

expect "srun" 3 srun "${srun[@]}" -n 3 "$meet"
expect "srun --mpi=pmi2" 3 srun "${srun[@]}" --mpi=pmi2 -n 3 "$meet"
LOCKSTEP_BOOTSTRAP=pmix expect "srun --mpi=pmix, through PMIx" 3 srun "${srun[@]}" --mpi=pmix -n 3 "$meet"
LOCKSTEP_BOOTSTRAP=address expect "srun, at the first host of the step" 3 srun "${srun[@]}" -n 3 "$meet"
# shellcheck disable=SC2016
expect "PMIx without a size" 3 PMIx "${srun[@]}" --mpi=pmix -n 3 sh -c \
  'for name in $(env | grep -o "^SLURM[A-Z_]*"); do unset $name; done; exec "$0"' "$meet"
expect "lockstep run as a task of srun" 2 "lockstep run" "${srun[@]}" -n 1 "$launcher" run -n 2 "$meet"
expect "mpiexec of MPICH" 3 "Hydra (MPICH, Intel MPI)" "$folder/usr/bin/mpiexec.hydra" -n 3 "$meet"
if command -v mpirun >/dev/null; then
  expect "mpirun as a task of srun" 2 "Open MPI" "${srun[@]}" -n 1 mpirun --oversubscribe -n 2 "$meet"
fi
if /usr/bin/python3 -c 'import torch' 2>/dev/null; then
  expect "torchrun as a task of srun" 2 torchrun "${srun[@]}" -n 1 /usr/bin/python3 -m torch.distributed.run \
    -r 1 -t 1 --nproc_per_node 2 --no_python "$meet"
fi
cat >"$folder/batch" <<BATCH
#!/bin/sh
#SBATCH -n 2 --overcommit -o $folder/batch.out
$meet
BATCH
"$folder/usr/bin/sbatch" -W "$folder/batch" >/dev/null
grep -q '^rank 0/1 .* from alone' "$folder/batch.out" || { cat "$folder/batch.out" >&2; die "a batch script is not alone"; }
say "a batch script without srun: a world of one"

# The scripts of docs/deploy/slurm, on the one node that is here; the means are those of several.
for pair in train.sbatch:address train-pmix.sbatch:pmix; do
  script=docs/deploy/slurm/${pair%:*}
  # shellcheck disable=SC2016
  expect "$script" "$(nproc)" srun env PATH="$folder/usr/bin:$PATH" LOCKSTEP_BOOTSTRAP="${pair#*:}" sh -c \
    'sbatch -W --nodes=1 --ntasks-per-node="$1" --cpus-per-task=1 -o "$2" "$3" "$4"; code=$?; cat "$2"; exit $code' \
    sh "$(nproc)" "$folder/batch.out" "$script" "$meet"
  grep -q ', secret' "$folder/output" || { cat "$folder/output" >&2; die "$script: the store has no secret"; }
done

# Stopped by Slurm's signal to the script, the job saves, is queued again and resumes.
say "docs/deploy/slurm/restart.sbatch: a signal, and the job is queued again"
output=$folder/restart.out
job=$(PATH="$folder/usr/bin:$PATH" LOCKSTEP=$launcher sbatch --parsable --nodes=1 --cpus-per-task="$(nproc)" --output="$output" \
  docs/deploy/slurm/restart.sbatch "$bin/e2e_training" "$folder/run" "$folder/run.weights" 20000)
# until_said TEXT: waits until the job has written it.
until_said() {
  local deadline=$((SECONDS + 120))
  until grep -q "$1" "$output" 2>/dev/null; do
    ((SECONDS < deadline)) || { cat "$output" >&2; "$folder/usr/bin/scontrol" show job "$job" >&2; die "the job never said '$1'"; }
    # A job that is queued again may be told to wait for some minutes.
    "$folder/usr/bin/scontrol" update "jobid=$job" StartTime=now 2>/dev/null || true
    sleep 0.2
  done
}
until_said ' at 500$'
"$folder/usr/bin/scancel" --batch --signal=USR1 "$job"
until_said 'exit code 75'
until_said 'resumes from step'
"$folder/usr/bin/scancel" --full --signal=TERM "$job" || true
say "it was stopped after $(sed -n 's/.*stopped after \([0-9]* steps\).*/\1/p' "$output" | head -n 1), and resumed"
