// SPDX-License-Identifier: Apache-2.0
// Reads and writes files of named tensors in the safetensors format, which PyTorch, JAX and Rust also use.
// Source: https://github.com/huggingface/safetensors, README "Format" and safetensors/src/tensor.rs.
//
//   8 bytes   N, the length of the header, unsigned little-endian; at most 100 000 000
//   N bytes   JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...,
//             "__metadata__": {"key": "text", ...}}, padded with spaces
//   the rest  the tensors' elements, row-major, little-endian; offsets count from here, without holes or overlaps
//
// This header does not depend on a tensor class; the structs of this header describe a tensor by name, dtype, shape
// and bytes.
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

// TensorSource describes a tensor that write_safetensors() writes. The caller owns `bytes`, which holds the elements in
// row-major order.
struct TensorSource {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // empty for a scalar
  std::span<const std::byte> bytes;
};

// TensorEntry describes a tensor in a safetensors file.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // place of the tensor's first byte in the file
  std::uint64_t bytes = 0;
};

// ForeignTensor describes a tensor in a safetensors file if lockstep lacks the tensor's dtype (BOOL, I8, I16, U16, U32,
// U64, C64, or a float of 4, 6 or 8 bits).
struct ForeignTensor {
  std::string dtype;  // the format's name of the dtype
  TensorEntry entry;  // the place of the tensor's bytes in the file; the entry's dtype is u8
};

// Returns the text that describes a tensor in messages, such as "F32 [2, 3]".
LOCKSTEP_API std::string describe(DType dtype, std::span<const std::int64_t> shape);
LOCKSTEP_API std::string describe(const ForeignTensor& tensor);
// Returns the name of a tensor in quotes, converted to characters that a message can print.
LOCKSTEP_API std::string in_quotes(std::string_view name);

using Metadata = std::map<std::string, std::string>;

// Writes the tensors to a safetensors file, and replaces the file `path` atomically (see AtomicFile): a reader sees
// either the old file or the new file. If `path` is a symbolic link, write_safetensors() replaces the link's target and
// keeps the link. If `path` is a pipe or a character device (/dev/stdout, /dev/null), write_safetensors() writes the
// bytes into the pipe or device. The bytes of the file do not depend on the order of `tensors`.
//
// Throws InvalidArgument if a tensor's name occurs twice, is "__metadata__" or is not UTF-8, or if the number of a
// tensor's bytes doesn't fit the tensor's shape and dtype. Throws InvalidArgument if the folder of `path` doesn't
// exist, or if `path` is a pipe that no process reads. Throws SystemError if the disk is full, a permission is missing,
// or a pipe's reader reads nothing for 5 minutes.
LOCKSTEP_API void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                                    const Metadata& metadata = {});

// SafetensorsFile is an open safetensors file whose header has been read and checked.
// Threads: any thread may make const calls.
class LOCKSTEP_API SafetensorsFile {
 public:
  // Opens a file, and reads and checks its header. If a length in the header exceeds the file's size, the constructor
  // allocates no memory for this length. Throws InvalidArgument if the file doesn't exist, and SystemError if a
  // system call fails. Throws CorruptData if the file is not well-formed; the message names the file, the tensor and
  // the reason.
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // tensors() returns, by name, the tensors whose dtypes lockstep has; foreign() returns, by name, the tensors with
  // other dtypes. The function read() copies the bytes of a tensor of any dtype.
  const std::map<std::string, TensorEntry>& tensors() const& { return tensors_; }
  const std::map<std::string, ForeignTensor>& foreign() const& { return foreign_; }
  const Metadata& metadata() const& { return metadata_; }
  // On a temporary SafetensorsFile, tensors(), foreign() and metadata() return their results by value, so a loop may
  // iterate over the result of a temporary object: `for (auto& [name, entry] : SafetensorsFile(path).tensors())`.
  std::map<std::string, TensorEntry> tensors() && { return std::move(tensors_); }
  std::map<std::string, ForeignTensor> foreign() && { return std::move(foreign_); }
  Metadata metadata() && { return std::move(metadata_); }
  // Returns the entry of the tensor `name`. Throws InvalidArgument if the file has no tensor `name`; the message
  // lists the most similar names. Throws InvalidArgument if lockstep does not have the tensor's dtype; the message
  // names the dtype.
  const TensorEntry& find(const std::string& name) const;
  // Copies a tensor's elements from the file to `destination`, whose size must be entry.bytes. Throws CorruptData if
  // the file has become shorter since the file was opened.
  void read(const TensorEntry& entry, std::span<std::byte> destination) const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const UniqueFd> fd_;  // copies of this object share the descriptor
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, ForeignTensor> foreign_;
  Metadata metadata_;
};

// LoadOptions says which differences between a model and a file load_weights() accepts, and Loaded reports the
// differences that load_weights() found. The load_weights() for lockstep's own models and the load_weights() for
// LibTorch both use LoadOptions and Loaded.

struct LoadOptions {
  // The function that converts a tensor's name in the model to the tensor's name in the file. If `name_in_file` is
  // empty, a tensor has equal names in the model and in the file. `name_in_file` may return one name for two tensors of
  // the model that have tied weights.
  //   [](const std::string& name) { return "module." + name; }   // PyTorch's wrappers saved such names
  std::function<std::string(const std::string& name)> name_in_file = {};
  // If true, load_weights() accepts a file that lacks tensors of the model. A model's tensor that the file lacks keeps
  // its value; in a job with several ranks, every rank gets rank 0's value of the tensor.
  bool allow_missing = false;
  // If true, load_weights() accepts a file that holds tensors that the model lacks.
  bool allow_unexpected = false;
  // If true, load_weights() accepts a file that holds bool and integer tensors that the model lacks, such as masks and
  // position ids.
  bool allow_unexpected_integers = false;
};

// Loaded is the result of load_weights(), like the result of PyTorch's load_state_dict(strict=False). The names
// are sorted.
struct Loaded {
  std::map<std::string, std::string> metadata;  // the file's metadata
  std::vector<std::string> missing;             // names of the model that the file lacks
  std::vector<std::string> unexpected;          // names of the file that the model lacks
};

}  // namespace lockstep::checkpoint
