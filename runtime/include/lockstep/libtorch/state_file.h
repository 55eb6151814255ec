// SPDX-License-Identifier: Apache-2.0
// Saves and loads the parameters and buffers of a module in safetensors files, under their dotted names; PyTorch's
// safetensors.torch.load_file reads such a file as a state_dict.
//
// A tied tensor is written under each of its names, and read from any of the names; if a file has several of the names,
// their tensors must be equal. bool is written as uint8, which readers convert back. Tensors of other dtypes that
// lockstep has no name for (int16, complex) throw InvalidArgument.
#pragma once

#include <concepts>
#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/module_ref.h"

namespace lockstep::libtorch {

// Writes the whole file or nothing: a reader sees the old file or the new file. Throws InvalidArgument (no such folder,
// a dtype without a name) and SystemError (disk full).
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module,
                               const checkpoint::Metadata& metadata = {});
// Writes the file on rank 0, and waits on every rank until the file is written. The call is collective. A failure of
// rank 0 reaches every rank: rank 0 throws its own error, and the other ranks throw PeerLost with rank 0's text and
// errno. The group stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// Writes the weights of the module that `ddp` trains; the call is collective in ddp's group.
template <std::derived_from<::torch::nn::Module> Net>
void save_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                  const checkpoint::Metadata& metadata = {}) {
  save_weights(path, ModuleRef(ddp.module()), *ddp.group(), metadata);
}

// Reads all tensors of the file into the module's own tensors, or changes none. The file must hold exactly the module's
// names, with its shapes and dtypes, except for what `options` allow; otherwise InvalidArgument lists the missing,
// unexpected and different tensors. Throws CorruptData if the file is damaged. `path` is a safetensors file, an index
// of several files (NAME.safetensors.index.json), or a folder that holds one index, or without an index one file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             const checkpoint::LoadOptions& options = {});
// Reads the file on rank 0 and sends the tensors to all ranks; all ranks return the same value. The call is collective.
// A failure of rank 0 reaches every rank as with save_weights.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Reads weights into the module that `ddp` trains; the call is collective in ddp's group.
template <std::derived_from<::torch::nn::Module> Net>
checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                                const checkpoint::LoadOptions& options = {}) {
  return load_weights(path, ModuleRef(ddp.module()), *ddp.group(), options);
}

}  // namespace lockstep::libtorch
