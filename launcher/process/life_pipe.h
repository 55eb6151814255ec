// SPDX-License-Identifier: Apache-2.0
// A pipe that ends with this process: it never carries bytes, and all ranks have its read end.
#pragma once

#include <string>

#include "launcher/base/system.h"

namespace lockstep::launcher {

class LifePipe {
 public:
  // Throws SystemError.
  LifePipe();

  // The read end for the ranks, with a number that programs don't use explicitly.
  int rank_end() const { return rank_end_.get(); }
  const Pipe& pipe() const { return pipe_; }
  // "FD:INODE", unique among the launchers on a host: LOCKSTEP_LAUNCHER_FD.
  const std::string& name() const { return name_; }

 private:
  Pipe pipe_;
  UniqueFd rank_end_;
  std::string name_;
};

}  // namespace lockstep::launcher
