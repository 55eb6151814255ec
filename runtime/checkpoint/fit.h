// Does a file hold what a model wants? All names, shapes and dtypes, and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

struct WantedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  bool is_bool = false;  // one byte for each element: U8 of ours, or the format's BOOL
};

// Throws InvalidArgument that lists what is missing, unexpected and different, and what to do. `operation`,
// "load_weights", and `whose`, "model", are words of that message.
void require_fit(const SafetensorsFile& file, std::span<const WantedTensor> wanted, std::string_view operation,
                 std::string_view whose);

// Where a tensor that fits lies.
const TensorEntry& entry_of(const SafetensorsFile& file, const WantedTensor& wanted);

}  // namespace lockstep::checkpoint
