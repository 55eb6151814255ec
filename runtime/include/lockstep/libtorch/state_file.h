// SPDX-License-Identifier: Apache-2.0
// Saves and loads the parameters and buffers of a module (itself, a shared_ptr or a holder) in safetensors files, under
// their dotted names: PyTorch's safetensors.torch.load_file reads them as a state_dict.
//
// A tied tensor is written under each of its names, and read from any; if a file has several of them, they must be
// equal. bool is written as uint8, which readers convert back; other dtypes that lockstep has no name for (int16,
// complex) are refused.
#pragma once

#include <concepts>
#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/module_ref.h"

namespace lockstep::libtorch {

// Writes all of it or nothing: a reader sees the old file or the new one. Throws InvalidArgument (no such folder, a
// dtype without a name), SystemError (disk full).
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module,
                               const checkpoint::Metadata& metadata = {});
// Collective. As above, in a job: rank 0 writes, and every rank waits until the file is there. A failure of rank 0
// reaches every rank: its own error there, PeerLost with rank 0's text and errno elsewhere, and the group stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// The module that `ddp` trains, in its group.
template <std::derived_from<::torch::nn::Module> Net>
void save_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                  const checkpoint::Metadata& metadata = {}) {
  save_weights(path, ModuleRef(ddp.module()), *ddp.group(), metadata);
}

// Reads into the module's own tensors, all or nothing. The file must hold exactly the module's names, with its shapes
// and dtypes, except for what `options` allow; otherwise InvalidArgument lists what is missing, unexpected or
// different. CorruptData if the file is damaged. `path` is a safetensors file, an index of several
// (NAME.safetensors.index.json), or a folder that holds one index, or without an index one file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             const checkpoint::LoadOptions& options = {});
// Collective. As above, in a job: rank 0 reads and sends the tensors to all ranks, and all return the same. A failure
// of rank 0 reaches every rank as with save_weights.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Into the module that `ddp` trains, in its group.
template <std::derived_from<::torch::nn::Module> Net>
checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                                const checkpoint::LoadOptions& options = {}) {
  return load_weights(path, ModuleRef(ddp.module()), *ddp.group(), options);
}

}  // namespace lockstep::libtorch
