// SPDX-License-Identifier: Apache-2.0
// A file in memory that other processes of this user find by the process that holds it and by its name: nothing is on
// disk, and nothing is left when its processes have ended.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/base/unique_fd.h"

namespace lockstep {

// Makes a file in memory, all zero. Returns an empty descriptor if the kernel refuses, or if the limit on files (ulimit
// -f) is lower than `bytes`: a file that grows beyond that limit, in memory too, would end the process with SIGXFSZ.
UniqueFd make_memory_file(const char* name, std::size_t bytes);

// The path of a file of that name that the process holds; empty if the process holds none or is another user's.
std::string memory_file_of(int pid, const char* name);

}  // namespace lockstep
