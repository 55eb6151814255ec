// SPDX-License-Identifier: Apache-2.0
#include "launcher/help_text.h"

namespace lockstep::launcher {

std::string general_help() {
  return R"(Examples:
  lockstep run --nproc-per-node 4 ./train
  lockstep ps
  lockstep top
  lockstep doctor
  lockstep snapshots run7
  lockstep report logs
  lockstep bisect-step one three
  lockstep store serve --host 10.0.0.7 --port 29400
Each command has its own --help.)";
}

std::string run_help() {
  return R"(Examples:
  lockstep run ./train                              one rank per GPU, or per core where there is none;
                                                    LOCKSTEP_DEVICE=cuda lets them use the GPUs
  lockstep run --nproc-per-node 4 ./train           four ranks
  lockstep run --devices 0,3 ./train                two ranks, on these GPUs
  lockstep run -n 2 -- ./train --epochs 3           arguments after PROGRAM are the program's
  lockstep run -n 4 --log-dir logs ./train          logs/generation0/rank0.out, ..., logs/job.log, logs/verdict.json
  lockstep run -n 4 --log-dir logs --ranks 0 ./train    the same, and what rank 0 writes is shown here too
  lockstep run -n 4 --trace run.json ./train        a timeline of all ranks, for Perfetto
  lockstep run -n 2 --torch-store python3 train.py  a torch program that wants the launcher's store
  lockstep run --nnodes 3 --node-rank R --rdzv-endpoint host0:29400 ./train
                                                    on each of three hosts, R from 0 to 2: docs/RUN.md
  lockstep run -H host0:4,host1:4 ./train           from one place, through ssh

Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and lockstep's own
LOCKSTEP_STORE, LOCKSTEP_STORE_SECRET, LOCKSTEP_RUN_ID, LOCKSTEP_RESTART_COUNT. The secret is drawn for each run; without
it nobody reads, changes or stops what is in the run's store. Rank 0 reads this command's standard input unless that is
a terminal; the other ranks read nothing. What a rank prints is shown line by line: from init_process_group on its stdout is
written by lines; a program without it that prints little flushes, or is started as stdbuf -oL PROGRAM.

With --log-dir DIR a rank's output goes to DIR/generation0/rankN.out and rankN.err as it is, and line by line with time and
rank to DIR/job.log (of several hosts DIR/job.nodeR.log), where the launcher's words are too. --tee shows it here as well,
--ranks that of some ranks. While a reader or a disk is slow the ranks wait; no line is dropped. When the job is over
DIR/verdict.json says how it ended. lockstep ps, logs and stop find the run from another terminal.

--bind core divides the cores that this command may use among its ranks, --bind numa the NUMA nodes; OMP_NUM_THREADS of a
rank that is bound is its number of cores, unless it is set.

A rank computes on the CPU unless its program or LOCKSTEP_DEVICE=cuda asks for a GPU, or auto for one if each rank has
one; then local rank i takes the i-th that it sees. --devices chooses them: indices count the GPUs that this command sees, so within CUDA_VISIBLE_DEVICES where
that is set, and the ranks count theirs from 0 again. With --oversubscribe-gpu more ranks than GPUs share them, each a
host of its own to NCCL (NCCL_HOSTID), over sockets on lo, by Ring and Simple; other NCCL variables that are set win,
and a line says so of each.

On several hosts the command runs on each of them. Node rank 0 serves the job's store at --rdzv-endpoint, with the secret that
LOCKSTEP_STORE_SECRET or LOCKSTEP_STORE_SECRET_FILE names on every host. Where a flag is not given, torchrun's variable for
it counts: PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_RDZV_ENDPOINT, PET_MASTER_ADDR ... One verdict is given on all
hosts' ranks, and every launcher ends with its exit code.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the ranks. After one of the first four
the ranks may take their time, to save; a second one kills them. Ranks that agree to stop (lockstep::stop_on_signals)
end after the same step, whichever of them got the signal; a line says which step, and who got it.

ENVIRONMENT, of the ranks; docs/ENVIRONMENT.md has values and defaults, lockstep doctor shows what is set
  LOCKSTEP_TIMEOUT, LOCKSTEP_LIVENESS   what --timeout and --liveness set
  LOCKSTEP_BACKEND                      what --backend sets
  LOCKSTEP_HANG_TIMEOUT                 what --hang-timeout sets
  LOCKSTEP_STOP_TIMEOUT                 what --stop-timeout sets
  LOCKSTEP_REQUEUE_EXIT_CODE            what --requeue-exit-code sets
  LOCKSTEP_DEVICE                       cpu, cuda or auto, for programs that ask for none
  LOCKSTEP_LOG_LEVEL                    trace, debug, info, warn, error or off
  LOCKSTEP_PROGRESS                     bar, lines or off
  LOCKSTEP_TCP_CONGESTION               between hosts: auto, system, or a name that the kernel knows
  LOCKSTEP_PLUGIN_PATH                  folders of plug-ins, with : between them
  LOCKSTEP_NCCL_LIB                     the NCCL to load
  LOCKSTEP_CUBLASLT_LIB                 the cuBLASLt to load, for tensors on GPUs
  LOCKSTEP_ALLOW_TF32                   1: matrix products on GPUs may round their factors to TF32
  LOCKSTEP_NCCL_MAX_CTAS                most multiprocessors that a collective may take, 1 to 64
  LOCKSTEP_CHECK_COLLECTIVES            1: NCCL's are compared over the ranks before they start; slow
  LOCKSTEP_FAILURE_WATCHDOG             seconds, or off: see exit code 76
  LOCKSTEP_OVERSUBSCRIBE_GPU            1: what --oversubscribe-gpu sets
  LOCKSTEP_STEP_DIGESTS                 a folder for what lockstep bisect-step reads
  LOCKSTEP_TRACE_DIR                    without this command: a folder for what --trace reads
  LOCKSTEP_BOOTSTRAP                    under other launchers: socket, pmix or address
  LOCKSTEP_STORE_SECRET_FILE            on several hosts, or without this command: a file with the store's secret
  LOCKSTEP_PORT_RANGE                   FIRST-LAST: the ports to listen at where none is named, for firewalls

EXIT CODES
  0        every rank ended with 0
  1-255    that of the rank that failed first, which the first and the last message name; among them
  75       the ranks have stopped for a signal, and there is more to do (--requeue-exit-code); or
           the rank that failed first had not ended when it was named: it was stopped, silent or hung; or
           a host was lost
  76       a rank's group had failed and its GPU did not let go in time (LOCKSTEP_FAILURE_WATCHDOG)
  77       --max-restarts: three starts in a row have finished no new step
  134      a rank aborted (128 + 6, SIGABRT): an uncaught exception of the program's own, or a failed assertion
  137      a rank was killed (128 + 9, SIGKILL): by somebody, or by the kernel because memory ran out
  128 + N  signal N killed the rank that failed first, or ended the job: 130 after Ctrl-C, 143 after SIGTERM
  1        also: lockstep itself can't go on, such as for want of processes or open files; its message says why
  2        also: this command line is wrong, or asks for what isn't here
  126      also: PROGRAM can't be executed
  127      also: PROGRAM was not found)";
}

