// SPDX-License-Identifier: Apache-2.0
// Matches the tensors of files with those of a model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/internal_api.h"
#include "runtime/checkpoint/tensor_files.h"

namespace lockstep::checkpoint {

struct WantedTensor {
  // Several of a tied tensor: any of them will do, and those that a file has must have the same bits.
  std::vector<std::string> names;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // in the file
  bool is_bool = false;             // one byte for each element: lockstep's U8, or the format's BOOL
};

// The wanted tensors' names in the file, and the result that a load returns.
struct LoadPlan {
  std::vector<std::optional<std::string>> sources;  // names in the file, one for each wanted tensor; nullopt: missing
  Loaded loaded;
};

// Throws InvalidArgument that lists missing, unexpected and different tensors, and the remedy; reads tied tensors that
// the files have several times. `operation`, "load_weights", and `whose`, "model", are words of that message.
LOCKSTEP_INTERNAL_API LoadPlan plan_load(const TensorFiles& files, std::span<const WantedTensor> wanted,
                                         const LoadOptions& options, std::string_view operation,
                                         std::string_view whose);

// For a rank that reads and sends the result to the others. loaded_from_text() throws CorruptData for a text that is
// not to_text()'s.
LOCKSTEP_INTERNAL_API std::string to_text(const Loaded& loaded);
LOCKSTEP_INTERNAL_API Loaded loaded_from_text(const std::string& text);

}  // namespace lockstep::checkpoint
