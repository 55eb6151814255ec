// SPDX-License-Identifier: Apache-2.0
// Shared memory without a name: a memfd, and the mapping of it.
//
// A memfd leaves nothing behind, however its processes end, and does not count against the size of /dev/shm. Its pages
// are committed when it is made (so that a container's limit is an error here, not a bus error later), and its size is
// sealed (so that no peer can take pages away).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace lockstep::shm {

// Makes a sealed memfd of `bytes`, rounded up to pages, all zero. `name` shows in /proc/PID/maps only.
// Throws BackendUnavailable with the amount and the remedy if there is not so much memory.
UniqueFd create_memory(const std::string& name, std::size_t bytes);

// One mapping per memfd and process, however many of its ranks are threads here: ThreadSanitizer then sees their
// accesses meet, and the record locks that tell the living from the dead (liveness.h), which a process loses with the
// first descriptor of the file that it closes, keep all of its descriptors until the last of its ranks has gone.
class Mapping {
 public:
  // Maps all of the memfd. Takes the descriptor: it is kept if another rank of this process has mapped the memfd
  // before. Throws BackendUnavailable if it can't be mapped, CorruptData if it is shorter than `bytes`.
  static std::shared_ptr<Mapping> of(UniqueFd fd, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  Mapping(UniqueFd fd, std::byte* data, std::size_t bytes);

  UniqueFd fd_;
  std::vector<UniqueFd> duplicates_;  // of other ranks here; the registry's mutex guards it
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace lockstep::shm