std::string serve_help() {
  return R"(Examples:
  lockstep store serve --host 10.0.0.7 --port 29400                   draws a secret, says in which file it is
  lockstep store serve --host 10.0.0.7 --port 29400 --secret-file F   with the secret in F (mode 0600)
  lockstep store serve --port 29500 --store-auth off                  for torch clients, and whoever else comes

Runs in the foreground and prints one line: where it serves, and the variables that its clients need. The secret is that
of --secret-file, of LOCKSTEP_STORE_SECRET or of LOCKSTEP_STORE_SECRET_FILE: 64 hex digits. With none of them one is
drawn and written to a file that only this user can read, which goes when the server ends. Sizes take K, M or G.
LOCKSTEP_PORT_RANGE=FIRST-LAST are the ports of which --port 0 takes one.

Its clients are ranks with LOCKSTEP_STORE and the secret in their environment. LOCKSTEP_LOG_LEVEL says what is logged.
Where LOCKSTEP_RUN_ID is set, the server serves that one job and turns others away. Where it is not, jobs may share the
server, each with a LOCKSTEP_RUN_ID of its own: two jobs of one name would take each other's ranks.

EXIT CODES
  0        ended by SIGINT, SIGTERM, SIGHUP or SIGQUIT
  1        it can't serve, such as where the port is in use
  2        this command line is wrong, or the address is none of this host's)";
}

std::string doctor_help() {
  return R"(Examples:
  lockstep doctor                            in the shell from which a program shall be started
  lockstep run -n 2 lockstep doctor          as a rank of lockstep run; likewise mpirun, srun, torchrun --no_python
  lockstep doctor -H host0,host1             whether a job could start on these hosts; likewise --hostfile hosts

Tells what a rank would see here: who it would be and why, where it would meet the others, addresses, which variables
LOCKSTEP_* are set and whether something reads them, limits, GPUs, backends and plug-ins. Whatever is wrong comes with a
remedy. GPUs and plug-ins are asked of lockstep-probe, the program beside this one, which may hang or crash without harm.

With -H or --hostfile it looks at those hosts instead: each runs lockstep through the remote shell, tells its build, whether
it has --program, and at which address the others would look for its ranks, and tries to connect to every other one there.
It listens at a port of LOCKSTEP_PORT_RANGE, where that is set.

EXIT CODES
  0        a rank could start here, or a job on the hosts
  1        it could not: see the lines marked PROBLEM
  2        this command line is wrong)";
}

