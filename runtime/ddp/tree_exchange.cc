// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/tree_exchange.h"

#include <memory>
#include <utility>
#include <vector>

#include "runtime/ddp/ordered_sum.h"

namespace lockstep {
namespace {

class Exchanges {
 public:
  Exchanges(const MicroBatchSums& sums, int world) : order_(order_of_nodes(sums.micro_batches(), world)), sums_(sums) {}

  HookedBucket start(const GradBucket& bucket) {
    if (const auto before = std::exchange(before_, nullptr); before && bucket.index > 0) before->gather();
    const auto sum =
        std::make_shared<OrderedSum>(bucket.group, bucket.side, order_, bucket.buffer.count, bucket.buffer.dtype);
    const auto nodes = sums_.nodes(static_cast<const std::byte*>(bucket.buffer.data));
    for (std::size_t i = 0; i < nodes.size(); ++i) sum->put(i, nodes[i]);
    sum->send();
    if (bucket.is_last()) {
      sum->gather();
    } else {
      before_ = sum;
    }
    return {.work = sum->work(), .finish = [sum] { return sum->sum(); }};
  }

 private:
  NodeOrder order_;
  const MicroBatchSums& sums_;
  std::shared_ptr<OrderedSum> before_;  // the previous bucket's sum, whose all-gather has not begun
};

}  // namespace

CommHook tree_exchange(const MicroBatchSums& sums, int world) {
  return {"fixed micro-batches", [exchanges = std::make_shared<Exchanges>(sums, world)](const GradBucket& bucket) {
            return exchanges->start(bucket);
          }};
}

}  // namespace lockstep
