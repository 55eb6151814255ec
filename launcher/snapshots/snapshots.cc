// SPDX-License-Identifier: Apache-2.0
#include "launcher/snapshots/snapshots.h"

#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/snapshots/difference.h"
#include "launcher/snapshots/export.h"
#include "launcher/snapshots/listing.h"

#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

int list(const SnapshotsOptions& options) {
  const snapshots::Listing listing = snapshots::list_folder(options.folder, options.verify);
  write_to_stdout(options.json ? snapshots::as_json(listing) : printable_lines(snapshots::as_text(listing)));
  return snapshots::has_unreadable(listing) ? 1 : 0;
}

int compare(const SnapshotsOptions& options) {
  const snapshots::Difference difference = snapshots::compare(options.folder, options.other);
  write_to_stdout(options.json ? snapshots::as_json(difference) : printable_lines(snapshots::as_text(difference)));
  return difference.is_equal() ? 0 : 1;
}

int write_out(const SnapshotsOptions& options) {
  std::string text;
  for (const auto& file : snapshots::export_items(options.folder, options.output)) text += file.string() + "\n";
  write_to_stdout(printable_lines(text));
  return 0;
}

}  // namespace

int snapshots_command(const SnapshotsOptions& options) {
  return exit_code_of("snapshots", kExitUsage, [&] {
    if (!options.output.empty()) return write_out(options);
    return options.other.empty() ? list(options) : compare(options);
  });
}

}  // namespace lockstep::launcher
