// SPDX-License-Identifier: Apache-2.0
// Named tensors in a file, in the safetensors format, which PyTorch's, JAX's and Rust's users read and write too.
// Source: https://github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
//
//   8 bytes   N, the length of the header, unsigned little-endian; at most 100 000 000
//   N bytes   JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...,
//             "__metadata__": {"key": "text", ...}}, padded with spaces
//   the rest  the tensors' elements, row-major, little-endian; offsets count from here, without holes or overlaps
//
// Knows memory, not tensors: a tensor is {name, dtype, shape, bytes}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/device/dtype.h"

namespace lockstep {
class UniqueFd;
}

namespace lockstep::checkpoint {

// A tensor to write. The bytes are row-major and belong to the caller.
struct TensorSource {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // empty for a scalar
  std::span<const std::byte> bytes;
};

// A tensor in a file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of its first byte in the file
  std::uint64_t bytes = 0;
};

// A tensor of a dtype that the format has and lockstep has not: BOOL, I8, I16, U16, U32, U64, C64, and those of 4, 6
// and 8 bits.
struct ForeignTensor {
  std::string dtype;  // as the format calls it
  TensorEntry entry;  // its bytes as they lie in the file; dtype is u8
};

// "F32 [2, 3]", for messages.
LOCKSTEP_API std::string describe(DType dtype, std::span<const std::int64_t> shape);
LOCKSTEP_API std::string describe(const ForeignTensor& tensor);
// A tensor's name between quotes, fit for a message.
LOCKSTEP_API std::string in_quotes(std::string_view name);

using Metadata = std::map<std::string, std::string>;

// Replaces `path` in one piece (see AtomicFile): whoever reads it sees the old file or the new one. A symbolic link is
// followed and stays; a pipe or a character device (/dev/stdout, /dev/null) is written to. The same tensors make the
// same bytes, in whatever order they are given.
// Throws InvalidArgument (a name twice, "__metadata__" or not UTF-8; bytes that don't fit the shape; no such folder; a
// pipe that nobody reads) and SystemError (disk full, no permission, a reader that takes nothing for 5 minutes).
LOCKSTEP_API void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                                    const Metadata& metadata = {});

// An open file, its header read and checked. Threads: const calls from any. Nothing is allocated by a length which the
// file does not have.
class LOCKSTEP_API SafetensorsFile {
 public:
  // Throws InvalidArgument if there is no such file, CorruptData with file, tensor and reason if it is not well-formed,
  // SystemError.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // By name: those that can be read, and those of another dtype than ours, whose bytes can.
  const std::map<std::string, TensorEntry>& tensors() const& { return tensors_; }
  const std::map<std::string, ForeignTensor>& foreign() const& { return foreign_; }
  const Metadata& metadata() const& { return metadata_; }
  // A temporary file gives them away: `for (auto& [name, entry] : SafetensorsFile(path).tensors())`.
  std::map<std::string, TensorEntry> tensors() && { return std::move(tensors_); }
  std::map<std::string, ForeignTensor> foreign() && { return std::move(foreign_); }
  Metadata metadata() && { return std::move(metadata_); }
  // InvalidArgument, with the nearest names, if it isn't there; with its dtype, if that is not one of ours.
  const TensorEntry& find(const std::string& name) const;
  // Copies a tensor's elements to `destination`, which has exactly entry.bytes. CorruptData if the file was cut since.
  void read(const TensorEntry& entry, std::span<std::byte> destination) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const UniqueFd> fd_;  // copies read the same
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, ForeignTensor> foreign_;
  Metadata metadata_;
};

// What reading a model's tensors from files may pass over, and what was passed over. One contract for load_weights and
// libtorch's load_state.

struct LoadOptions {
  // From a name of the model's to its name in the file. Empty: the same. Two may have one name in the file: tied
  // weights.
  //   [](const std::string& name) { return "module." + name; }   // what PyTorch's wrappers have saved
  std::function<std::string(const std::string& name)> name_in_file = {};
  // What the file lacks keeps its value: in a job rank 0's, on every rank.
  bool allow_missing = false;
  // The file may hold what the model lacks.
  bool allow_unexpected = false;
  // The file may hold tensors of bool and integers that the model lacks: masks, position ids.
  bool allow_unexpected_integers = false;
};

// What was read, as PyTorch's load_state_dict(strict=False) tells it. Names in order.
struct Loaded {
  std::map<std::string, std::string> metadata;  // the file's
  std::vector<std::string> missing;             // the model's names that the file lacks
  std::vector<std::string> unexpected;          // the file's names that the model lacks
};

}  // namespace lockstep::checkpoint
