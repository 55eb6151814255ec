// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/libtorch_ddp/limit.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep::benchmark {
namespace {

constexpr std::size_t kHead = 4096;  // the barrier's page
constexpr std::size_t kLine = 16;    // floats of a cache line

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("limit: ") + what + ": " + std::strerror(errno));
}

void mean_of_two(float* a, float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] = (a[i] + b[i]) * 0.5F;
}

}  // namespace

struct Limit::State {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> views;  // of this rank's copy
  int rank = 0;
  int size = 0;
  std::size_t floats = 0;  // of a rank's copy
  std::byte* memory = nullptr;
  std::size_t bytes = 0;

  pthread_barrier_t* barrier() const { return reinterpret_cast<pthread_barrier_t*>(memory); }
  float* copy_of(int of) const {
    return reinterpret_cast<float*>(memory + kHead) + static_cast<std::size_t>(of) * floats;
  }
  void wait() const { pthread_barrier_wait(barrier()); }
  void write_means() const {
    const std::size_t part = (floats / kLine + static_cast<std::size_t>(size) - 1) / static_cast<std::size_t>(size);
    const std::size_t begin = std::min(floats, static_cast<std::size_t>(rank) * part * kLine);
    const std::size_t count = std::min(floats, begin + part * kLine) - begin;
    if (size == 2) return mean_of_two(copy_of(0) + begin, copy_of(1) + begin, count);
    for (std::size_t i = begin; i < begin + count; ++i) {
      float sum = 0;
      for (int of = 0; of < size; ++of) sum += copy_of(of)[i];
      for (int of = 0; of < size; ++of) copy_of(of)[i] = sum / static_cast<float>(size);
    }
  }
};

Limit::Limit(const Model& model, ProcessGroup& group, const std::string& name) : state_(std::make_unique<State>()) {
  State& self = *state_;
  self.parameters = model.parameters();
  self.rank = group.rank();
  self.size = group.size();
  for (const at::Tensor& parameter : self.parameters) {
    self.floats += (static_cast<std::size_t>(parameter.numel()) + kLine - 1) / kLine * kLine;
  }
  self.bytes = kHead + static_cast<std::size_t>(self.size) * self.floats * sizeof(float);
  int file = -1;
  if (self.rank == 0) {
    file = memfd_create("limit", MFD_CLOEXEC);
    require(file >= 0 && ftruncate(file, static_cast<off_t>(self.bytes)) == 0, "memory that ranks share");
    group.store().set(name, "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file));
  } else {
    file = open(group.store().get(name, Deadline::after(std::chrono::minutes(1))).c_str(), O_RDWR | O_CLOEXEC);
    require(file >= 0, "rank 0's memory");
  }
  void* const memory = mmap(nullptr, self.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  require(memory != MAP_FAILED, "mapping memory that ranks share");
  self.memory = static_cast<std::byte*>(memory);
  if (self.rank == 0) {
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(self.barrier(), &shared, static_cast<unsigned>(self.size));
  }
  group.barrier().wait();
  close(file);
  float* at = self.copy_of(self.rank);
  for (const at::Tensor& parameter : self.parameters) {
    self.views.push_back(at::from_blob(at, parameter.sizes(), parameter.options()));
    at += (static_cast<std::size_t>(parameter.numel()) + kLine - 1) / kLine * kLine;
  }
}

Limit::~Limit() {
  for (const at::Tensor& parameter : state_->parameters) parameter.mutable_grad().reset();
  munmap(state_->memory, state_->bytes);
}

void Limit::before_backward() {
  for (const at::Tensor& parameter : state_->parameters) parameter.mutable_grad().reset();
}

void Limit::after_backward() {
  const State& self = *state_;
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < self.parameters.size(); ++i) self.views[i].copy_(self.parameters[i].grad());
  reduce();
  for (std::size_t i = 0; i < self.parameters.size(); ++i) self.parameters[i].mutable_grad() = self.views[i];
}

void Limit::reduce() {
  state_->wait();
  state_->write_means();
  state_->wait();
}

}  // namespace lockstep::benchmark
