// Where plug-ins would be: liblockstep_NAME.so beside the library, and in the folders of LOCKSTEP_PLUGIN_PATH.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/environment.h"

namespace lockstep::probe {

// In the order in which they are looked through.
std::vector<std::string> plugin_folders(const Environment& environment);

struct Plugin {
  std::string name;    // "cuda"
  std::string path;    // of its file, or empty
  std::string reason;  // why it can't be used
};

// The plug-ins that lockstep is designed for.
std::vector<Plugin> find_plugins(const std::vector<std::string>& folders);

}  // namespace lockstep::probe
