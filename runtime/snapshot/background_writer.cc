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

bool is_changed_in_file(const SnapshotTensor& tensor) { return tensor.is_transposed && !tensor.share; }

}  // namespace

BackgroundWriter::~BackgroundWriter() {
  if (!thread_.joinable()) return;
  // The copies are awaited first: the thread reads tensors that the program may free behind this.
  wait_copied();
  {
    const MutexLock lock(mutex_);
    is_ended_ = true;
    changed_.notify_all();
  }
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
  behind_.clear();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    for (std::size_t t = 0; t < items_[i].tensors.size(); ++t) {
      const SnapshotTensor& tensor = items_[i].tensors[t];
      if (tensor.is_copy && !is_changed_in_file(tensor)) continue;
      copies_.push_back({i, t, bytes, tensor.version ? tensor.version() : 0});
      bytes += (tensor.bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
  if (bytes > memory_bytes_) {
    memory_.reset();
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    memory_bytes_ = bytes;
  }
  for (const Copy& one : copies_) {
    const SnapshotTensor& tensor = items_[one.item].tensors[one.tensor];
    tensor.is_copy || tensor.only_optimizers_write ? behind_.push_back(one) : copy(one);
  }
  if (!thread_.joinable()) thread_ = start_quiet_thread([this] { run(); }, "lockstep-save");
  const MutexLock lock(mutex_);
  failure_ = nullptr;
  phase_ = Phase::copying;
  changed_.notify_all();
}

void BackgroundWriter::copy(const Copy& copy) {
  const std::span<const std::byte> bytes = items_[copy.item].tensors[copy.tensor].bytes;
  if (!bytes.empty()) std::memcpy(memory_.get() + copy.offset, bytes.data(), bytes.size());
}

std::string BackgroundWriter::changed_tensor() const {
  for (const Copy& one : behind_) {
    const SnapshotTensor& tensor = items_[one.item].tensors[one.tensor];
    if (tensor.version && tensor.version() != one.version) {
      return fmt::format("{}: {}", items_[one.item].item.name, tensor.name);
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
  // The training's thread looks for changed tensors, for only that thread writes them.
  std::exception_ptr failure;
  try {
    if (const std::string changed = changed_tensor(); !changed.empty()) {
      throw InvalidArgument(
          fmt::format("{} was written before the next backward had ended, while it was copied; call "
                      "step() last in the loop, or save() where a program writes parameters itself",
                      changed));
    }
  } catch (...) {
    failure = std::current_exception();
  }
  const MutexLock lock(mutex_);
  phase_ = Phase::writing;
  not_copied_ = std::move(failure);
  changed_.notify_all();
}

void BackgroundWriter::wait() {
  wait_copied();
  MutexLock lock(mutex_);
  while (phase_ != Phase::idle) changed_.wait(mutex_);
}

std::exception_ptr BackgroundWriter::take_failure() {
  const MutexLock lock(mutex_);
  return std::exchange(failure_, nullptr);
}

void BackgroundWriter::run() {
  for (;;) {
    Phase phase = Phase::idle;
    {
      MutexLock lock(mutex_);
      while (phase_ != Phase::copying && phase_ != Phase::writing && !is_ended_) changed_.wait(mutex_);
      phase = phase_;
    }
    // Copies and writes without the lock: training asks in each step whether this is busy, and must not wait for the
    // disk.
    std::exception_ptr failure;
    if (phase == Phase::copying) {
      for (const Copy& one : behind_) copy(one);
    } else if (phase == Phase::writing) {
      try {
        write_all();
      } catch (...) {
        failure = std::current_exception();
      }
    } else {
      return;
    }
    const MutexLock lock(mutex_);
    failure_ = std::move(failure);  // this thread gives up its reference: the thread that takes the failure destroys it
    phase_ = phase == Phase::copying ? Phase::copied : Phase::idle;
    changed_.notify_all();
  }
}

void BackgroundWriter::write_all() {
  std::exception_ptr why_not;
  {
    const MutexLock lock(mutex_);
    why_not = std::exchange(not_copied_, nullptr);
  }
  std::vector<checkpoint::ItemSource> items;
  try {
    if (!why_not) items = make_sources();
  } catch (...) {
    why_not = std::current_exception();
  }
  write_(head_, items, why_not);
  items_.clear();  // and the memory that they keep
}

std::vector<checkpoint::ItemSource> BackgroundWriter::make_sources() {
  std::vector<std::vector<std::span<std::byte>>> where(items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) where[i].resize(items_[i].tensors.size());
  for (const Copy& one : copies_) {
    const SnapshotTensor& tensor = items_[one.item].tensors[one.tensor];
    const std::span<std::byte> bytes{memory_.get() + one.offset, tensor.bytes.size()};
    if (is_changed_in_file(tensor))
      checkpoint::transpose(bytes, tensor.shape[1], tensor.shape[0], size_of(tensor.dtype));
    where[one.item][one.tensor] = bytes;
  }
  std::vector<checkpoint::ItemSource> sources;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    checkpoint::ItemSource source{.item = items_[i].item, .tensors = {}};
    for (std::size_t t = 0; t < items_[i].tensors.size(); ++t) {
      const SnapshotTensor& tensor = items_[i].tensors[t];
      const bool is_here = tensor.is_copy && !is_changed_in_file(tensor);
      const auto elements = static_cast<std::int64_t>(tensor.bytes.size() / size_of(tensor.dtype));
      for (const std::string& name : tensor.names()) {
        source.tensors.push_back(
            {.name = name,
             .dtype = tensor.dtype,
             .shape = source.item.kind == checkpoint::ItemKind::sharded ? std::vector{elements} : tensor.shape,
             .bytes = is_here ? tensor.bytes : std::span<const std::byte>(where[i][t])});
      }
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace lockstep
