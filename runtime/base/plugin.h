// SPDX-License-Identifier: Apache-2.0
// Lockstep's own shared libraries that are loaded on demand: "liblockstep_NAME.so".
//
// Each carries the stamp of the build that made it: a text in its file, read before any of its code runs. A plug-in of
// another build is refused, since the two builds may lay out their objects differently. A loaded plug-in is never
// unloaded: the libraries it brings leave threads and exit handlers behind.
//
// Threads: any.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

// The version, compiler and sources of this build: "0.1.0 GNU-12.2.0 x86_64 1f0c...". Equal on two builds exactly if
// their libraries fit.
LOCKSTEP_INTERNAL_API std::string_view build_stamp();

// In a plug-in's file, its stamp follows this text and ends with a zero byte.
inline constexpr std::string_view kPluginStampMark = "lockstep plug-in stamp: ";

// The stamp in the file at `path`; nullopt if it has none. Throws SystemError if the file can't be read.
std::optional<std::string> stamp_of_file(const std::string& path);

// The folders in which plug-ins are looked for, in order: each folder of LOCKSTEP_PLUGIN_PATH (separated by ':'), the
// folder of `module` (a library or program), and "../lib" beside that.
std::vector<std::string> plugin_folders(const Environment& environment, const std::string& module);
// The file that this function's code was loaded from: the library, or a program that has it linked in.
std::string path_of_this_module();

struct LoadedPlugin {
  std::string path = {};     // the file that was found; empty if none was
  std::string problem = {};  // why it can't be used, without a remedy; empty if it can
  void* handle = nullptr;    // the result of dlopen(3)
  // With a problem: the shared library that it needs and this machine lacks ("libmpi.so.40"), if that is the problem.
  std::string missing_library = {};

  // The address of a symbol it must have. Throws BackendUnavailable.
  LOCKSTEP_INTERNAL_API void* symbol(const char* name) const;
};

// Finds liblockstep_NAME.so in the first of `folders` that has one, checks its stamp against `stamp` and loads it.
LoadedPlugin load_plugin(std::string_view name, std::span<const std::string> folders,
                         std::string_view stamp = build_stamp());

// The packages that a plug-in stands on, for its remedies: "libopenmpi3", "libopenmpi-dev".
struct PluginNeeds {
  std::string runs_with;
  std::string built_with;
};
// The plug-in `name` of this process: in plugin_folders() of LOCKSTEP_PLUGIN_PATH and this module. The result's
// `problem` names the plug-in and holds the remedy. A program that has the runtime linked in can load none: the plug-in
// stands on liblockstep.so, and the program would then have the runtime twice.
LOCKSTEP_INTERNAL_API LoadedPlugin load_own_plugin(std::string_view name, const PluginNeeds& needs);

}  // namespace lockstep
