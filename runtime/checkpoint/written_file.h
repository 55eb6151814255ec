// SPDX-License-Identifier: Apache-2.0
// write_safetensors() for callers that keep a record of the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "lockstep/checkpoint/safetensors.h"
#include "runtime/checkpoint/atomic_file.h"

namespace lockstep::checkpoint {

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;  // the whole file's
};

// write_safetensors() that returns the size and hash of the written file.
WrittenFile write_tensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                          const Metadata& metadata = {}, AtomicFile::Name name = AtomicFile::Name::of_lockstep);

}  // namespace lockstep::checkpoint
