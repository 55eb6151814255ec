// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/tree_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/comm/reduction.h"

namespace lockstep {
namespace {

// The place of a rank's contribution to a share of a bucket.
struct Contribution {
  ShardRun node;
  std::size_t slot;  // among all ranks' slots
};

// The nodes and elements of each rank, as all ranks know them.
struct Layout {
  int shards;
  int world;
  std::size_t slots;  // per rank: as many as the one with the most nodes has
  std::vector<Contribution> contributions;
};

Layout layout_of(int shards, int world) {
  Layout layout{.shards = shards, .world = world, .slots = 0, .contributions = {}};
  std::vector<std::vector<ShardRun>> nodes;
  for (int rank = 0; rank < world; ++rank) {
    nodes.push_back(whole_nodes(shards, data::shards_of(shards, rank, world)));
    layout.slots = std::max(layout.slots, nodes.back().size());
  }
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    for (std::size_t i = 0; i < nodes[rank].size(); ++i) {
      layout.contributions.push_back({nodes[rank][i], rank * layout.slots + i});
    }
  }
  return layout;
}

// The exchange of one bucket.
class Exchange {
 public:
  Exchange(const Layout& layout, const BufferView& buffer)
      : layout_(layout),
        buffer_(buffer),
        element_(size_of(buffer.dtype)),
        share_((static_cast<std::size_t>(buffer.count) + world() - 1) / world()),
        sent_(world() * layout.slots * share_ * element_),
        received_(sent_.size()),
        sum_(world() * share_ * element_) {}

  // `nodes`: this rank's, in order.
  void send(ProcessGroup& group, std::span<const std::byte* const> nodes) {
    const auto count = static_cast<std::size_t>(buffer_.count);
    for (std::size_t rank = 0; rank < world(); ++rank) {
      const std::size_t begin = std::min(count, rank * share_);
      const std::size_t length = std::min(count, begin + share_) - begin;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        std::memcpy(at(sent_, rank * layout_.slots + i), nodes[i] + begin * element_, length * element_);
      }
    }
    sending_ = group.all_to_all(view(sent_), view(received_));
  }

  void gather(ProcessGroup& group) {
    sending_.wait();
    const std::byte* const own = add_up({0, layout_.shards});
    share_sum_.assign(own, own + share_ * element_);
    gathering_ = group.all_gather(view(share_sum_), view(sum_));
    is_gathering_ = true;
  }

  bool poll() const {
    if (is_gathering_) return gathering_.done();
    sending_.done();
    return false;
  }
  void wait(const Deadline& deadline) const {
    if (is_gathering_) gathering_.wait(deadline);
  }
  BufferView sum() { return {sum_.data(), buffer_.count, buffer_.dtype, buffer_.device}; }

 private:
  std::size_t world() const { return static_cast<std::size_t>(layout_.world); }
  std::byte* at(std::vector<std::byte>& memory, std::size_t slot) { return memory.data() + slot * share_ * element_; }
  BufferView view(std::vector<std::byte>& memory) {
    return {memory.data(), static_cast<std::int64_t>(memory.size() / element_), buffer_.dtype, buffer_.device};
  }
  // The share of a node, in the memory of its first contribution.
  std::byte* add_up(ShardRun node) {
    for (const Contribution& it : layout_.contributions) {
      if (it.node == node) return at(received_, it.slot);
    }
    const int middle = right_child(node);
    std::byte* const left = add_up({node.begin, middle});
    const std::array<const std::byte*, 2> both{left, add_up({middle, node.end})};
    comm::reduce({.dtype = buffer_.dtype}, both, left, share_);
    return left;
  }

  const Layout& layout_;
  BufferView buffer_;
  std::size_t element_;
  std::size_t share_;  // elements of the bucket that each rank adds up
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
  std::vector<std::byte> share_sum_;
  std::vector<std::byte> sum_;
  Work sending_;
  Work gathering_;
  bool is_gathering_ = false;
};

class ExchangeWork final : public WorkState {
 public:
  explicit ExchangeWork(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  bool poll() override { return exchange_->poll(); }
  void wait(const Deadline& deadline) override { exchange_->wait(deadline); }

 private:
  std::shared_ptr<Exchange> exchange_;
};

class Exchanges {
 public:
  Exchanges(const ShardSums& sums, int world) : layout_(layout_of(sums.shards(), world)), sums_(sums) {}

  HookedBucket start(const GradBucket& bucket) {
    if (const auto before = std::exchange(before_, nullptr); before && bucket.index > 0) before->gather(*bucket.group);
    const auto exchange = std::make_shared<Exchange>(layout_, bucket.buffer);
    exchange->send(*bucket.group, sums_.nodes(static_cast<const std::byte*>(bucket.buffer.data)));
    if (bucket.is_last()) {
      exchange->gather(*bucket.group);
    } else {
      before_ = exchange;
    }
    return {.work = Work(std::make_shared<ExchangeWork>(exchange), bucket.group->timeout()),
            .finish = [exchange] { return exchange->sum(); }};
  }

 private:
  Layout layout_;
  const ShardSums& sums_;
  std::shared_ptr<Exchange> before_;  // the bucket before, which has not begun its all-gather
};

}  // namespace

CommHook tree_exchange(const ShardSums& sums, int world) {
  return {"virtual shards", [exchanges = std::make_shared<Exchanges>(sums, world)](const GradBucket& bucket) {
            return exchanges->start(bucket);
          }};
}

}  // namespace lockstep
