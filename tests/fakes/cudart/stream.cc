// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/stream.h"

#include <thread>
#include <utility>

namespace lockstep::fake_cuda {

void Mark::reach() {
  std::lock_guard lock(mutex_);
  reached_ = true;
  time_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Mark::reached() {
  std::lock_guard lock(mutex_);
  return reached_;
}

void Mark::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_; });
}

std::chrono::steady_clock::time_point Mark::time() {
  std::lock_guard lock(mutex_);
  return time_;
}

FakeStream::FakeStream(std::uint32_t number, int on_device, bool with_default, std::uint64_t seed)
    : id(number), device(on_device), blocking(with_default), random_(seed * 0x9e3779b97f4a7c15u + number) {}

void FakeStream::push(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  ++pushed_;
  if (!started_) {
    started_ = true;
    // Never joined: an operation may hang for good, as it may on a GPU.
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
}

std::uint64_t FakeStream::pushed() {
  std::lock_guard lock(mutex_);
  return pushed_;
}

bool FakeStream::done(std::uint64_t tasks) {
  std::lock_guard lock(mutex_);
  return done_ >= tasks;
}

void FakeStream::wait_done(std::uint64_t tasks) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= tasks; });
}

void FakeStream::end() {
  std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

void FakeStream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    // A stream that is sometimes late is all that the delays are for: no order ever rests on them. Rare, for a step of
    // a model is hundreds of operations, and where cores are busy each pause is as long as somebody else's turn.
    const std::uint64_t draw = random_() % 64;
    if (draw == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
    } else if (draw < 3) {
      std::this_thread::yield();
    }
    task();
    task = nullptr;  // what it holds goes before it counts as done
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace lockstep::fake_cuda
