// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/data_loader.h"

#include <chrono>
#include <future>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::libtorch {

::torch::data::DataLoaderOptions require_common(::torch::data::DataLoaderOptions options) {
  if (options.drop_last()) {
    throw InvalidArgument(
        "DataLoader: drop_last of torch's options counts the rows of one rank, and would drop a batch on some ranks "
        "only; give it to the sampler");
  }
  if (!options.enforce_ordering()) {
    throw InvalidArgument(
        "DataLoader: without enforce_ordering nobody knows which batches were handed out; leave it on");
  }
  return options;
}

namespace detail {

void leave_behind(std::shared_ptr<void> loader) {
  std::promise<void> over;
  const std::future<void> ended = over.get_future();
  start_quiet_thread(
      [loader = std::move(loader), over = std::move(over)]() mutable {
        loader.reset();
        over.set_value();
      },
      "lockstep-data")
      .detach();
  if (ended.wait_for(std::chrono::seconds(1)) == std::future_status::ready) return;
  log_warn("data: the workers of a DataLoader did not come back from the dataset within 1 s and are left behind");
}

}  // namespace detail

}  // namespace lockstep::libtorch
