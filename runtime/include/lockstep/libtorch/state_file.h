// SPDX-License-Identifier: Apache-2.0
// save_weights() and load_weights() save and load a module's parameters and buffers in a safetensors file, in which
// each tensor has its dotted name. PyTorch's safetensors.torch.load_file can read a file from save_weights(), and then
// returns a state_dict.
//
// save_weights() writes a tied tensor under each of the tensor's names, and load_weights() needs only one of these
// names in the file. If a file has several names of a tied tensor, the tensors under these names must be equal. A bool
// tensor is written as uint8; load_weights() and PyTorch convert the uint8 values back to bool. The functions
// save_weights() and load_weights() throw InvalidArgument for tensors of other dtypes that lockstep::DType lacks, such
// as int16 and complex.
#pragma once

#include <concepts>
#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "lockstep/libtorch/module_ref.h"

namespace lockstep::libtorch {

// Writes the module's weights to the file `path`. A process that opens `path` during the call gets either the old file
// or the complete new file. Throws InvalidArgument if the folder does not exist or a tensor's dtype is not supported,
// and SystemError if the disk is full.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module,
                               const checkpoint::Metadata& metadata = {});
// Writes the file on rank 0, and waits on every rank until the file is written. The call is collective. If rank 0 can't
// write the file, rank 0 throws the error, and the other ranks throw PeerLost with the text and errno of rank 0's
// error. The group stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const ModuleRef& module, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// Writes the weights of the module that `ddp` trains; the call is collective in ddp's group.
template <std::derived_from<::torch::nn::Module> Net>
void save_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                  const checkpoint::Metadata& metadata = {}) {
  save_weights(path, ModuleRef(ddp.module()), *ddp.group(), metadata);
}

// Reads the file's tensors into the module's own tensors, either all tensors or none. The file's tensors must have
// exactly the names, shapes and dtypes of the module's tensors, but `options` may allow differences. Throws
// InvalidArgument, which lists the missing, unexpected and different tensors, if the file has a difference that
// `options` does not allow. Throws CorruptData if the file is damaged.
//
// `path` is a safetensors file, an index of several files (NAME.safetensors.index.json), or a folder. A folder must
// hold exactly one index, or no index and exactly one safetensors file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             const checkpoint::LoadOptions& options = {});
// Reads the file on rank 0 and sends the tensors to all ranks; all ranks return equal results. The call is collective.
// If rank 0 can't load the file, rank 0 throws the error, and the other ranks throw PeerLost with the text and errno of
// rank 0's error. The group stays usable.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Reads weights into the module that `ddp` trains; the call is collective in ddp's group.
template <std::derived_from<::torch::nn::Module> Net>
checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel<Net>& ddp,
                                const checkpoint::LoadOptions& options = {}) {
  return load_weights(path, ModuleRef(ddp.module()), *ddp.group(), options);
}

}  // namespace lockstep::libtorch