std::string snapshots_help() {
  return R"(Examples:
  lockstep snapshots run7                    what the job with Snapshots("run7", ...) can go on from, newest first
  lockstep snapshots --verify run7           reads every byte of it
  lockstep snapshots diff A B                what two snapshots differ in: tensors and by how much, values

DIR is the folder of a job, or a snapshot of it (run7/step-...), as are A and B. Only this host's disk is looked at. A
snapshot is whole; unfinished: a crash, or it is being written now; fenced: a later start of the job has not gone on from
it, and removes it; or damaged, and then restore() passes it over; or written by a later lockstep, and
then restore() wants that one, unless a newer one is whole. docs/SNAPSHOTS.md has the format.

EXIT CODES
  0        none is damaged, or a later lockstep's; diff: the two are equal
  1        one is; diff: they differ
  2        this command line is wrong, or the folder can't be read, or one of A and B is no whole snapshot)";
}

std::string bisect_step_help() {
  return R"(Examples:
  LOCKSTEP_STEP_DIGESTS=one lockstep run -n 1 ./train ...
  LOCKSTEP_STEP_DIGESTS=three lockstep run -n 3 ./train ...
  lockstep bisect-step one three

For programs that train in virtual shards (docs/REPRODUCIBLE.md), whose runs have the same bits at any number of ranks. Each
rank of a run with LOCKSTEP_STEP_DIGESTS=DIR writes to DIR, for each step, a digest of every gradient of each of its
virtual shards, and of what they add up to. This command names the first step in which two runs differ, in which
shards, and the first gradient in order of registration. A run that begins at a snapshot counts its steps on from it.
Folders of hosts or restarts may be given together, also one alone.

EXIT CODES
  0        all steps that were recorded twice are equal
  1        they are not
  2        this command line is wrong, or there is nothing to compare)";
}

std::string report_help() {
  return R"(Examples:
  lockstep run -n 4 --log-dir logs ./train
  lockstep report logs                       writes logs/report.html, logs/report.jsonl and logs/tensorboard
  lockstep report -o both.html logs other    writes one page with both runs side by side

Reads the traces of the ranks, which each rank of a run with --log-dir, --trace or LOCKSTEP_TRACE_DIR keeps in a file while
it trains, and which are there however it ended. The page says how the run ended (with --log-dir), shows its loss, rates and
what it has logged by log_scalar(), and says where a step's time goes on each rank, who makes the others wait and what
communication was hidden. It needs no network. The same numbers are JSON, an object a line. docs/OBSERVE.md

EXIT CODES
  0        all files are written
  2        this command line is wrong, or the folder has no trace)";
}

std::string runs_help() {
  return R"(Examples:
  lockstep ps                                the runs of lockstep run on this host, of this user
  lockstep ps --json
  lockstep top run-4f                        what its ranks do, once a second: step, rates, where the time goes, memory
  lockstep top --json                        the same of the only run there is, once, for programs
  lockstep inspect run-4f                    where each rank is: its last collective, its threads, their stacks where
                                             eu-stack or gdb is installed and may trace them
  lockstep trace --steps 20 run-4f           the timeline of the last 20 steps, for Perfetto
  lockstep trace logs -o run.json            that of all ranks of all hosts whose files are in a run's --log-dir
  lockstep logs run-4f                       the last 50 lines of the run whose id begins so, with time and rank
  lockstep logs -n 0 --follow run-4f         what comes from now on
  lockstep stop run-4f                       asks its launcher to stop, as SIGTERM does: the ranks may save.
                                             A second one kills the ranks

They talk to the launcher that runs on this host through an abstract Unix socket: nothing is on disk, no other user's run
is shown or reached, root's neither, and none in another network namespace (another container). Of a job on several hosts
logs has the lines of this host; stop stops all of it; top and inspect are asked on the host of node rank 0, to which all
ranks report, and trace has this host's ranks, or all that share its --log-dir. A launcher that has been stopped (Ctrl-Z)
is named and not waited for. What top shows is as old as a heartbeat, half a second.

EXIT CODES
  0        done
  1        there is no such run, or it may be several, its launcher does not answer, or a file can't be written
  2        this command line is wrong)";
}

}  // namespace lockstep::launcher
