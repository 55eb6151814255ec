// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/data_loader.h"

#include "lockstep/base/error.h"

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

}  // namespace lockstep::libtorch
