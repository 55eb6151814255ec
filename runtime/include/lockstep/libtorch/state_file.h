// SPDX-License-Identifier: Apache-2.0
// The parameters and buffers of a module (itself, a shared_ptr or a holder) on disk, in safetensors files, under their
// dotted names: PyTorch's safetensors.torch.load_file reads them as a state_dict.
//
// A tied tensor is written under each of its names, and read from any; if a file has several they must be equal.
// bool is written as uint8, which the file's readers convert back; other dtypes that lockstep has no name for (int16,
// complex) are refused.
#pragma once

#include <filesystem>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/libtorch/module_ref.h"

namespace lockstep::libtorch {

// Writes all of it or nothing: a reader sees the old file or the new one. Throws InvalidArgument (no such folder, a
// dtype without a name), SystemError (disk full).
LOCKSTEP_API void save_state(const std::filesystem::path& path, const ModuleRef& module,
                             const checkpoint::Metadata& metadata = {});
// The same in a job, collective: rank 0 writes, everyone waits until the file is there. A failure of rank 0 reaches
// every rank: its own error there, PeerLost with rank 0's text and errno elsewhere, and the group stays usable.
LOCKSTEP_API void save_state(const std::filesystem::path& path, const ModuleRef& module,
                             const std::shared_ptr<ProcessGroup>& group, const checkpoint::Metadata& metadata = {});

// Reads into the module's own tensors, all or nothing: the file must hold exactly the module's names, with its shapes
// and dtypes, but for what `options` allows; else InvalidArgument says what is missing, unexpected or different.
// CorruptData if the file is damaged. `path`: a safetensors file, an index of several (NAME.safetensors.index.json), or
// a folder that holds one index, else one file.
LOCKSTEP_API checkpoint::Loaded load_state(const std::filesystem::path& path, const ModuleRef& module,
                                           const checkpoint::LoadOptions& options = {});
// The same in a job, collective: rank 0 reads and gives it to all, and all return the same. A failure of rank 0 reaches
// every rank as that of save_state does.
LOCKSTEP_API checkpoint::Loaded load_state(const std::filesystem::path& path, const ModuleRef& module,
                                           const std::shared_ptr<ProcessGroup>& group,
                                           const checkpoint::LoadOptions& options = {});

}  // namespace lockstep::libtorch
