// SPDX-License-Identifier: Apache-2.0
// save_weights() and load_weights() save and load weights in safetensors files with PyTorch's names and layouts: the
// parameters' dotted names, and a Linear's weight as [out, in]. PyTorch loads the files of save_weights() with
// strict=True into a module with equal layers and names, and load_weights() reads PyTorch's files. The function
// nn::Module::file_layouts() says which tensors files store transposed. A file of save_weights() has a shared parameter
// under each of the parameter's names, but load_weights() needs only one of these names. If a file has several names of
// a shared parameter, the tensors under these names must be equal.
#pragma once

#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class DistributedDataParallel;

// Writes the model's parameters to a file. A process that opens the file during the call gets either the old file or
// the complete new file (checkpoint/safetensors.h). Throws InvalidArgument if the folder does not exist, and
// SystemError if the disk is full.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model,
                               const checkpoint::Metadata& metadata = {});
// Writes the model's parameters to a file on rank 0, and waits on every rank until the file is on rank 0's disk. The
// call is collective. If rank 0 can't write the file, rank 0 throws the error, and every other rank throws PeerLost
// with the text and errno of rank 0's error. The group stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// Like the function above, but writes the parameters of the model that `ddp` trains, and uses ddp's group.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                               const checkpoint::Metadata& metadata = {});

// Reads the model's parameters, all or nothing. The tensors in the file must have exactly the names, shapes and dtypes
// of the model's parameters, but `options` may allow differences. Throws InvalidArgument, and changes nothing, if the
// file has a difference that `options` does not allow. The exception's message lists the missing, unexpected and
// different tensors. Throws CorruptData if the file is damaged.
//
// `path` is a safetensors file, an index of several files (NAME.safetensors.index.json), or a folder. A folder must
// hold exactly one index, or no index and exactly one safetensors file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             const checkpoint::LoadOptions& options = {});
// Reads the file on rank 0 and sends the parameters to all ranks, so other hosts need no copy of the file; all ranks
// return equal results. The call is collective. If rank 0 can't load the file, rank 0 throws the error, and every other
// rank throws PeerLost with the text and errno of rank 0's error. The group stays usable.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Like the function above, but reads the parameters of the model that `ddp` trains, and uses ddp's group.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                                             const checkpoint::LoadOptions& options = {});
// Reads only the file's metadata, from which a program can build the model.
LOCKSTEP_API checkpoint::Metadata read_weights_metadata(const std::filesystem::path& path);

}  // namespace lockstep
