// SPDX-License-Identifier: Apache-2.0
// Weights on disk, in safetensors files, as PyTorch has them: under the parameters' dotted names, a Linear's weight
// [out, in]. PyTorch loads the files of save_weights with strict=True into a module of the same layers and names, and
// the other way round; nn::Module::file_layouts() names the tensors that are transposed on the way. A shared parameter
// is written under each of its names, and read from any; if a file has several they must be equal.
#pragma once

#include <filesystem>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

// Writes the model's parameters; a reader sees the old file or the new one, never a part (checkpoint/safetensors.h).
// Throws InvalidArgument (no such folder), SystemError (disk full).
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model,
                               const checkpoint::Metadata& metadata = {});
// The same in a job, collective: rank 0 writes, everyone waits until the file is on its disk. A failure of rank 0
// reaches every rank: its own error there, PeerLost with rank 0's text and errno elsewhere, and the group stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model,
                               const std::shared_ptr<ProcessGroup>& group, const checkpoint::Metadata& metadata = {});

// Reads the model's parameters. All or nothing: the file must hold exactly the model's names, with its shapes and
// dtypes, but for what `options` allows; else InvalidArgument lists what is missing, unexpected or different and
// nothing was changed. CorruptData if the file is damaged. `path`: a safetensors file, an index of several
// (NAME.safetensors.index.json), or a folder that holds one index, else one file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             const checkpoint::LoadOptions& options = {});
// The same in a job, collective: rank 0 reads, so that the others' hosts need no copy of the file, and all return the
// same. A failure of rank 0 reaches every rank as that of save_weights does.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             const std::shared_ptr<ProcessGroup>& group,
                                             const checkpoint::LoadOptions& options = {});
// The metadata alone, to build the model from.
LOCKSTEP_API checkpoint::Metadata read_weights_metadata(const std::filesystem::path& path);

}  // namespace lockstep
