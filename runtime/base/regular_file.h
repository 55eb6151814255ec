// SPDX-License-Identifier: Apache-2.0
// Files by a name that others may have taken: a pipe there would make open(2) wait for ever, a device never ends, and
// a link leads somewhere else.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "runtime/base/unique_fd.h"

namespace lockstep {

// Throws InvalidArgument, which says what `path` names, unless that is a regular file or does not exist. A link is
// followed or, without `follow`, refused.
void require_regular(const std::string& path, bool follow = false);

// open(2) of a regular file, without waiting, close-on-exec. `flags` with O_NOFOLLOW refuse a link: for files of
// lockstep's own. Throws as require_regular(). Empty, with errno, if open(2) fails.
UniqueFd open_regular(const std::string& path, int flags, mode_t mode = 0666);

// All of a regular file. Throws as require_regular(), InvalidArgument if it has more than `most` bytes, SystemError.
std::string read_regular(const std::string& path, std::size_t most);

}  // namespace lockstep
