// SPDX-License-Identifier: Apache-2.0
// Reads and writes named tensors in a file, in the safetensors format, which users of PyTorch, JAX and Rust also use.
// Source: https://github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
//
//   8 bytes   N, the length of the header, unsigned little-endian; at most 100 000 000
//   N bytes   JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...,
//             "__metadata__": {"key": "text", ...}}, padded with spaces
//   the rest  the tensors' elements, row-major, little-endian; offsets count from here, without holes or overlaps
//
// This header knows memory, not tensors: a tensor is {name, dtype, shape, bytes}.
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
  std::uint64_t offset = 0;  // place of its first byte in the file
  std::uint64_t bytes = 0;
};

// A tensor of a dtype that the format has and lockstep lacks: BOOL, I8, I16, U16, U32, U64, C64, and those of 4, 6 and
// 8 bits.
struct ForeignTensor {
  std::string dtype;  // the format's name
  TensorEntry entry;  // its bytes as they lie in the file; dtype is u8
};

// A text for messages: "F32 [2, 3]".
LOCKSTEP_API std::string describe(DType dtype, std::span<const std::int64_t> shape);
LOCKSTEP_API std::string describe(const ForeignTensor& tensor);
// A tensor's name between quotes, printable in a message.
LOCKSTEP_API std::string in_quotes(std::string_view name);

using Metadata = std::map<std::string, std::string>;

// Writes the tensors, and replaces `path` atomically (see AtomicFile): a reader sees the old file or the new one. It
// follows a symbolic link, which stays, and writes into a pipe or a character device (/dev/stdout, /dev/null). The same
// tensors make the same bytes, in any order of the arguments.
//
// Throws InvalidArgument (a name twice, "__metadata__" or not UTF-8; bytes that don't fit the shape; no such folder; a
// pipe that nobody reads) and SystemError (disk full, no permission, a reader that takes nothing for 5 minutes).
LOCKSTEP_API void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                                    const Metadata& metadata = {});

// An open file whose header was read and checked.
// Threads: const calls from any thread. A length in the file that exceeds the file allocates nothing.
class LOCKSTEP_API SafetensorsFile {
 public:
  // Opens and checks a file. Throws InvalidArgument if there is no such file, CorruptData with file, tensor and reason
  // if it is not well-formed, SystemError.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // The tensors by name: those that lockstep can read, and those of a foreign dtype, whose bytes it can read.
  const std::map<std::string, TensorEntry>& tensors() const& { return tensors_; }
  const std::map<std::string, ForeignTensor>& foreign() const& { return foreign_; }
  const Metadata& metadata() const& { return metadata_; }
  // A temporary file moves them out: `for (auto& [name, entry] : SafetensorsFile(path).tensors())`.
  std::map<std::string, TensorEntry> tensors() && { return std::move(tensors_); }
  std::map<std::string, ForeignTensor> foreign() && { return std::move(foreign_); }
  Metadata metadata() && { return std::move(metadata_); }
  // The tensor of a name. InvalidArgument, with the nearest names, if it isn't there; with its dtype, if that is
  // foreign.
  const TensorEntry& find(const std::string& name) const;
  // Copies a tensor's elements to `destination`, which has exactly entry.bytes. CorruptData if the file has become
  // shorter.
  void read(const TensorEntry& entry, std::span<std::byte> destination) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const UniqueFd> fd_;  // copies share it
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, ForeignTensor> foreign_;
  Metadata metadata_;
};

// LoadOptions says which differences reading a model's tensors accepts, and Loaded which ones it found. Both engines'
// load_weights share them.

struct LoadOptions {
  // A function from a name in the model to its name in the file. Empty: the same name. Two names in the model may have
  // one name in the file: tied weights.
  //   [](const std::string& name) { return "module." + name; }   // PyTorch's wrappers saved such names
  std::function<std::string(const std::string& name)> name_in_file = {};
  // Whether the file may lack what the model has, which then keeps its value: in a job rank 0's, on every rank.
  bool allow_missing = false;
  // Whether the file may hold what the model lacks.
  bool allow_unexpected = false;
  // Whether the file may hold tensors of bool and integers that the model lacks: masks, position ids.
  bool allow_unexpected_integers = false;
};

// The result of reading, as PyTorch's load_state_dict(strict=False) reports it. Names are in order.
struct Loaded {
  std::map<std::string, std::string> metadata;  // the file's
  std::vector<std::string> missing;             // the model's names that the file lacks
  std::vector<std::string> unexpected;          // the file's names that the model lacks
};

}  // namespace lockstep::checkpoint
