// SPDX-License-Identifier: Apache-2.0
// The tensors of a snapshot's items, whole, whether a file has them whole or several have their slices.
//
// Threads: one. Failure: of SafetensorsFile.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "runtime/checkpoint/snapshot/manifest.h"

namespace lockstep::checkpoint {

// The open files of one snapshot.
class SnapshotFiles {
 public:
  explicit SnapshotFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const SafetensorsFile& open(const std::string& name);
  // The item's tensors; each of a file that has it whole is one slice. Empty for an item without tensors.
  std::vector<SlicedTensor> tensors_of(const ManifestItem& item);
  // A slice of `tensor`; `destination` has exactly its bytes.
  void read(const SlicedTensor& tensor, const TensorSlice& slice, std::span<std::byte> destination);
  // CorruptData unless file `name` has those slices of the manifest's that lie in it.
  void check_slices(const Manifest& manifest, const std::string& name);

 private:
  std::filesystem::path folder_;
  std::map<std::string, SafetensorsFile> files_;
};

// Fills `whole` with the elements, row-major as `tensor.shape` says, by one call of `read` for each slice, in order.
// A transposed one takes as much memory again.
void read_whole(const SlicedTensor& tensor, std::span<std::byte> whole,
                const std::function<void(const TensorSlice& slice, std::span<std::byte> destination)>& read);
// read_whole() from the files of a snapshot that has all of them.
std::vector<std::byte> read_whole(const SlicedTensor& tensor, SnapshotFiles& files);

}  // namespace lockstep::checkpoint
