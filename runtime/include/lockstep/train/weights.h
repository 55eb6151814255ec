// SPDX-License-Identifier: Apache-2.0
// save_weights() and load_weights() save and load weights in safetensors files with PyTorch's names and layouts: the
// parameters' dotted names, and a Linear's weight as [out, in]. PyTorch loads the files of save_weights() with
// strict=True into a module with equal layers and names, and load_weights() reads PyTorch's files. The function
// nn::Module::file_layouts() says which tensors files store transposed. A shared parameter is written under each of its
// names, and read from any of its names. If a file has several names of a shared parameter, the tensors under these
// names must be equal.
#pragma once

#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class DistributedDataParallel;

// Writes the model's parameters to a file. A reader of the file sees the old file or the whole new file
// (checkpoint/safetensors.h). Throws InvalidArgument if the folder does not exist, and SystemError if the disk is full.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model,
                               const checkpoint::Metadata& metadata = {});
// Writes the model's parameters to a file on rank 0, and waits on every rank until the file is on rank 0's disk. The
// call is collective. If rank 0 fails, rank 0 throws its own error, and every other rank throws PeerLost with rank 0's
// text and errno. The group stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// Writes the parameters of the model that `ddp` trains, as the function above does with ddp's group.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                               const checkpoint::Metadata& metadata = {});

// Reads the model's parameters, all or nothing. The file must hold exactly the model's names, with the model's shapes
// and dtypes; `options` may allow differences. Throws InvalidArgument, and changes nothing, if the file differs from
// the model in any other way. The exception's message lists the missing, unexpected and different tensors. Throws
// CorruptData if the file is damaged.
//
// `path` is a safetensors file, an index of several files (NAME.safetensors.index.json), or a folder. A folder must
// hold one index, or, without an index, one safetensors file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             const checkpoint::LoadOptions& options = {});
// Reads the file on rank 0 and sends the parameters to all ranks, so other hosts need no copy of the file; all ranks
// return equal results. The call is collective. If rank 0 fails, rank 0 throws its own error, and every other rank
// throws PeerLost with rank 0's text and errno. The group stays usable.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Reads the parameters of the model that `ddp` trains, as the function above does with ddp's group.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                                             const checkpoint::LoadOptions& options = {});
// Reads only the file's metadata, from which a program can build the model.
LOCKSTEP_API checkpoint::Metadata read_weights_metadata(const std::filesystem::path& path);

}  // namespace lockstep
