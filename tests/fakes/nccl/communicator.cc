// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/nccl/communicator.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/nccl/launch_order.h"

namespace lockstep::fake_nccl {
namespace {

// Another thread takes its time.
void linger(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto turns = random() % 8; turns > 0; --turns) std::this_thread::yield();
}

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties{};
  ::cudaGetDeviceProperties(&properties, device);
  return properties;
}

std::string place_of(int device) {
  const cudaDeviceProp properties = properties_of(device);
  std::string text;
  for (const char byte : properties.uuid.bytes) text += std::to_string(static_cast<unsigned char>(byte)) + ".";
  const char* const host = std::getenv("NCCL_HOSTID");
  return text.substr(0, 80) + (host == nullptr ? "" : host);
}

}  // namespace

Communicator::Communicator(int size, int rank, const char* id, int device)
    : size_(size), rank_(rank), device_(device), gpu_(properties_of(device).uuid.bytes[15]), id_(id) {}

Communicator::Call::Call(Communicator& of, const char* name, bool in_progress) : of_(of) {
  Books& books = Books::get();
  const std::string call = of.who() + ": " + name;
  books.called(call);
  if (of.calls_++ > 0) books.violation(call + " beside another call on the communicator");
  int current = -1;
  // A broken device can't be made current.
  const bool is_known = ::cudaGetDevice(&current) == cudaSuccess;
  if (is_known && current != of.device_) books.violation(call + " with another device current than the communicator's");
  {
    const std::lock_guard lock(of.mutex_);
    if (of.life_ == Life::destroyed || of.life_ == Life::aborted) {
      books.violation(call + " after the communicator was destroyed or aborted");
      late_ = true;
    }
    if (!in_progress && of.in_progress_) books.violation(call + " while an earlier call is in progress");
  }
  effect_ = books.effect_of(name, of.count(name), of.rank_, of.gpu_);
}

int Communicator::count(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return ++counts_[name];
}

void Communicator::begin(std::function<ncclResult_t()> work) {
  const std::lock_guard lock(mutex_);
  in_progress_ = true;
  job_done_ = false;
  job_ = std::thread([this, work = std::move(work)] {
    const ncclResult_t result = work();
    const std::lock_guard done(mutex_);
    result_ = result;
    job_done_ = true;
  });
}

ncclResult_t Communicator::state() {
  {
    const std::lock_guard lock(mutex_);
    if (in_progress_ && !job_done_) return ncclInProgress;
    if (in_progress_) {
      job_.join();
      in_progress_ = false;
    }
    if (result_ != ncclSuccess) return result_;
  }
  const int remote = remote_.load();
  if (remote > 0) remote_.fetch_sub(1);
  return remote == 0 ? ncclSuccess : ncclRemoteError;
}

void Communicator::join(Effect effect) {
  begin([this, effect] {
    linger(static_cast<std::uint64_t>(rank_));
    if (effect == Effect::error) {
      last_error = "the test wants init to fail";
      return ncclSystemError;
    }
    world_ = std::make_unique<World>(id_, size_);
    std::strncpy(world_->shared().places[rank_], place_of(device_).c_str(), 127);
    if (effect == Effect::hang) {
      world_->wait([] { return false; }, aborted_);
      return ncclInternalError;
    }
    world_->shared().joined.fetch_add(1);
    world_->notify();
    if (!world_->wait([this] { return world_->shared().joined.load() == static_cast<std::uint32_t>(size_); },
                      aborted_)) {
      return ncclInternalError;
    }
    world_->forget();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || std::strcmp(world_->shared().places[r], world_->shared().places[rank_]) != 0) continue;
      last_error = "Duplicate GPU detected : rank " + std::to_string(rank_) + " and rank " + std::to_string(r);
      return ncclInvalidUsage;
    }
    return ncclSuccess;
  });
}

Operation Communicator::counted(Operation operation, Effect effect) {
  operation.hangs = effect == Effect::hang || effect == Effect::remote;
  operation.is_wrong = effect == Effect::wrong;
  if (effect == Effect::remote) remote_.store(-1);
  if (effect == Effect::flaky) remote_.store(3);
  return operation;
}

ncclResult_t Communicator::launch(std::vector<Operation> operations) {
  begin([this, operations = std::move(operations)] {
    linger(operations.front().count);
    const std::string crossed = LaunchOrder::get().launched(id_, device_);
    if (!crossed.empty()) Books::get().violation(crossed);
    if (enqueue(operations)) return ncclSuccess;
    last_error = "a CUDA failure at the launch";
    return ncclUnhandledCudaError;
  });
  return ncclInProgress;
}

bool Communicator::put(cudaStream_t stream, std::string what, std::function<void()> run,
                       const std::vector<fake_cuda::Range>& reads, const std::vector<fake_cuda::Range>& writes) {
  pending_++;
  const bool is_put = fake_cuda::enqueue(stream, std::move(what), std::move(run), reads, writes) == cudaSuccess;
  if (!is_put) pending_--;
  return is_put;
}

