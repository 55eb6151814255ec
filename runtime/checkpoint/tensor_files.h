// SPDX-License-Identifier: Apache-2.0
// The tensors of one safetensors file, or of several with an index: how Hugging Face and others cut large models.
//
// The index is JSON, "NAME.safetensors.index.json": {"weight_map": {"TENSOR": "FILE", ...}, "metadata": {...}}, its
// files beside it. Source: https://huggingface.co/docs/transformers/main/en/big_models, "Sharded checkpoints".
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/internal_api.h"

namespace lockstep::checkpoint {

// Threads: const calls from any.
class LOCKSTEP_INTERNAL_API TensorFiles {
 public:
  // `path`: a safetensors file, an index (its name ends in .json), or a folder that holds exactly one index, else
  // exactly one safetensors file. Throws InvalidArgument if such a file is missing, or if several are there to choose
  // from; CorruptData with file, tensor and reason; SystemError.
  explicit TensorFiles(std::filesystem::path path);

  // The file or the index.
  const std::filesystem::path& path() const { return path_; }
  // The tensors of all files, by name; with an index those that it lists.
  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, ForeignTensor>& foreign() const { return foreign_; }
  // The file's texts; with an index its own texts, and those on which all files agree.
  const Metadata& metadata() const { return metadata_; }
  // Copies the elements of tensor `name`, one of tensors() or foreign(), to `destination`, which has exactly its bytes.
  void read(const std::string& name, std::span<std::byte> destination) const;

 private:
  void open_one();
  void open_index();

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> file_of_;  // by tensor
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, ForeignTensor> foreign_;
  Metadata metadata_;
};

}  // namespace lockstep::checkpoint
