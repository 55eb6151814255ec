// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/findings.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

void throw_finding(const Finding& finding) {
  if (finding.kind == Finding::Kind::bad_norm) {
    throw Error(
        fmt::format("clip_grad_norm: the gradient's norm is {}; the first parameter with such a gradient is number {}. "
                    "Lower the learning rate, or look for a division by 0 or an overflow",
                    finding.norm, finding.position));
  }
  if (finding.what == IndexedBy::embedding) {
    throw InvalidArgument(
        fmt::format("embedding: index {} at position {} is not in [0, {}), the rows of the table; correct the index, "
                    "or make the table larger",
                    finding.value, finding.position, finding.limit));
  }
  throw InvalidArgument(
      fmt::format("cross_entropy: target {} of row {} is not in [0, {}) and not ignore_index {}; correct the target, "
                  "or give the model as many classes as the targets have",
                  finding.value, finding.position, finding.limit, finding.ignore));
}

void throw_findings(Kernels& kernels) {
  if (const auto finding = kernels.take_finding()) throw_finding(*finding);
}

}  // namespace lockstep
