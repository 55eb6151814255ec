// SPDX-License-Identifier: Apache-2.0
// The sum of rows that the ranks have, in one order whatever the backend: the exchange of one bucket for communication
// hooks whose sum must not depend on the group's.
//
// Each rank gets its share of the elements from all ranks' rows (an all-to-all), adds them up in the given order, and
// gives the result to all (an all-gather): over a network as many bytes as a ring all-reduce. On a device all of it is
// in a side stream, behind what the group's stream has when the sum is made, so that backward waits for nothing; in
// gather() the host waits until the all-to-all is in the device's queue. On the CPU it waits there for the all-to-all.
//
// Threads: the group's. Failure: the group's errors, and DeviceError.
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
  // Rows have `count` elements of a float dtype. `side` outlives this object.
  OrderedSum(std::shared_ptr<ProcessGroup> group, StreamView side, NodeOrder order, std::int64_t count, DType dtype);
  // The side stream waits for what the group's stream has now, which may read the sum.
  ~OrderedSum();
  OrderedSum(const OrderedSum&) = delete;
  OrderedSum& operator=(const OrderedSum&) = delete;

  // In this order: copies this rank's row `index`, which lies on the group's device...
  void put(std::size_t index, const void* row);
  // ...or, where each rank has one, gives its place, to be written in the side stream...
  BufferView row() const { return view(0, count_); }
  // ...and starts the all-to-all; then adds up, and starts the all-gather.
  void send();
  void gather();

  // Done with the all-gather.
  const Work& work() const { return work_; }
  // Once that is done: `count` elements, in memory of this object's.
  BufferView sum() const { return view(0, count_); }

 private:
  struct Phases;
  // Elements from `offset` on in the memory of what is sent, and later of the sum.
  BufferView view(std::int64_t offset, std::int64_t count) const;

  std::shared_ptr<ProcessGroup> group_;
  StreamView side_;
  NodeOrder order_;
  DeviceRuntime& runtime_;
  std::int64_t count_;
  std::int64_t share_;  // elements of a row that each rank adds up: whole cache lines
  DType dtype_;
  std::shared_ptr<void> sent_;      // by rank, and row: its share
  std::shared_ptr<void> received_;  // alike
  std::shared_ptr<Phases> phases_;
  Work work_;
};

}  // namespace lockstep
