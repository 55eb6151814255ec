// SPDX-License-Identifier: Apache-2.0
// The symbols of a plug-in that brings a backend: its stamp, and one function.
#pragma once

#include "runtime/base/internal_api.h"
#include "runtime/base/plugin.h"
#include "runtime/comm/backend.h"

// Fills in the plug-in's backend. Called once.
extern "C" LOCKSTEP_INTERNAL_API void lockstep_plugin_backend(lockstep::Backend* backend);

namespace lockstep {
inline constexpr const char* kPluginBackendSymbol = "lockstep_plugin_backend";
}  // namespace lockstep

// Once, in a source of the plug-in: the text that base/plugin.h looks for in its file.
#define LOCKSTEP_PLUGIN_STAMP                    \
  extern "C" const char lockstep_plugin_stamp[]; \
  const char lockstep_plugin_stamp[] = "lockstep plug-in stamp: " LOCKSTEP_BUILD_STAMP;
