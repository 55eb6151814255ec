// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/all_reduce/plain_window.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kHalf = (256 << 10) / sizeof(float);

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void add(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

PlainWindow::PlainWindow(ProcessGroup& group)
    : rank_(group.rank()),
      size_(group.size()),
      may_spin_(std::thread::hardware_concurrency() >= static_cast<unsigned>(size_)),
      bytes_(4096 + static_cast<std::size_t>(size_) * 2 * kHalf * sizeof(float)) {
  // Rank 0's file, by way of /proc.
  std::array<std::int64_t, 2> place{::getpid(), -1};
  if (rank_ == 0) place[1] = ::memfd_create("plain-window", MFD_CLOEXEC);
  if (rank_ == 0 && ::ftruncate(static_cast<int>(place[1]), static_cast<off_t>(bytes_)) != 0) {
    throw SystemError("ftruncate of the plain window", errno);
  }
  group.broadcast(BufferView(std::span<std::int64_t>(place)), 0).wait();
  const std::string path = "/proc/" + std::to_string(place[0]) + "/fd/" + std::to_string(place[1]);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) throw SystemError("opening the plain window", errno);
  memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory_ == MAP_FAILED) throw SystemError("mapping the plain window", errno);
  ::close(file);
  group.barrier().wait();
  if (rank_ == 0) ::close(static_cast<int>(place[1]));
  arrived_ = static_cast<std::atomic<std::uint64_t>*>(memory_);  // the file's zeros are its start
  halves_ = reinterpret_cast<float*>(static_cast<std::byte*>(memory_) + 4096);
}

PlainWindow::~PlainWindow() { ::munmap(memory_, bytes_); }

void PlainWindow::await_all() {
  waits_ += static_cast<std::uint64_t>(size_);
  arrived_->fetch_add(1);
  while (arrived_->load(std::memory_order_acquire) < waits_) {
    if (!may_spin_) ::sched_yield();
  }
}

void PlainWindow::all_reduce(std::span<float> data) {
  for (std::size_t begin = 0; begin < data.size(); begin += kHalf, ++chunks_) {
    const std::span<float> chunk = data.subspan(begin, std::min(kHalf, data.size() - begin));
    const auto half_of = [&](int rank) { return halves_ + (2 * static_cast<std::size_t>(rank) + chunks_ % 2) * kHalf; };
    std::memcpy(half_of(rank_), chunk.data(), chunk.size_bytes());
    await_all();
    for (int i = 1; i < size_; ++i) add(chunk.data(), half_of((rank_ + i) % size_), chunk.size());
  }
  await_all();
}

}  // namespace lockstep::bench
