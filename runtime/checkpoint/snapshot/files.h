// SPDX-License-Identifier: Apache-2.0
// Small files and the names of folders, as snapshots read and write them.
//
// Failure: CorruptData if the disk has lost data (the file is not there, EIO and the like), SystemError if this process
// can't look (no permission, no descriptors): only CorruptData says something about the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace lockstep::checkpoint {

// Limit for a manifest: more than anybody has written.
inline constexpr std::size_t kMostBytes = std::size_t{1} << 30;

// Both take a regular file: anything else by that name is CorruptData, and so is a file longer than `most`.
UniqueFd open_to_read(const std::filesystem::path& path);
std::string read_text(const std::filesystem::path& path, std::size_t most = kMostBytes);
// Whole or not at all, durable once this returns.
void write_text(const std::filesystem::path& path, std::string_view text);
// Throws the exception for `error_number`, with which `call` failed to read the path.
[[noreturn]] void fail_to_read(const std::filesystem::path& path, const char* call, int error_number);
// In order; none if the folder is not there.
std::vector<std::string> names_in(const std::filesystem::path& folder);
// "PREFIX123REST": takes prefix and number off the front of `name`.
std::optional<std::int64_t> take_number(std::string_view& name, std::string_view prefix);

}  // namespace lockstep::checkpoint
