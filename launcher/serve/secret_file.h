// SPDX-License-Identifier: Apache-2.0
// A secret of the launcher's own making, where the clients of its store can read it.
#pragma once

#include <string>

#include "lockstep/base/environment.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {

// A new file that only this user can read (mode 0600), with the secret in hex digits. Removed when this object goes; a
// kill -9 leaves it, and the secret in it opens nothing any more.
class SecretFile {
 public:
  // In XDG_RUNTIME_DIR, else TMPDIR, else /tmp. Throws SystemError with the path.
  SecretFile(const store::Secret& secret, const Environment& environment);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::launcher
