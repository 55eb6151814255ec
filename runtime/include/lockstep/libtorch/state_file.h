// SPDX-License-Identifier: Apache-2.0
// save_weights() and load_weights() save and load a module's parameters and buffers in a safetensors file, under their
// dotted names. PyTorch's safetensors.torch.load_file reads a file of save_weights() as a state_dict.
//
// A tied tensor is written under each of its names, and read from any of these names. If a file has several names of a
// tied tensor, the tensors under these names must be equal. A bool tensor is written as uint8, which load_weights() and
// PyTorch convert back to bool. For a tensor of any other dtype that lockstep has no name for (int16, complex),
// save_weights() and load_weights() throw InvalidArgument.
#pragma once

#include <concepts>
#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/module_ref.h"

namespace lockstep::libtorch {

// Writes the module's weights to a file, wholly or not at all: a reader sees the old file or the whole new file.
// Throws InvalidArgument if the folder does not exist or lockstep has no name for a dtype, and SystemError if the disk
// is full.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module,
                               const checkpoint::Metadata& metadata = {});
// Writes the file on rank 0, and waits on every rank until the file is written. The call is collective. If rank 0
// fails, rank 0 throws its own error, and the other ranks throw PeerLost with rank 0's text and errno. The group
// stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// Writes the weights of the module that `ddp` trains; the call is collective in ddp's group.
template <std::derived_from<::torch::nn::Module> Net>
void save_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                  const checkpoint::Metadata& metadata = {}) {
  save_weights(path, ModuleRef(ddp.module()), *ddp.group(), metadata);
}

// Reads the file's tensors into the module's own tensors, either all tensors or none. The file must hold exactly the
// module's names, with the module's shapes and dtypes; `options` may allow differences. Throws InvalidArgument, which
// lists the missing, unexpected and different tensors, if the file differs from the module in any other way. Throws
// CorruptData if the file is damaged.
//
// `path` is a safetensors file, an index of several files (NAME.safetensors.index.json), or a folder. A folder must
// hold one index, or, without an index, one safetensors file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             const checkpoint::LoadOptions& options = {});
// Reads the file on rank 0 and sends the tensors to all ranks; all ranks return equal results. The call is collective.
// If rank 0 fails, rank 0 throws its own error, and the other ranks throw PeerLost with rank 0's text and errno. The
// group stays usable.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Reads weights into the module that `ddp` trains; the call is collective in ddp's group.
template <std::derived_from<::torch::nn::Module> Net>
checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                                const checkpoint::LoadOptions& options = {}) {
  return load_weights(path, ModuleRef(ddp.module()), *ddp.group(), options);
}

}  // namespace lockstep::libtorch
