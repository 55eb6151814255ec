// SPDX-License-Identifier: Apache-2.0
// The error of a file or a folder that this process can't use: operation, path, reason and remedy.
#pragma once

#include <filesystem>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint {

// "OPERATION 'PATH': CALL: REASON; REMEDY", of an errno value. Without a call that part is left out.
SystemError file_error(std::string_view operation, const std::filesystem::path& path, std::string_view call,
                       int error_number);

}  // namespace lockstep::checkpoint
