// SPDX-License-Identifier: Apache-2.0
// The sum of the ranks' rows, in one order on any backend: the exchange of one bucket for communication hooks whose sum
// must not depend on the order of the group's own.
//
// Each rank gets its part of the elements from all ranks' rows (an all-to-all), adds them up in the given order, and
// sends the result to all (an all-gather): over a network as many bytes as a ring all-reduce. On a device all of it
// runs in a side stream, after the work in the group's stream when the sum is made, so backward waits for nothing;
// gather() waits on the host until the all-to-all is in the device's queue. On the CPU gather() waits for the
// all-to-all.
//
// Threads: the group's.
// Failure: the group's errors, and DeviceError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/ddp/plan/micro_batch_tree.h"

namespace lockstep {

class OrderedSum {
 public:
  // `count` is the number of elements of a row, of a float dtype. `side` outlives this object.
  OrderedSum(std::shared_ptr<ProcessGroup> group, StreamView side, NodeOrder order, std::int64_t count, DType dtype);
  // Makes the side stream wait for the present work of the group's stream, which may read the sum.
  ~OrderedSum();
  OrderedSum(const OrderedSum&) = delete;
  OrderedSum& operator=(const OrderedSum&) = delete;

  // In this order: copies this rank's row `index`, which lies on the group's device...
  void put(std::size_t index, const void* row);
  // ...or, if each rank has one row, returns its place, to be written in the side stream...
  BufferView row() const { return view(0, count_); }
  // ...and starts the all-to-all; then adds up, and starts the all-gather.
  void send();
  void gather();

  // The all-gather.
  const Work& work() const { return work_; }
  // The sum after the all-gather is done: `count` elements, in memory of this object's.
  BufferView sum() const { return view(0, count_); }

 private:
  struct Phases;
  // Elements from `offset` on in the memory that is sent, and later has the sum.
  BufferView view(std::int64_t offset, std::int64_t count) const;

  std::shared_ptr<ProcessGroup> group_;
  StreamView side_;
  NodeOrder order_;
  DeviceRuntime& runtime_;
  std::int64_t count_;
  std::int64_t share_;  // elements of a row that each rank adds up: whole cache lines
  DType dtype_;
  std::shared_ptr<void> sent_;      // by rank, and row: the rank's part
  std::shared_ptr<void> received_;  // likewise
  std::shared_ptr<Phases> phases_;
  Work work_;
};

}  // namespace lockstep
