// SPDX-License-Identifier: Apache-2.0
// Saves and loads weights in safetensors files, as PyTorch has them: under the parameters' dotted names, a Linear's
// weight as [out, in]. PyTorch loads the files of save_weights with strict=True into a module of the same layers and
// names, and load_weights reads PyTorch's; nn::Module::file_layouts() names the tensors that are transposed. A shared
// parameter is written under each of its names, and read from any; if a file has several of them, they must be equal.
#pragma once

#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class DistributedDataParallel;

// Writes the model's parameters; a reader sees the old file or the new one, never a part (checkpoint/safetensors.h).
// Throws InvalidArgument (no such folder), SystemError (disk full).
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model,
                               const checkpoint::Metadata& metadata = {});
// Collective. As above, in a job: rank 0 writes, and every rank waits until the file is on rank 0's disk. A failure of
// rank 0 reaches every rank: its own error there, PeerLost with rank 0's text and errno elsewhere, and the group stays
// usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// The model that `ddp` trains, in its group.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                               const checkpoint::Metadata& metadata = {});

// Reads the model's parameters, all or nothing. The file must hold exactly the model's names, with its shapes and
// dtypes, except for what `options` allow; otherwise InvalidArgument lists what is missing, unexpected or different,
// and nothing has changed. CorruptData if the file is damaged. `path` is a safetensors file, an index of several
// (NAME.safetensors.index.json), or a folder that holds one index, or without an index one file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             const checkpoint::LoadOptions& options = {});
// Collective. As above, in a job: rank 0 reads, so other hosts need no copy of the file, and all ranks return the same.
// A failure of rank 0 reaches every rank as with save_weights.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Into the model that `ddp` trains, in its group.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                                             const checkpoint::LoadOptions& options = {});
// Reads only the metadata, from which a program can build the model.
LOCKSTEP_API checkpoint::Metadata read_weights_metadata(const std::filesystem::path& path);

}  // namespace lockstep
