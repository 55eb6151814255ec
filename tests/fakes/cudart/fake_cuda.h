// SPDX-License-Identifier: Apache-2.0
// A CUDA runtime without a GPU: libfake_cudart.so has the cuda* functions that runtime/cuda and runtime/comm/nccl use.
//
// Devices are host memory, each stream is a thread that does its operations in order after random delays. What it
// checks, whatever the timing turned out to be:
//  - Order. Each operation says what it reads and writes. Two that overlap, one of them writing, and that neither the
//    order of a stream, nor an event, nor a wait of the host puts one after the other, are a violation that names both.
//    Found by vector clocks when the second one is put into its stream, so a missing wait is found in every run.
//  - Bounds and life. A range outside an allocation, or in one that was freed, or that ncclMemFree gives back while an
//    operation may still use it; streams and events that were destroyed.
//  - Memory pools. cudaMallocFromPoolAsync and cudaFreeAsync write all of their bytes, in their stream: who uses memory
//    before the one or after the other has to be ordered behind or before it, as above. Nothing else frees it.
//  - Captures (cudaStreamBeginCapture). What may wait for the device is refused to a thread that may not do so
//  meanwhile,
//    what waits for all of the device to every thread, captured events and streams can't be asked for, and each such
//    call breaks the capture, as its end says. What waits for a captured event is pulled in. Graphs are not made.
//  - Kernels that are written for GPUs: blocks.h.
//  - The host. Device memory can't be read or written through its pointer by the host (SIGSEGV, as with a GPU): kernels
//    that are host loops take host_address().
// A violation is written to stderr and aborts the process, unless a Violations object lives. Fresh memory is
// NaN (of more than 8 MiB the first and the last 4).
//
// The environment, read at the first call of CUDA:
//  LOCKSTEP_FAKE_SEED=N         of the delays; else random. Printed on stderr at the first call.
//  LOCKSTEP_FAKE_GPUS=N         devices of this host, default 8; 0: a driver without devices; "none": no driver.
//                               CUDA_VISIBLE_DEVICES chooses among them as CUDA does, by index or UUID (uuid_of()).
//  LOCKSTEP_FAKE_GPU_MEMORY=N   bytes of each, default 1 GiB.
//  LOCKSTEP_FAKE_MULTIPROCESSORS=N  of each, default 4: so few that a launch is small.
//  LOCKSTEP_FAKE_CUDA=RULE;...  what goes wrong:
//    cudaMalloc=2@3             the third call returns error 2; "@3+": it and all later ones; without "@": every one
//    cudaStreamWaitEvent=skip@1 the first call does nothing and returns success: for tests that want to see us notice
//    cudaEventRecord=wait@1     the first call goes on once heal() is called: as one does whose stream takes no more
//    operation=700@7            the seventh operation of this process (all streams) fails, and every later call returns
//    error 700
//
// What is not checked: accesses of the host to pinned memory (TSan sees those), reads of memory that nobody wrote (they
// give NaN), what graphs do, peers. Facts of real GPUs are none of its business.
//
// Threads: any. The host counts as one: what one of its threads waited for, all have waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fake_cuda {

struct Range {
  const void* data =
      nullptr;  // as the program knows it: device memory, pinned memory, or any other, which is not checked
  std::size_t bytes = 0;
};

// Puts an operation into a stream, as a kernel launch does: `run` is called on the stream's thread, must take memory
// through host_address(), and may wait for another process. `what` names it in violations. Returns what a launch does.
cudaError_t enqueue(cudaStream_t stream, std::string what, std::function<void()> run, const std::vector<Range>& reads,
                    const std::vector<Range>& writes);

// Where an operation on the stream's thread finds the bytes of a pointer into device memory; of other memory itself.
void* host_address(const void* data);

// Gives device memory back as ncclMemFree does: it waits for nothing, so the host has to know that every operation on
// the memory is done. Returns what a call of CUDA does.
cudaError_t free_without_waiting(void* data);

// Waits for all that is in the streams of the thread's device, as libraries do on their way. It is no promise of
// CUDA's: what the host knows to be done is the same afterwards.
void wait_for_device();

// For fakes of other libraries: reports a violation.
void report_violation(const std::string& text);

// Number of calls of a function of CUDA so far: calls("cudaMalloc").
std::int64_t calls(std::string_view function);
// Times that the host waited, or would have on a GPU: the cuda*Synchronize, cudaMemcpy, cudaMemset, cudaFree and
// cudaFreeHost, and asynchronous copies from or to memory that is not pinned.
std::int64_t host_synchronisations();
// Operations put into streams so far, as LOCKSTEP_FAKE_CUDA counts them: kernels, copies, memsets; no events.
std::int64_t operations();
// True once a function of CUDA has been called.
bool touched();
// The devices of the host that this process has a context on, by their physical index: it costs memory on each. One
// comes up with cudaSetDevice, and with most other calls on the thread's current device, which is 0 to begin with.
std::set<int> devices_with_context();

// Adds a rule in the form of LOCKSTEP_FAKE_CUDA; its numbers count from now. Throws std::invalid_argument.
void inject(std::string_view rule);
// Takes all rules back, and what an operation's failure did to later calls; calls that wait for it go on. What hangs
// goes on hanging.
void heal();

// While one lives, violations are collected instead of ending the process. One at a time.
class Violations {
 public:
  Violations();
  ~Violations();
  Violations(const Violations&) = delete;
  Violations& operator=(const Violations&) = delete;
  // Since the last call.
  std::vector<std::string> take();
};

// Kernels of ours (blocks.h): the random order of threads and blocks of the launches from now on is this seed's, and
// the same again where it is given again; otherwise that of LOCKSTEP_FAKE_SEED.
void order_threads_by(std::uint64_t seed);

// While one lives, launches run these of their blocks alone: what a few of many millions do. One at a time.
class OnlyBlocks {
 public:
  OnlyBlocks(std::int64_t first, std::int64_t count);
  ~OnlyBlocks();
  OnlyBlocks(const OnlyBlocks&) = delete;
  OnlyBlocks& operator=(const OnlyBlocks&) = delete;
};

// "GPU-fa6ec0da-0000-0000-0000-00000000000N" of the N-th device of the host.
std::string uuid_of(int physical_index);

}  // namespace lockstep::fake_cuda
