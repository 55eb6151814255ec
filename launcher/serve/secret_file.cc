// SPDX-License-Identifier: Apache-2.0
#include "launcher/serve/secret_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {
namespace {

std::string folder(const Environment& environment) {
  for (const auto* name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    if (const auto value = environment.get(name); value && access(value->c_str(), W_OK | X_OK) == 0) return *value;
  }
  return "/tmp";
}

}  // namespace

SecretFile::SecretFile(const store::Secret& secret, const Environment& environment)
    : path_(folder(environment) + "/lockstep-store-XXXXXX") {
  const UniqueFd fd(mkostemp(path_.data(), O_CLOEXEC));  // mode 0600; never an existing file
  if (!fd)
    throw SystemError(
        fmt::format("can't make the file {} for the secret (set TMPDIR to a folder that can be written)", path_),
        errno);
  const std::string text = secret.hex() + "\n";
  const auto written = write(fd.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) {
    const int error = written < 0 ? errno : ENOSPC;
    unlink(path_.c_str());
    throw SystemError(fmt::format("can't write the secret to {}", path_), error);
  }
}

SecretFile::~SecretFile() {
  if (unlink(path_.c_str()) != 0 && errno != ENOENT) {
    log_warn(
        "can't remove the file {} with the store's secret: {}; remove it by hand (the secret opens nothing any more)",
        path_, errno_text(errno));
  }
}

}  // namespace lockstep::launcher
