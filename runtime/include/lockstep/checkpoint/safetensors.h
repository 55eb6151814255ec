// SPDX-License-Identifier: Apache-2.0
// Reads and writes files of named tensors in the safetensors format, which PyTorch, JAX and Rust also use.
// Source: https://github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
//
//   8 bytes   N, the length of the header, unsigned little-endian; at most 100 000 000
//   N bytes   JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...,
//             "__metadata__": {"key": "text", ...}}, padded with spaces
//   the rest  the tensors' elements, row-major, little-endian; offsets count from here, without holes or overlaps
//
// This header does not depend on a tensor class: a tensor in it is {name, dtype, shape, bytes}.
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

// TensorSource is a tensor to write. The bytes are row-major and belong to the caller.
struct TensorSource {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // empty for a scalar
  std::span<const std::byte> bytes;
};

// TensorEntry describes a tensor in a file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // place of the tensor's first byte in the file
  std::uint64_t bytes = 0;
};

// ForeignTensor is a tensor of a dtype that the format has and lockstep lacks: BOOL, I8, I16, U16, U32, U64, C64, and
// the floats of 4, 6 and 8 bits.
struct ForeignTensor {
  std::string dtype;  // the format's name of the dtype
  TensorEntry entry;  // the place of the tensor's bytes in the file; the entry's dtype is u8
};

// Returns a text for messages: "F32 [2, 3]".
LOCKSTEP_API std::string describe(DType dtype, std::span<const std::int64_t> shape);
LOCKSTEP_API std::string describe(const ForeignTensor& tensor);
// Returns a tensor's name between quotes, printable in a message.
LOCKSTEP_API std::string in_quotes(std::string_view name);

using Metadata = std::map<std::string, std::string>;

// Writes the tensors, and replaces the file `path` atomically (see AtomicFile): a reader sees the old file or the new
// file. If `path` is a symbolic link, the link stays and its target is replaced. If `path` is a pipe or a character
// device (/dev/stdout, /dev/null), the bytes are written into it. Equal tensors make equal files, in any order of
// the arguments.
//
// Throws InvalidArgument if a name occurs twice, is "__metadata__" or is not UTF-8, or if a tensor's bytes don't fit
// its shape. Throws InvalidArgument if the folder doesn't exist, or if `path` is a pipe that nobody reads. Throws
// SystemError if the disk is full, a permission is missing, or a pipe's reader takes nothing for 5 minutes.
LOCKSTEP_API void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                                    const Metadata& metadata = {});

// SafetensorsFile is an open file whose header was read and checked.
// Threads: any thread may make const calls.
class LOCKSTEP_API SafetensorsFile {
 public:
  // Opens a file, and reads and checks its header. A length in the header that exceeds the file causes no allocation.
  // Throws InvalidArgument if the file doesn't exist, CorruptData with file, tensor and reason if the file is not
  // well-formed, and SystemError.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // tensors() returns the tensors of lockstep's dtypes, by name; foreign() returns the tensors of other dtypes, whose
  // bytes lockstep can read.
  const std::map<std::string, TensorEntry>& tensors() const& { return tensors_; }
  const std::map<std::string, ForeignTensor>& foreign() const& { return foreign_; }
  const Metadata& metadata() const& { return metadata_; }
  // On a temporary SafetensorsFile, tensors(), foreign() and metadata() move their results out: `for (auto& [name,
  // entry] : SafetensorsFile(path).tensors())`.
  std::map<std::string, TensorEntry> tensors() && { return std::move(tensors_); }
  std::map<std::string, ForeignTensor> foreign() && { return std::move(foreign_); }
  Metadata metadata() && { return std::move(metadata_); }
  // Returns the tensor of a name. Throws InvalidArgument, which lists the nearest names, if the file lacks the tensor,
  // and InvalidArgument, which names the dtype, if the tensor's dtype is foreign.
  const TensorEntry& find(const std::string& name) const;
  // Copies a tensor's elements to `destination`, which has exactly entry.bytes. Throws CorruptData if the file has
  // become shorter.
  void read(const TensorEntry& entry, std::span<std::byte> destination) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const UniqueFd> fd_;  // copies of this object share the descriptor
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, ForeignTensor> foreign_;
  Metadata metadata_;
};

// LoadOptions says which differences between model and file load_weights accepts, and Loaded reports the differences
// that load_weights found. The load_weights functions of both engines use these structs.

struct LoadOptions {
  // The function from a tensor's name in the model to its name in the file. If the function is empty, both names are
  // equal. Two names in the model may have one name in the file: tied weights.
  //   [](const std::string& name) { return "module." + name; }   // PyTorch's wrappers saved such names
  std::function<std::string(const std::string& name)> name_in_file = {};
  // If true, the file may lack tensors of the model. A tensor that the file lacks keeps its value; in a job every rank
  // gets rank 0's value.
  bool allow_missing = false;
  // If true, the file may hold tensors that the model lacks.
  bool allow_unexpected = false;
  // If true, the file may hold tensors of bool and integers that the model lacks: masks, position ids.
  bool allow_unexpected_integers = false;
};

// Loaded is the result of load_weights, as PyTorch's load_state_dict(strict=False) reports it. The names are sorted.
struct Loaded {
  std::map<std::string, std::string> metadata;  // the file's metadata
  std::vector<std::string> missing;             // names of the model that the file lacks
  std::vector<std::string> unexpected;          // names of the file that the model lacks
};

}  // namespace lockstep::checkpoint