bool Communicator::enqueue(const std::vector<Operation>& operations) {
  bool all_are_put = true;
  const auto on_host = [](Operation operation) {
    operation.from = fake_cuda::host_address(operation.from);
    operation.to = fake_cuda::host_address(operation.to);
    return operation;
  };
  std::vector<Operation> messages;
  std::vector<fake_cuda::Range> reads;
  std::vector<fake_cuda::Range> writes;
  bool messages_hang = false;
  for (const Operation& operation : operations) {
    const fake_cuda::Range read{operation.from, operation.bytes_read(rank_, size_)};
    const fake_cuda::Range write{operation.to, operation.bytes_written(rank_, size_)};
    if (operation.kind == Kind::send || operation.kind == Kind::recv) {
      messages.push_back(operation);
      (operation.kind == Kind::send ? reads : writes).push_back(operation.kind == Kind::send ? read : write);
      messages_hang |= operation.hangs;
      continue;
    }
    all_are_put &= put(operation.stream, operation.describe() + " of " + who(),
                       [this, operation, on_host] {
                         std::string violation;
                         if (operation.hangs) {
                           world_->wait([] { return false; }, aborted_);
                         } else if (!run_collective(*world_, rank_, on_host(operation), round_, aborted_, violation) &&
                                    !violation.empty()) {
                           Books::get().violation(violation);
                           world_->wait([] { return false; }, aborted_);
                         } else if (operation.is_wrong) {
                           auto* const end = static_cast<std::byte*>(on_host(operation).to);
                           end[operation.bytes_written(rank_, size_) - 1] ^= std::byte{0x40};
                         }
                         pending_--;
                       },
                       {read}, {write});
  }
  if (messages.empty()) return all_are_put;
  const cudaStream_t stream = messages.front().stream;
  all_are_put &= put(
      stream, "messages of " + who(),
      [this, messages, messages_hang, on_host]() mutable {
        for (Operation& message : messages) message = on_host(message);
        if (messages_hang) {
          world_->wait([] { return false; }, aborted_);
        } else {
          run_messages(*world_, rank_, messages, aborted_);
        }
        pending_--;
      },
      reads, writes);
  return all_are_put;
}

void Communicator::finalize(Effect effect) {
  if (pending_.load() != 0) Books::get().violation(who() + ": finalize with operations left in the stream");
  {
    const std::lock_guard lock(mutex_);
    if (life_ != Life::begun) Books::get().violation(who() + ": finalize a second time");
    life_ = Life::finalizing;
  }
  begin([this, effect] {
    if (effect == Effect::error) return ncclInternalError;
    if (effect != Effect::hang) {
      world_->shared().finalized.fetch_add(1);
      world_->notify();
    }
    const auto all = [&] {
      return effect != Effect::hang && world_->shared().finalized.load() == static_cast<std::uint32_t>(size_);
    };
    if (!world_->wait(all, aborted_)) return ncclInternalError;
    const std::lock_guard lock(mutex_);
    if (life_ == Life::finalizing) life_ = Life::finalized;
    return ncclSuccess;
  });
}

void Communicator::wait_until_idle() {
  {
    const std::lock_guard lock(mutex_);
    if (!in_progress_) return;
  }
  job_.join();
  const std::lock_guard lock(mutex_);
  in_progress_ = false;
}

void Communicator::destroy(Effect effect) {
  {
    const std::lock_guard lock(mutex_);
    if (life_ != Life::finalized) Books::get().violation(who() + ": destroy before finalize has ended");
    if (!registered_.empty()) Books::get().violation(who() + ": destroy with memory still registered");
  }
  LaunchOrder::get().forget(id_, device_);
  Books::get().hold(effect);
  wait_until_idle();
  fake_cuda::wait_for_device();
  const std::lock_guard lock(mutex_);
  life_ = Life::destroyed;
}

void Communicator::abort(Effect effect) {
  {
    const std::lock_guard lock(mutex_);
    life_ = Life::aborted;
  }
  aborted_.store(true);
  Books::get().hold(effect);
  wait_until_idle();
  LaunchOrder::get().forget(id_, device_);
  if (effect != Effect::early) {
    while (pending_.load() != 0) ::usleep(200);  // the kernels look at the flag
    fake_cuda::wait_for_device();
  }
  if (world_) world_->forget();
}

bool Communicator::holds(const void* data) {
  const std::lock_guard lock(mutex_);
  const bool lives = life_ != Life::destroyed && life_ != Life::aborted;
  return lives && registered_.count(const_cast<void*>(data)) != 0;
}

void* Communicator::add_registration(void* data) {
  const std::lock_guard lock(mutex_);
  if (!registered_.insert(data).second) Books::get().violation(who() + ": registers the same memory twice");
  return data;
}

void Communicator::remove_registration(void* handle) {
  const std::lock_guard lock(mutex_);
  if (registered_.erase(handle) == 0) Books::get().violation(who() + ": deregisters what is not registered");
}

}  // namespace lockstep::fake_nccl
