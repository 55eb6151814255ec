// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/written_buffers.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "runtime/libtorch/trained_module.h"

namespace lockstep::libtorch {
namespace {

constexpr const char* kNames[] = {"first", "sum", "mean", "min", "max"};
const char* name_of(BufferRule rule) { return kNames[static_cast<std::size_t>(rule)]; }

void require_suits(const NamedTensor& buffer, BufferRule rule) {
  const at::ScalarType type = buffer.tensor.scalar_type();
  const bool is_number = type != at::kBool && !at::isComplexType(type);
  if (rule == BufferRule::first || (rule == BufferRule::mean ? at::isFloatingType(type) : is_number)) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: DdpOptions::buffer_rules names BufferRule::{} for '{}', which is {}; give "
                  "'first', or store the values as float32",
                  name_of(rule), buffer.name, c10::toString(type)));
}

// The value of one micro-batch, and its number of rows.
struct Value {
  std::int64_t rows = 0;
  at::Tensor tensor;
};

at::Tensor apply(BufferRule rule, const at::Tensor& before, const std::vector<Value>& values) {
  at::Tensor result = values.front().tensor;
  if (rule == BufferRule::sum) result = before.clone();
  if (rule == BufferRule::mean) result = at::zeros_like(before, before.options().dtype(at::kDouble));
  std::int64_t rows = 0;
  for (const auto& [rows_of_value, value] : values) {
    rows += rows_of_value;
    switch (rule) {
      case BufferRule::first: return value;
      case BufferRule::sum: result += value - before; break;
      case BufferRule::mean: result += (value.to(at::kDouble) - before).mul_(static_cast<double>(rows_of_value)); break;
      case BufferRule::min: result = at::minimum(result, value); break;
      case BufferRule::max: result = at::maximum(result, value); break;
    }
  }
  return rule == BufferRule::mean ? before + result / static_cast<double>(rows) : result;
}

}  // namespace

WrittenBuffers::WrittenBuffers(std::vector<NamedTensor> buffers, const std::map<std::string, BufferRule>& rules) {
  for (NamedTensor& item : buffers) {
    const auto rule = rules.find(item.name);
    if (rule != rules.end()) require_suits(item, rule->second);
    buffers_.push_back({std::move(item), rule == rules.end() ? std::nullopt : std::optional(rule->second)});
  }
}

void require_named(const std::map<std::string, BufferRule>& rules, const std::vector<std::string>& buffers) {
  for (const auto& [name, rule] : rules) {
    if (std::ranges::find(buffers, name) != buffers.end()) continue;
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: DdpOptions::buffer_rules names '{}', but the module has no buffer of that name; it "
        "has {}{}",
        name, buffers.empty() ? "none" : "", fmt::join(buffers, ", ")));
  }
}

bool has_equal_bytes(const at::Tensor& tensor, const at::Tensor& before) {
  if (!tensor.is_cpu()) return true;
  const at::Tensor now = tensor.contiguous(), then = before.contiguous();
  return now.nbytes() == 0 || std::memcmp(now.data_ptr(), then.data_ptr(), now.nbytes()) == 0;
}

std::string WrittenBuffers::describe_rules() const {
  std::string text;
  for (const Buffer& buffer : buffers_) {
    if (buffer.rule) text += fmt::format(", {}: {}", buffer.item.name, name_of(*buffer.rule));
  }
  return text;
}

void WrittenBuffers::begin_step() {
  const at::NoGradGuard no_grad;
  rows_.clear();
  for (Buffer& buffer : buffers_) {
    buffer.values.clear();
    // Also where torch has counted no write: batch norms, data() and data_ptr() are not counted.
    if (!buffer.before.defined()) buffer.before = at::empty_like(buffer.item.tensor);
    buffer.before.copy_(buffer.item.tensor);
    buffer.copied = writes_to(buffer.item.tensor);
  }
}

void WrittenBuffers::begin_micro_batch() {
  restore();
  for (Buffer& buffer : buffers_) {
    buffer.writes = writes_to(buffer.item.tensor);
    buffer.is_seen = false;
  }
}

