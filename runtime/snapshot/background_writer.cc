// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/background_writer.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/checkpoint/transpose.h"

namespace lockstep {
namespace {

bool is_changed_in_file(const SnapshotTensor& tensor) { return tensor.is_transposed && !tensor.shard; }

}  // namespace

BackgroundWriter::~BackgroundWriter() {
  if (!thread_.joinable()) return;
  // Wait until the writer's thread has copied all tensors, because the program may free the tensors after the
  // destructor. The writer's thread begins to write only after wait_copied(), which wait() calls.
  wait();
  set_phase(Phase::ended);
  thread_.join();
}

bool BackgroundWriter::is_busy() const {
  const MutexLock lock(mutex_);
  return phase_ != Phase::idle;
}

void BackgroundWriter::start(checkpoint::Manifest head, std::vector<CapturedItem> items) {
  constexpr std::size_t kAlignment = 64;
  head_ = std::move(head);
  items_ = std::move(items);
  copies_.clear();
  later_.clear();
  std::size_t bytes = 0;
  for (CapturedItem& item : items_) {
    for (SnapshotTensor& tensor : item.tensors) {
      if (tensor.is_copy && !is_changed_in_file(tensor)) continue;
      copies_.push_back({item.item.name, &tensor, tensor.bytes, bytes, tensor.version ? tensor.version() : 0});
      bytes += (tensor.bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
  if (bytes > memory_bytes_) {
    memory_.reset();  // freed before the new allocation: the state fits in memory twice, not three times
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    memory_bytes_ = bytes;
  }
  for (const Copy& one : copies_) {
    one.tensor->bytes = {memory_.get() + one.offset, one.from.size()};
    one.tensor->is_copy || one.tensor->only_optimizers_write ? later_.push_back(one) : copy(one);
  }
  if (!thread_.joinable()) thread_ = start_quiet_thread([this] { run(); }, "lockstep-save");
  failure_ = nullptr;
  set_phase(Phase::copying);
}

void BackgroundWriter::copy(const Copy& copy) {
  if (!copy.from.empty()) std::memcpy(memory_.get() + copy.offset, copy.from.data(), copy.from.size());
}

std::string BackgroundWriter::changed_tensor() const {
  for (const Copy& one : later_) {
    if (one.tensor->version && one.tensor->version() != one.version) {
      return fmt::format("{}: {}", one.item, one.tensor->name);
    }
  }
  return {};
}

void BackgroundWriter::wait_copied() noexcept {
  {
    MutexLock lock(mutex_);
    while (phase_ == Phase::copying) changed_.wait(mutex_);
    if (phase_ != Phase::copied) return;
  }
  // Look for changed tensors on the training's thread, because only the training's thread changes tensors. The search
  // for changed tensors needs no lock, because the writer's thread waits until the phase is `writing`.
  try {
    if (const std::string changed = changed_tensor(); !changed.empty()) {
      throw InvalidArgument(
          fmt::format("{} changed while this snapshot was copying it; call step() last in the loop, or save() if the "
                      "program itself writes parameters",
                      changed));
    }
  } catch (...) {
    not_copied_ = std::current_exception();
  }
  set_phase(Phase::writing);
}

void BackgroundWriter::wait() {
  wait_copied();
  MutexLock lock(mutex_);
  while (phase_ != Phase::idle) changed_.wait(mutex_);
}

void BackgroundWriter::set_phase(Phase phase) {
  const MutexLock lock(mutex_);
  phase_ = phase;
  changed_.notify_all();
}

void BackgroundWriter::run() {
  for (;;) {
    Phase phase = Phase::idle;
    {
      MutexLock lock(mutex_);
      while (phase_ == Phase::idle || phase_ == Phase::copied) changed_.wait(mutex_);
      phase = phase_;
    }
    // Copy and write without holding the lock, because training calls is_busy() in each step and must not wait for
    // the disk.
    if (phase == Phase::copying) {
      for (const Copy& one : later_) copy(one);
      set_phase(Phase::copied);
    } else if (phase == Phase::writing) {
      write_all();
      set_phase(Phase::idle);
    } else {
      return;
    }
  }
}

void BackgroundWriter::write_all() {
  std::exception_ptr why_not = std::exchange(not_copied_, nullptr);
  std::vector<checkpoint::ItemSource> sources;
  try {
    if (!why_not) sources = make_sources();
  } catch (...) {
    why_not = std::current_exception();
  }
  try {
    // Call write_ even if `sources` is empty, because other ranks may wait for a message from this rank.
    write_(head_, sources, why_not);
  } catch (...) {
    failure_ = std::current_exception();
  }
  items_.clear();  // also frees the memory that the items keep
}

std::vector<checkpoint::ItemSource> BackgroundWriter::make_sources() {
  for (const Copy& one : copies_) {
    const SnapshotTensor& tensor = *one.tensor;
    if (!is_changed_in_file(tensor)) continue;
    checkpoint::transpose({memory_.get() + one.offset, one.from.size()}, tensor.shape[1], tensor.shape[0],
                          size_of(tensor.dtype));
  }
  std::vector<checkpoint::ItemSource> sources;
  for (const CapturedItem& item : items_) {
    checkpoint::ItemSource& source = sources.emplace_back(checkpoint::ItemSource{.item = item.item, .tensors = {}});
    for (const SnapshotTensor& tensor : item.tensors) {
      const std::vector elements{static_cast<std::int64_t>(tensor.bytes.size() / size_of(tensor.dtype))};
      const auto& shape = item.item.kind == checkpoint::ItemKind::sharded ? elements : tensor.shape;
      for (const std::string& name : tensor.names()) {
        source.tensors.push_back({.name = name, .dtype = tensor.dtype, .shape = shape, .bytes = tensor.bytes});
      }
    }
  }
  return sources;
}

}  // namespace lockstep
