// SPDX-License-Identifier: Apache-2.0
#include "launcher/snapshots/snapshots.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>

#include "launcher/snapshots/difference.h"
#include "launcher/snapshots/listing.h"
#include "launcher/system.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw SystemError("write to stdout", errno);
}

int list(const SnapshotsOptions& options) {
  const snapshots::Listing listing = snapshots::list_folder(options.folder, options.verify);
  print(options.json ? snapshots::as_json(listing) : printable_lines(snapshots::as_text(listing)));
  return snapshots::has_unreadable(listing) ? 1 : 0;
}

int compare(const SnapshotsOptions& options) {
  const snapshots::Difference difference = snapshots::compare(options.folder, options.other);
  print(options.json ? snapshots::as_json(difference) : printable_lines(snapshots::as_text(difference)));
  return difference.is_equal() ? 0 : 1;
}

}  // namespace

int snapshots_command(const SnapshotsOptions& options) {
  set_log_label("snapshots");
  try {
    return options.other.empty() ? list(options) : compare(options);
  } catch (const Error& error) {
    print_error(fmt::format("lockstep snapshots: {}", error.what()));
    return kExitUsage;
  }
}

}  // namespace lockstep::launcher
