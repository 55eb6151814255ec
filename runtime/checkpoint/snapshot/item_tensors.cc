// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/item_tensors.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "runtime/checkpoint/transpose.h"

namespace lockstep::checkpoint {

const SafetensorsFile& SnapshotFiles::open(const std::string& name) {
  return files_.try_emplace(name, folder_ / name).first->second;
}

std::vector<SlicedTensor> SnapshotFiles::tensors_of(const ManifestItem& item) {
  if (!item.tensors) return item.sliced;
  std::vector<SlicedTensor> tensors;
  for (const auto& [name, entry] : open(*item.tensors).tensors()) {
    SlicedTensor tensor{.name = name, .dtype = entry.dtype, .shape = entry.shape};
    tensor.slices.push_back({.file = *item.tensors, .begin = 0, .end = *tensor.count()});
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void SnapshotFiles::read(const SlicedTensor& tensor, const TensorSlice& slice, std::span<std::byte> destination) {
  const SafetensorsFile& file = open(slice.file);
  file.read(file.find(tensor.name), destination);
}

void SnapshotFiles::check_slices(const Manifest& manifest, const std::string& name) {
  for (const ManifestItem& item : manifest.items) {
    for (const SlicedTensor& tensor : item.sliced) {
      for (const TensorSlice& slice : tensor.slices) {
        if (slice.file != name) continue;
        const auto& tensors = open(name).tensors();
        const auto found = tensors.find(tensor.name);
        const std::vector<std::int64_t> wanted{slice.end - slice.begin};
        if (found != tensors.end() && found->second.dtype == tensor.dtype && found->second.shape == wanted) continue;
        throw CorruptData(
            fmt::format("the snapshot's file {} lacks a slice {} of tensor {} of item {}, which the manifest lists in "
                        "this file; the file is damaged: use another snapshot",
                        name, describe(tensor.dtype, wanted), in_quotes(tensor.name), in_quotes(item.name)));
      }
    }
  }
}

void read_whole(const SlicedTensor& tensor, std::span<std::byte> whole,
                const std::function<void(const TensorSlice&, std::span<std::byte>)>& read) {
  const std::size_t width = size_of(tensor.dtype);
  for (const TensorSlice& slice : tensor.slices) {
    read(slice, whole.subspan(static_cast<std::size_t>(slice.begin) * width,
                              static_cast<std::size_t>(slice.end - slice.begin) * width));
  }
  // Once all slices are there: each is contiguous in the transposed matrix only.
  if (tensor.is_transposed) transpose(whole, tensor.shape[1], tensor.shape[0], width);
}

std::vector<std::byte> read_whole(const SlicedTensor& tensor, SnapshotFiles& files) {
  std::vector<std::byte> whole(static_cast<std::size_t>(*tensor.count()) * size_of(tensor.dtype));
  read_whole(tensor, whole, [&](const TensorSlice& slice, std::span<std::byte> destination) {
    files.read(tensor, slice, destination);
  });
  return whole;
}

}  // namespace lockstep::checkpoint
