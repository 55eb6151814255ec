// SPDX-License-Identifier: Apache-2.0
// WrittenBuffers combines the values that the fixed micro-batches of a step leave in buffers that are not running
// statistics of a batch norm: by the rules of DdpOptions::buffer_rules, or, without a rule, if the values are equal.
//
// Whether some micro-batch wrote a buffer travels with the gradients (MicroBatchBuffers). If one did, the ranks gather
// the values of all micro-batches and apply the rule to them in the order of the micro-batches, so the result has the
// same bits at any number of ranks.
//
// Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/options.h"
#include "runtime/libtorch/module_state.h"

namespace lockstep::libtorch {

// Throws InvalidArgument for a rule that names none of the buffers.
void require_named(const std::map<std::string, BufferRule>& rules, const std::vector<std::string>& buffers);
// Whether the tensor has the same bytes as `before`. True on a device, where the host would have to wait for the
// answer.
bool has_equal_bytes(const at::Tensor& tensor, const at::Tensor& before);

class WrittenBuffers {
 public:
  WrittenBuffers() = default;
  // Throws InvalidArgument for a rule that does not suit the buffer's dtype.
  WrittenBuffers(std::vector<NamedTensor> buffers, const std::map<std::string, BufferRule>& rules);

  std::size_t size() const { return buffers_.size(); }
  // Appends the buffers' tensors to `tensors`.
  void list(std::vector<at::Tensor>& tensors) const {
    for (const Buffer& buffer : buffers_) tensors.push_back(buffer.item.tensor);
  }
  // ", NAME: RULE" for each rule.
  std::string describe_rules() const;

  // A step begins.
  void begin_step();
  // A micro-batch begins, with the values before the step.
  void begin_micro_batch();
  // An operator whose writes torch does not count has written the tensor. Returns whether it is one of the buffers.
  bool saw_write(const at::Tensor& tensor);
  // The name of a buffer that this micro-batch has written and that `known` does not say was written.
  std::optional<std::string> written_besides(const std::vector<bool>& known) const;
  // After the backward of a micro-batch with `rows` rows: keeps the values. Returns for each buffer whether it was
  // written.
  std::vector<bool> end_micro_batch(std::int64_t rows);
  // Puts back the values before the step.
  void restore();
  // The end of the step; collective and blocking, unless `is_written`, which is equal on all ranks and says for each
  // buffer whether some micro-batch wrote it, is false for all. `most` is the largest number of micro-batches of a
  // rank. Returns the error's text if the values of a buffer without a rule differ: the same on all ranks.
  std::string combine(const std::vector<bool>& is_written, int most, ProcessGroup& group);

 private:
  struct Buffer {
    NamedTensor item;
    std::optional<BufferRule> rule;
    at::Tensor before = {};               // the values before the step
    std::uint64_t copied = 0;             // the tensor's writes when `before` had its values
    std::uint64_t writes = 0;             // the tensor's writes when the micro-batch began
    bool is_seen = false;                 // by saw_write(), in this micro-batch
    std::vector<at::Tensor> values = {};  // of each micro-batch with rows; undefined if it did not write
  };
  static bool is_written(const Buffer& buffer);
  std::string combine(Buffer& buffer, int most, ProcessGroup& group) const;

  std::vector<Buffer> buffers_;
  std::vector<std::int64_t> rows_;  // of this rank's micro-batches with rows in this step
};

}  // namespace lockstep::libtorch
