// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/data_loader.h"

#include <fmt/format.h>

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
        "only; give drop_last to the sampler instead");
  }
  if (!options.enforce_ordering()) {
    throw InvalidArgument(
        "DataLoader: enforce_ordering is false, so that nobody knows which batches were handed out; leave "
        "enforce_ordering on");
  }
  return options;
}

namespace detail {

::torch::data::DataLoaderOptions torchs(const data::GroupLoaderOptions& options) {
  if (options.workers < 0 || options.prefetch < 1) {
    throw InvalidArgument(
        fmt::format("DataLoader: workers is {} and prefetch {}; give at least 0 workers and a prefetch of at least 1",
                    options.workers, options.prefetch));
  }
  const auto workers = static_cast<std::size_t>(options.workers);
  ::torch::data::DataLoaderOptions all;
  all.workers(workers).timeout(std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout));
  if (workers > 0) all.max_jobs(workers * static_cast<std::size_t>(options.prefetch));
  return all;
}

std::size_t require_size(std::optional<std::size_t> size) {
  if (size) return *size;
  throw InvalidArgument(
      "DataLoader: the dataset doesn't tell its size; give the loader a sampler, whose first argument is the number of "
      "samples");
}

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
  log_warn(
      "DataLoader: some of its workers have not returned from the dataset's read within 1 s, and their threads keep "
      "running; look at what the dataset waits for");
}

}  // namespace detail

}  // namespace lockstep::libtorch
