// Weights on disk, in safetensors files, under the parameters' dotted names.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "runtime/comm/process_group.h"
#include "runtime/nn/module.h"

namespace lockstep {

using WeightsMetadata = std::map<std::string, std::string>;

// Writes the model's parameters; a reader sees the old file or the new one, never a part (checkpoint/safetensors.h).
// Throws InvalidArgument (no such folder), SystemError (disk full).
void save_weights(const std::filesystem::path& path, const nn::Module& model, const WeightsMetadata& metadata = {});
// The same in a job, collective: rank 0 writes, everyone waits until the file is on its disk. A failure of rank 0
// reaches every rank: its own error there, PeerLost with rank 0's text and errno elsewhere, and the group goes on
// (ddp/rank0.h).
void save_weights(const std::filesystem::path& path, const nn::Module& model,
                  const std::shared_ptr<ProcessGroup>& group, const WeightsMetadata& metadata = {});

// Reads the model's parameters and returns the file's metadata. All or nothing: the file must hold exactly the model's
// names, with its shapes and dtypes, else InvalidArgument lists what is missing, unexpected or different and nothing
// was changed. CorruptData if the file is damaged.
WeightsMetadata load_weights(const std::filesystem::path& path, const nn::Module& model);
// The same in a job, collective: rank 0 reads, so that the others' hosts need no copy of the file. A failure of rank 0
// reaches every rank as that of save_weights does.
WeightsMetadata load_weights(const std::filesystem::path& path, const nn::Module& model,
                             const std::shared_ptr<ProcessGroup>& group);
// The metadata alone, to build the model from.
WeightsMetadata read_weights_metadata(const std::filesystem::path& path);

}  // namespace lockstep
