// SPDX-License-Identifier: Apache-2.0
// A world of ranks that are threads, with the plainest process group there can be: the last rank to arrive does the
// whole collective. It records what each rank started, in order.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "tests/support/error_of.h"

namespace lockstep::testing {

struct Started {
  std::string operation;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  std::ptrdiff_t offset = -1;  // in the rank's arena; -1 outside it
  std::optional<std::int64_t> weight;
  std::int64_t unit = 1;  // of the weight

  bool operator==(const Started&) const = default;
};

class FakeWorld {
 public:
  explicit FakeWorld(int size, std::chrono::nanoseconds timeout = std::chrono::seconds(20));
  int size() const;
  std::shared_ptr<ProcessGroup> group(int rank);
  // What `rank` has started so far. Call when its thread rests.
  std::vector<Started> started(int rank) const;
  store::Store& store();

  // Runs body(group) for every rank on a thread of its own. A rank that throws aborts the group, as the destructor of
  // its group would; returns what each rank threw.
  std::vector<std::exception_ptr> run_catching(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body);
  // The same, and throws the first of them.
  void run(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& body);

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace lockstep::testing
