// SPDX-License-Identifier: Apache-2.0
// Saves and loads weights in safetensors files with PyTorch's names and layouts: the parameters' dotted names, and a
// Linear's weight as [out, in]. PyTorch loads the files of save_weights with strict=True into a module with equal
// layers and names, and load_weights reads PyTorch's files. nn::Module::file_layouts() says which tensors are
// transposed in files. A shared parameter is written under each of its names, and read from any of its names; if a file
// has several of these names, their tensors must be equal.
#pragma once

#include <filesystem>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class DistributedDataParallel;

// Writes the model's parameters to a file. A reader sees the old file or the whole new file (checkpoint/safetensors.h).
// Throws InvalidArgument if the folder does not exist, and SystemError if the disk is full.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model,
                               const checkpoint::Metadata& metadata = {});
// Writes the model's parameters in a job: rank 0 writes, and every rank waits until the file is on rank 0's disk. The
// call is collective. If rank 0 fails, rank 0 throws its own error, every other rank throws PeerLost with rank 0's text
// and errno, and the group stays usable.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const nn::Module& model, ProcessGroup& group,
                               const checkpoint::Metadata& metadata = {});

// Writes the model that `ddp` trains, as the function above does, with ddp's group.
LOCKSTEP_API void save_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                               const checkpoint::Metadata& metadata = {});

// Reads the model's parameters, all or nothing. The file must hold exactly the model's names, with the model's shapes
// and dtypes, except for differences that `options` allow. Otherwise the function throws InvalidArgument, which lists
// the missing, unexpected and different tensors, and has changed nothing. Throws CorruptData if the file is damaged.
//
// `path` is a safetensors file, an index of several files (NAME.safetensors.index.json), or a folder. The folder must
// hold one index, or, without an index, one safetensors file.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             const checkpoint::LoadOptions& options = {});
// Reads the model's parameters in a job: rank 0 reads, so other hosts need no copy of the file, and all ranks return
// equal results. The call is collective. If rank 0 fails, every rank throws as in save_weights.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                             ProcessGroup& group, const checkpoint::LoadOptions& options = {});
// Reads the parameters of the model that `ddp` trains, as the function above does, with ddp's group.
LOCKSTEP_API checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                                             const checkpoint::LoadOptions& options = {});
// Reads only the metadata, from which a program can build the model.
LOCKSTEP_API checkpoint::Metadata read_weights_metadata(const std::filesystem::path& path);

}  // namespace lockstep
