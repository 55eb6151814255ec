// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/ordered_sum.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/ddp/bucket_plan.h"
#include "runtime/base/logging.h"

namespace lockstep {
namespace {

// InStream makes the group's collectives run after the work of another stream, as long as the InStream exists.
class InStream {
 public:
  InStream(ProcessGroup& group, StreamView stream) : group_(group), before_(group.stream()) {
    group.set_stream(stream);
  }
  ~InStream() { group_.set_stream(before_); }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;

 private:
  ProcessGroup& group_;
  StreamView before_;
};

void put_in_order(StreamView earlier, StreamView later) {
  Event event(earlier.device);
  event.record(earlier);
  event.block(later);
}

}  // namespace

// Phases is the state of one Work that stands for both collectives, the all-to-all and the all-gather.
struct OrderedSum::Phases final : WorkState {
  bool poll() override {
    if (is_gathering) return gathering.done();
    sending.done();
    return false;
  }
  void wait(const Deadline& deadline) override {
    if (is_gathering) gathering.wait(deadline);
  }
  void wait_on(StreamView stream, const Deadline&) override { (is_gathering ? gathering : sending).wait_on(stream); }
  void* end_mark() const override { return gathering.end_mark(); }

  Work sending;
  Work gathering;
  bool is_gathering = false;
};

OrderedSum::OrderedSum(std::shared_ptr<ProcessGroup> group, StreamView side, NodeOrder order, std::int64_t count,
                       DType dtype)
    : group_(std::move(group)),
      side_(side),
      order_(std::move(order)),
      runtime_(device_runtime(group_->device().kind)),
      count_(count),
      dtype_(dtype),
      phases_(std::make_shared<Phases>()),
      work_(phases_, group_->timeout()) {
  const auto line = static_cast<std::int64_t>(kGradientAlignment / size_of(dtype));
  const std::int64_t lines = (count + line - 1) / line;
  share_ = (lines + group_->size() - 1) / group_->size() * line;
  const std::size_t bytes = order_.merges.size() * static_cast<std::size_t>(share_) * size_of(dtype);
  put_in_order(group_->stream(), side_);
  sent_ = runtime_.allocate(bytes, side_);
  received_ = runtime_.allocate(bytes, side_);
}

OrderedSum::~OrderedSum() {
  try {
    put_in_order(group_->stream(), side_);
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

BufferView OrderedSum::view(std::int64_t offset, std::int64_t count) const {
  const std::size_t bytes = static_cast<std::size_t>(offset) * size_of(dtype_);
  return {static_cast<std::byte*>(sent_.get()) + bytes, count, dtype_, group_->device()};
}

void OrderedSum::put(std::size_t index, const void* row) {
  if (order_.rows_per_rank == 1) {  // the ranks' parts lie in sent_ in the row's order
    return runtime_.copy(sent_.get(), row, static_cast<std::size_t>(count_) * size_of(dtype_), side_);
  }
  for (std::int64_t rank = 0; rank < group_->size(); ++rank) {
    const std::int64_t begin = std::min(count_, rank * share_);
    const std::int64_t length = std::min(count_, begin + share_) - begin;
    const std::int64_t at =
        (rank * static_cast<std::int64_t>(order_.rows_per_rank) + static_cast<std::int64_t>(index)) * share_;
    const BufferView part = view(at, length);
    runtime_.copy(part.data, static_cast<const std::byte*>(row) + static_cast<std::size_t>(begin) * size_of(dtype_),
                  part.bytes(), side_);
  }
}

void OrderedSum::send() {
  const InStream ordered(*group_, side_);
  const BufferView all = view(0, share_ * static_cast<std::int64_t>(order_.merges.size()));
  phases_->sending = group_->all_to_all(all, BufferView(received_.get(), all.count, dtype_, all.device));
}

// Writes the sum to sent_. The sum overwrites the rows in sent_, which the all-to-all has sent before sum_rows() runs.
void OrderedSum::gather() {
  phases_->sending.wait_on(side_);
  const BufferView own = view(group_->rank() * share_, share_);
  runtime_.sum_rows(received_.get(), static_cast<std::ptrdiff_t>(own.bytes()), order_.merges, own, side_);
  received_.reset();
  const InStream ordered(*group_, side_);
  phases_->gathering = group_->all_gather(own, view(0, share_ * group_->size()));
  phases_->is_gathering = true;
}

}  // namespace lockstep