bool WrittenBuffers::saw_write(const at::Tensor& tensor) {
  const auto found = std::ranges::find_if(buffers_, [&](Buffer& buffer) { return buffer.item.tensor.is_same(tensor); });
  if (found == buffers_.end()) return false;
  return found->is_seen = true;
}

bool WrittenBuffers::is_written(const Buffer& buffer) {
  return buffer.is_seen || writes_to(buffer.item.tensor) != buffer.writes ||
         !has_equal_bytes(buffer.item.tensor, buffer.before);
}

std::optional<std::string> WrittenBuffers::written_besides(const std::vector<bool>& known) const {
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (is_written(buffers_[i]) && !known[i]) return buffers_[i].item.name;
  }
  return std::nullopt;
}

std::vector<bool> WrittenBuffers::end_micro_batch(std::int64_t rows) {
  const at::NoGradGuard no_grad;
  std::vector<bool> is_written(buffers_.size(), false);
  if (rows == 0) return is_written;
  rows_.push_back(rows);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    Buffer& buffer = buffers_[i];
    is_written[i] = WrittenBuffers::is_written(buffer);
    buffer.values.push_back(is_written[i] ? buffer.item.tensor.clone() : at::Tensor());
  }
  return is_written;
}

void WrittenBuffers::restore() {
  const at::NoGradGuard no_grad;
  for (Buffer& buffer : buffers_) {
    at::Tensor& tensor = buffer.item.tensor;
    if (!buffer.is_seen && writes_to(tensor) == buffer.copied && has_equal_bytes(tensor, buffer.before)) continue;
    tensor.copy_(buffer.before);
    buffer.copied = writes_to(tensor);
  }
}

std::string WrittenBuffers::combine(const std::vector<bool>& is_written, int most, ProcessGroup& group) {
  restore();
  std::string refusal;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (!is_written[i]) continue;
    const std::string text = combine(buffers_[i], most, group);
    if (refusal.empty()) refusal = text;
  }
  return refusal;
}

std::string WrittenBuffers::combine(Buffer& buffer, int most, ProcessGroup& group) const {
  const at::NoGradGuard no_grad;
  const at::Tensor before = buffer.before.cpu().contiguous();
  const std::size_t bytes = before.nbytes(), slot = sizeof(std::int64_t) + bytes;
  const auto size = static_cast<std::size_t>(group.size()), slots = static_cast<std::size_t>(most);
  std::vector<std::byte> own(slots * slot), all(size * own.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const at::Tensor value = buffer.values[i].defined() ? buffer.values[i].cpu().contiguous() : before;
    std::memcpy(own.data() + i * slot, &rows_[i], sizeof(rows_[i]));
    std::memcpy(own.data() + i * slot + sizeof(rows_[i]), value.data_ptr(), bytes);
  }
  all_gather_bytes(own, all, group);
  std::vector<Value> values;
  for (std::size_t i = 0; i < size * slots; ++i) {
    Value value{0, at::empty_like(before)};
    std::memcpy(&value.rows, all.data() + i * slot, sizeof(value.rows));
    std::memcpy(value.tensor.data_ptr(), all.data() + i * slot + sizeof(value.rows), bytes);
    if (value.rows > 0) values.push_back(std::move(value));
  }
  if (!buffer.rule) {
    const auto differs = [&](const Value& value) {
      return std::memcmp(value.tensor.data_ptr(), values.front().tensor.data_ptr(), bytes) != 0;
    };
    if (std::ranges::any_of(values, differs)) {
      return fmt::format(
          "the fixed micro-batches left different values in the buffer '{}'; say in DdpOptions::buffer_rules how they "
          "are combined (first, sum, mean, min or max)",
          buffer.item.name);
    }
  }
  buffer.item.tensor.copy_(apply(buffer.rule.value_or(BufferRule::first), before, values));
  return "";
}

}  // namespace lockstep::libtorch
