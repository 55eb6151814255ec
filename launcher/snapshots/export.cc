// SPDX-License-Identifier: Apache-2.0
#include "launcher/snapshots/export.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/item_tensors.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::launcher::snapshots {

namespace fs = std::filesystem;
using checkpoint::SlicedTensor;

std::vector<fs::path> export_items(const fs::path& snapshot, const fs::path& folder) {
  const checkpoint::FoundSnapshot found = checkpoint::open_snapshot(snapshot);
  checkpoint::verify_snapshot(found);
  if (!checkpoint::names_in(folder).empty()) {
    throw InvalidArgument(
        fmt::format("the folder '{}' to export into is not empty; give a new folder for the files", folder.string()));
  }
  checkpoint::make_folders(folder);
  checkpoint::SnapshotFiles files(found.path);
  std::vector<fs::path> written;
  for (const checkpoint::ManifestItem& item : found.manifest->items) {
    const std::vector<SlicedTensor> tensors = files.tensors_of(item);
    if (tensors.empty()) continue;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<checkpoint::TensorSource> sources;
    for (const SlicedTensor& tensor : tensors) {
      bytes.push_back(checkpoint::read_whole(tensor, files));
      sources.push_back({tensor.name, tensor.dtype, tensor.shape, bytes.back()});
    }
    written.push_back(folder / (item.name + ".safetensors"));
    checkpoint::write_safetensors(
        written.back(), sources,
        {{"format", "pt"}, {"type", item.type}, {"values", checkpoint::to_text(item.values.front())}});
  }
  return written;
}

}  // namespace lockstep::launcher::snapshots
