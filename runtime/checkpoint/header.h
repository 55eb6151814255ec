// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file. Pure functions over text: no files.
//
// They refuse all that Python's safetensors refuses. Beyond that a key must not be there twice, the text must begin
// with '{', as the format says, and nothing in it is nested deeper than a tensor's shape.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// The reference implementation's limit: a longer header is refused before it is read.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// "F32" and so on. dtype_of_format() returns nullopt for a name that lockstep does not know, whether the format has it
// or not.
std::string_view format_name(DType dtype);
std::optional<DType> dtype_of_format(std::string_view name);

// Bytes of a tensor; nullopt if a dimension is negative or the product does not fit.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

// Offsets of tensors count from the end of the header.
struct Header {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, ForeignTensor> foreign;
  Metadata metadata;
};

// The header's text, padded so that the data after it is 8-byte aligned. InvalidArgument for text that is not UTF-8.
std::string encode_header(const Header& header);
// Throws CorruptData with tensor and reason. `data_bytes` is the size of the file after the header.
Header decode_header(std::string_view text, std::uint64_t data_bytes);

// A sentence on the format of a file that was taken for weights, by its first bytes: "it is compressed: unpack it
// first". Empty if the format is not known.
std::string_view other_format(std::string_view begin);

}  // namespace lockstep::checkpoint
