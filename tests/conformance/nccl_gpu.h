// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of groups over NCCL: a rank's program on its fake GPU, and the calls that the fakes received.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tests/conformance/memory.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/nccl/fake_nccl.h"

namespace lockstep::testing {

inline cudaStream_t handle_of(StreamView stream) { return static_cast<cudaStream_t>(stream.handle); }

// Puts a kernel of the program into a stream, which writes `memory`.
inline void launch(
    StreamView stream, const fake_cuda::Range& memory, std::function<void()> run = [] {}) {
  fake_cuda::enqueue(handle_of(stream), "a kernel of the program", std::move(run), {}, {memory});
}

// A Gate blocks a kernel until the test opens it.
class Gate {
 public:
  std::function<void()> wait() {
    return [this] {
      while (!open_) std::this_thread::yield();
    };
  }
  void open() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

// One rank's buffers and stream, which the group follows.
struct Gpu {
  static constexpr std::int64_t kCount = 3000;
  static constexpr std::size_t kBytes = kCount * sizeof(float);

  explicit Gpu(ProcessGroup& group)
      : stream(group.device()),
        memory(device_runtime(DeviceKind::cuda).allocate(2 * kBytes, stream)),
        first(memory.get(), kCount, DType::f32, group.device()),
        second(static_cast<std::byte*>(memory.get()) + kBytes, kCount, DType::f32, group.device()) {
    group.set_stream(stream);
  }
  void compute(std::function<void()> run = [] {}) const { launch(stream, {first.data, kBytes}, std::move(run)); }

  Stream stream;
  std::shared_ptr<void> memory;
  BufferView first;
  BufferView second;
};

// The fakes' rules go with each test, and what they saw is nothing. Collectives are not compared before they start,
// as the suite of failures has them.
class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    checks_ = std::getenv("LOCKSTEP_CHECK_COLLECTIVES") != nullptr;
    ::unsetenv("LOCKSTEP_CHECK_COLLECTIVES");
    fake_nccl::take_calls();
  }
  void TearDown() override {
    fake_nccl::heal();
    fake_cuda::heal();
    if (checks_) ::setenv("LOCKSTEP_CHECK_COLLECTIVES", "1", 1);
    EXPECT_EQ(of_nccl_.take(), std::vector<std::string>{});
    EXPECT_EQ(of_cuda_.take(), std::vector<std::string>{});
  }
  // The calls of the fake since the test began, or since forget_calls(); any thread of the test may ask.
  std::vector<std::string> all_calls() {
    const std::lock_guard lock(mutex_);
    for (std::string& call : fake_nccl::take_calls()) calls_.push_back(std::move(call));
    return calls_;
  }
  void forget_calls() {
    const std::lock_guard lock(mutex_);
    fake_nccl::take_calls();
    calls_.clear();
  }
  std::int64_t calls(const std::string& line) {
    const auto all = all_calls();
    return std::count(all.begin(), all.end(), line);
  }
  // That this rank's communicator has come to its end so, once: by "destroy", or by "abort" where the group has failed.
  void expect_end(int rank, const std::string& how) {
    for (const std::string one : {"destroy", "abort"}) {
      EXPECT_EQ(calls("rank " + std::to_string(rank) + ": " + one), how == one ? 1 : 0) << one << " of rank " << rank;
    }
  }
  // The place of the first such call; behind all of them if there is none.
  std::ptrdiff_t place_of(const std::string& line) {
    const auto all = all_calls();
    return std::find(all.begin(), all.end(), line) - all.begin();
  }

  fake_nccl::Violations of_nccl_;
  fake_cuda::Violations of_cuda_;

 private:
  bool checks_ = false;
  std::mutex mutex_;
  std::vector<std::string> calls_;
};

}  // namespace lockstep::testing
