// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/help_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace lockstep::launcher {
namespace {

constexpr HelpText kTexts[] = {
    {"lockstep", "lockstep: data-parallel training for people who train in C++", "COMMAND ...", R"(Examples:
  lockstep run -n 4 ./train
  lockstep top
  lockstep doctor
  lockstep report logs
Each command has its own --help.)"},
    {"run", "Start the ranks of a job, and watch them", "run [FLAGS] [--] PROGRAM [ARGS...]", R"(Examples:
  lockstep run ./train                      one rank per GPU, or per core
  lockstep run -n 2 -- ./train --epochs 3   arguments after PROGRAM are its own
  lockstep run -n 4 --log-dir logs --ranks 0 ./train
                                            files, and rank 0's output here
  lockstep run -n 2 --torch-store python3 train.py
  lockstep run --nnodes 3 --rdzv-endpoint host0:29400 ./train
                                            on each of three hosts
  lockstep run -H host0:4,host1:4 ./train   from one host, through ssh

Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
MASTER_ADDR, MASTER_PORT and lockstep's own LOCKSTEP_STORE, LOCKSTEP_RUN_ID,
LOCKSTEP_RESTART_COUNT and LOCKSTEP_STORE_SECRET, which is generated for each
run. Rank 0 reads this command's standard input unless that is a terminal. After
init_process_group stdout is line-buffered; a program without it should flush,
or be started as stdbuf -oL PROGRAM. While a reader or a disk is slow the ranks
wait; no line is dropped.

A rank computes on the CPU unless its program or LOCKSTEP_DEVICE=cuda asks for a
GPU, or auto for one if each rank has one: local rank i takes the i-th that it
sees. --devices counts within CUDA_VISIBLE_DEVICES, where that is set.
--oversubscribe-gpu sets NCCL_ variables, and logs each that is set otherwise.

In multi-host jobs LOCKSTEP_STORE_SECRET or LOCKSTEP_STORE_SECRET_FILE has one
secret for all hosts. For a flag that is not given torchrun's variable applies:
PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE, PET_RDZV_ENDPOINT ...

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on. After the
first four the ranks may take their time to save; a second one kills them.

Variables of the ranks (docs/ENVIRONMENT.md; lockstep doctor shows what is set):
  LOCKSTEP_TIMEOUT, LOCKSTEP_LIVENESS, LOCKSTEP_BACKEND, LOCKSTEP_HANG_TIMEOUT,
  LOCKSTEP_STOP_TIMEOUT, LOCKSTEP_REQUEUE_EXIT_CODE, LOCKSTEP_OVERSUBSCRIBE_GPU
                              as their flags
  LOCKSTEP_DEVICE             cpu, cuda or auto, if the program asks for none
  LOCKSTEP_LOG_LEVEL          trace, debug, info, warn, error or off
  LOCKSTEP_PROGRESS           bar, lines or off
  LOCKSTEP_PLUGIN_PATH        folders of plug-ins, separated by :
  LOCKSTEP_NCCL_LIB           the NCCL to load
  LOCKSTEP_CUBLASLT_LIB       the cuBLASLt to load, for tensors on GPUs
  LOCKSTEP_ALLOW_TF32         1: matrix products on GPUs may round to TF32
  LOCKSTEP_NCCL_MAX_CTAS      multiprocessors that a collective may take
  LOCKSTEP_CHECK_COLLECTIVES  1: compare NCCL's over the ranks first; slow
  LOCKSTEP_FAILURE_WATCHDOG   seconds, or off: see exit code 76
  LOCKSTEP_STEP_DIGESTS       a folder for lockstep bisect-step
  LOCKSTEP_TRACE_DIR          without this command: a folder for traces
  LOCKSTEP_BOOTSTRAP          under other launchers: socket, pmix or address
  LOCKSTEP_PORT_RANGE         FIRST-LAST: ports to listen at, for firewalls

Exit codes:
  0        every rank ended with 0
  1-255    that of the rank that failed first; among them
  75       the ranks stopped for a signal (--requeue-exit-code), the first to
           fail was stopped, silent or hung, or a host was lost
  76       a failed group's GPU stayed busy (LOCKSTEP_FAILURE_WATCHDOG)
  77       --max-restarts: three starts in a row have finished no new step
  134      a rank aborted: an uncaught exception, or a failed assertion
  137      a rank was killed (SIGKILL): by somebody, or because memory ran out
  128 + N  signal N killed that rank, or ended the job: 130 after Ctrl-C
  1        also: lockstep itself failed; its message says why
  2        also: this command line is wrong, or asks for what is not here
  126      also: PROGRAM can't be executed
  127      also: PROGRAM was not found)"},
    {"serve", "Run the server of a store by itself, in the foreground", "store serve [FLAGS]", R"(Examples:
  lockstep store serve --host 10.0.0.7 --port 29400
      generates a secret and prints the file that has it
  lockstep store serve --host 10.0.0.7 --port 29400 --secret-file F
      with the secret in F (mode 0600)
  lockstep store serve --port 29500 --store-auth off
      for torch clients, and for everyone else who connects

Runs in the foreground and prints one line: its address, and the variables that
clients need. The secret is that of --secret-file, LOCKSTEP_STORE_SECRET or
LOCKSTEP_STORE_SECRET_FILE: 64 hex digits. Without them one is generated and
written to a file that only this user can read, until the server ends. Sizes
take K, M or G. --port 0 takes a port of LOCKSTEP_PORT_RANGE=FIRST-LAST.

Its clients are ranks with LOCKSTEP_STORE and the secret in their environment.
LOCKSTEP_LOG_LEVEL sets what is logged. If LOCKSTEP_RUN_ID is set, the server
serves that one job and refuses others. Otherwise jobs may share the server,
each with its own LOCKSTEP_RUN_ID: two jobs with one id would mix their ranks.

Exit codes:
  0        ended by SIGINT, SIGTERM, SIGHUP or SIGQUIT
  1        it can't serve, for example because the port is in use
  2        this command line is wrong, or the address is not this host's)"},
    {"doctor", "Show what a rank would find here, and what is wrong", "doctor [FLAGS]", R"(Examples:
  lockstep doctor                     in the shell that will start the program
  lockstep run -n 2 lockstep doctor   as a rank of lockstep run; likewise with
                                      mpirun, srun, torchrun --no_python
  lockstep doctor -H host0,host1      whether a job could start on these hosts;
                                      likewise --hostfile hosts
  lockstep doctor --gpus              all GPUs together: a report to paste

Shows what a rank would find here: its rank and where that comes from, where it
would meet the others, addresses, LOCKSTEP_ variables and whether something
reads them, limits, GPUs, backends and plug-ins. Each problem comes with a
remedy. lockstep-probe, installed next to lockstep, loads drivers and plug-ins,
and may hang or crash without harm.

With -H or --hostfile it examines those hosts instead. Each runs lockstep
through the remote shell, reports its build and the address of its ranks, and
tries to connect to every other host at that address. It listens at a port of
LOCKSTEP_PORT_RANGE, if that is set.

With --gpus a job of lockstep-probe, one rank a GPU, runs over NCCL as NCCL
chooses its transports: sums and bandwidth of all GPUs, 20 steps of a Reducer
and of a single rank, and a rank that is killed. With -H it has the GPUs
of all hosts. It takes a minute or two, of idle GPUs.

Exit codes:
  0        a rank could start here, or a job on the hosts, or the GPUs do it all
  1        it could not: see the lines marked PROBLEM
  2        this command line is wrong)"},
    {"snapshots", "List, compare or export a job's snapshots",
     "snapshots [FLAGS] DIR\n       lockstep snapshots [FLAGS] diff A B\n       lockstep snapshots export SNAPSHOT OUT",
     R"(Examples:
  lockstep snapshots run7            what a job with Snapshots("run7", ...) can
                                     resume from, newest first
  lockstep snapshots --verify run7   reads every byte of it
  lockstep snapshots diff A B        how two snapshots differ: tensors and by
                                     how much, values
  lockstep snapshots export A out    out/model.safetensors, ...: each item's
                                     tensors, whole, for other programs

DIR is a job's folder or one snapshot of it (run7/step-...), as are A and B.
Only this host's disk is examined. A snapshot is
  whole
  partial      other hosts' disks have the files of their ranks
  unfinished   after a crash, or while it is written
  fenced       a later start of the job did not resume from it, and removes it
  damaged      restore() skips it
  of a later lockstep: restore() refuses it, unless a newer one is whole
docs/SNAPSHOT_FORMAT.md has the format.

Exit codes:
  0        none is damaged or of a later lockstep; diff: the two are equal
  1        one is; diff: they differ
  2        this command line is wrong, the folder can't be read, or A or B is
           not a whole snapshot)"},
    {"bisect-step", "Name the first step and gradient that differ", "bisect-step DIR...", R"(Examples:
  LOCKSTEP_STEP_DIGESTS=one lockstep run -n 1 ./train ...
  LOCKSTEP_STEP_DIGESTS=three lockstep run -n 3 ./train ...
  lockstep bisect-step one three

For programs that train in fixed micro-batches (docs/REPRODUCIBLE.md), whose
runs have the same bits at any number of ranks. With LOCKSTEP_STEP_DIGESTS=DIR
each rank writes to DIR, for each step, a digest of every gradient of its
micro-batches and of their sum. This command names the first step in which two
runs differ, the micro-batches, and the first gradient in order of
registration. A run that resumes from a snapshot continues its count of steps.
Folders of hosts or restarts may be given together, also a single one.

Exit codes:
  0        all steps that were recorded twice are equal
  1        they are not
  2        this command line is wrong, or there is nothing to compare)"},
    {"replay", "Run a program again from a snapshot, and compare", "replay [FLAGS] A B -- PROGRAM [ARGUMENTS]",
     R"(Examples:
  lockstep replay run7/step-000000000200-g000001 run7/step-000000000400-g000001
      -- ./train --snapshot-dir run7 ...
  lockstep replay -n 4 --digests digests A B -- ./train ...

For programs with Snapshots whose steps have the same bits each time: in fixed
micro-batches at any number of ranks (docs/REPRODUCIBLE.md), else at that of
the run. The program, with its own arguments, resumes from snapshot A on this
host, and ends after the step of snapshot B. Then B and the snapshots between
A and B are compared with those of the replay: "the same bits", or the last
step that is equal, the first that differs, and what differs in it.
The replay has a folder of its own in TMPDIR (/tmp), whatever the program's
arguments say, and writes nothing to those of A and B. The program must have
one object Snapshots.

Exit codes:
  0        the same bits
  1        the bits differ
  2        this command line is wrong, A or B is not a whole snapshot, or the
           program fails or does not come to the step of B)"},
    {"report", "Write a page and JSON about where a run's time went", "report [FLAGS] DIR [DIR...]", R"(Examples:
  lockstep run -n 4 --log-dir logs ./train
  lockstep report logs   writes logs/report.html, logs/report.jsonl and
                         logs/tensorboard
  lockstep report -o both.html logs other
                         writes one page with both runs side by side

Reads the traces that each rank of a run with --log-dir, --trace or
LOCKSTEP_TRACE_DIR keeps in a file while it trains, however the run ended. The
page says how the run ended (with --log-dir), shows its loss, rates and what
log_scalar() has logged, and shows where each rank's step time goes, which rank
the others wait for, and how much communication was hidden. It needs no network.
report.jsonl has the same numbers, an object a line (docs/OBSERVE.md).

Exit codes:
  0        all files are written
  2        this command line is wrong, or the folder has no trace)"},
    {"store", "Run a rendezvous store: lockstep store serve", "store [FLAGS]", R"(Example:
  lockstep store serve --host 10.0.0.7 --port 29400
lockstep store serve has its own --help.)"},
    {"agent", "", "agent [FLAGS]", ""},
    {"ps", "List this user's runs on this host", "ps [FLAGS]", R"(Examples:
  lockstep ps
  lockstep ps --json   for programs

Lists the runs that this user started with lockstep run on this host: id, the
launcher's pid, ranks, age, step, log folder and command. Runs of other users
and in other containers are not listed, not even for root. A stopped launcher
(Ctrl-Z) is listed without details after a second.
)"},
    {"top", "Show what the ranks of a run do, once a second", "top [FLAGS] [RUN]", R"(Examples:
  lockstep top run-4f   the run whose id begins so; without an id the only run
  lockstep top --json   once, for programs

Shows what each rank does: step, time per step and its parts, memory, the last
collective, and which rank the others wait for. Narrow terminals have fewer
columns. Numbers are as old as a heartbeat, half a second. In multi-host jobs
run it on node rank 0's host.

Keys:
  q        quit
  ?        show what marks and columns mean
)"},
    {"inspect", "Show where each rank of a run is, with stacks", "inspect [FLAGS] [RUN]", R"(Examples:
  lockstep inspect run-4f   the run whose id begins so; without an id the only
                            run

Shows where each rank is: its last collective, then each thread with its stack,
the main thread first. Stacks need eu-stack (Debian's elfutils) or gdb, and the
right to trace the ranks. lockstep's own threads are one line while they sleep.
A rank stands still while its stacks are taken. In multi-host jobs run it on
node rank 0's host, which asks the others.
)"},
    {"trace", "Write the timeline of a running job", "trace [FLAGS] [RUN|DIR]", R"(Examples:
  lockstep trace --steps 20 run-4f    the last 20 steps of the run whose id
                                      begins so; without an id the only run
  lockstep trace logs -o run.json     from the files in a run's --log-dir

Writes a timeline for https://ui.perfetto.dev or chrome://tracing, of this
host's ranks, or of all ranks whose files are in a shared --log-dir.
)"},
    {"logs", "Show the output of a run", "logs [FLAGS] [RUN]", R"(Examples:
  lockstep logs run-4f            the last 50 lines of the run whose id begins
                                  so, with time and rank; without an id of the
                                  only run
  lockstep logs -f run-4f         these, and new lines until the job ends
  lockstep logs -n 0 -f run-4f    only new lines

In multi-host jobs it shows the lines of this host's ranks.
)"},
    {"stop", "Ask a run to stop", "stop [FLAGS] RUN", R"(Examples:
  lockstep stop run-4f   the run whose id begins so

Asks the run's launcher to stop it, as SIGTERM does: the ranks of all hosts may
save first. A second one kills them.
)"},
};

}  // namespace

const HelpText& help_of(std::string_view command) {
  const auto* const found = std::ranges::find(kTexts, command, &HelpText::command);
  return found == std::end(kTexts) ? kTexts[0] : *found;
}

std::string short_run_help(std::string_view flags) {
  return fmt::format(R"(Usage: lockstep run [FLAGS] [--] PROGRAM [ARGS...]
Starts the ranks of a job and watches them. --help all has the other flags.

{}
Examples:
  lockstep run -n 4 ./train --epochs 3
  lockstep run -n 4 --log-dir logs --max-restarts 5 ./train
  lockstep run -H host0:4,host1:4 ./train

The exit code is that of the rank that failed first, or 75 after a stop by a
signal or a hang. --help all also has the variables and the exit codes.
)",
                     flags);
}

}  // namespace lockstep::launcher
