// SPDX-License-Identifier: Apache-2.0
// A file with a secret that the launcher has generated, for the clients of its store.
#pragma once

#include <string>

#include "lockstep/base/environment.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {

// A new file that only this user can read (mode 0600), with the secret in hex digits. The destructor removes it; kill
// -9 leaves it behind, but its secret is of no use then.
class SecretFile {
 public:
  // Makes the file in XDG_RUNTIME_DIR, else TMPDIR, else /tmp. Throws SystemError with the path.
  SecretFile(const store::Secret& secret, const Environment& environment);
  ~SecretFile();
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::launcher
