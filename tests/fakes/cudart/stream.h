// SPDX-License-Identifier: Apache-2.0
// A stream: a thread that does what was put in, in order, after random delays.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

#include "tests/fakes/cudart/vector_clock.h"

namespace lockstep::fake_cuda {

// A place in a stream, once recorded.
class Mark {
 public:
  explicit Mark(VectorClock clock) : clock_(std::move(clock)) {}
  // What is done once it is reached.
  const VectorClock& clock() const { return clock_; }
  void reach();
  bool reached();
  void wait();
  std::chrono::steady_clock::time_point time();

 private:
  const VectorClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point time_;
};

// Kept alive by its thread until all is done.
class FakeStream : public std::enable_shared_from_this<FakeStream> {
 public:
  FakeStream(std::uint32_t id, int device, bool blocking, std::uint64_t seed);

  // Any thread. The thread starts with the first one.
  void push(std::function<void()> task);
  // Number of tasks pushed so far.
  std::uint64_t pushed();
  bool done(std::uint64_t tasks);
  void wait_done(std::uint64_t tasks);
  // The thread ends when it has done all.
  void end();

  const std::uint32_t id;
  const int device;     // physical
  const bool blocking;  // in the order of the default stream too
  // Of the lock of the whole: what is done before the next operation, and how many there were.
  VectorClock clock;
  std::uint64_t operations = 0;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  bool started_ = false;
  bool ending_ = false;
  std::mt19937_64 random_;  // of the thread
};

}  // namespace lockstep::fake_cuda
