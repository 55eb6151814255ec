// SPDX-License-Identifier: Apache-2.0
// OrderedSum adds up rows of numbers, one or more from each rank, in the order that the caller gives, on any backend. A
// communication hook uses an OrderedSum to sum a bucket if the sum must not depend on the order in which the group's
// own all-reduce adds.
//
// Each rank gets its part of the elements from all ranks' rows (an all-to-all), adds these elements up in the given
// order, and sends the result to all ranks (an all-gather). Over a network an OrderedSum sends as many bytes as a ring
// all-reduce. On a device an OrderedSum works in a side stream, so backward does not wait for the sum. The side stream
// first waits for the work that is in the group's stream when the OrderedSum is constructed. On a device the host waits
// in gather() until the all-to-all is in the device's queue; on the CPU gather() waits until the all-to-all is done.
//
// Threads: only the group's thread calls the functions of OrderedSum.
// Failure: throws the group's errors and DeviceError.
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
  // `count` is the number of elements of a row. `dtype` is a floating-point type. `side` must outlive this object.
  OrderedSum(std::shared_ptr<ProcessGroup> group, StreamView side, NodeOrder order, std::int64_t count, DType dtype);
  // Makes the side stream wait for the work that is now in the group's stream, because this work may read the sum.
  ~OrderedSum();
  OrderedSum(const OrderedSum&) = delete;
  OrderedSum& operator=(const OrderedSum&) = delete;

  // Copies `row`, which lies on the group's device and is this rank's row `index`. Call put() or row(), then send(),
  // then gather().
  void put(std::size_t index, const void* row);
  // Returns the buffer for this rank's row. Instead of calling put(), the caller may fill the buffer with work in the
  // side stream. REQUIRES: each rank has one row.
  BufferView row() const { return view(0, count_); }
  // Starts the all-to-all.
  void send();
  // Adds up the rows, and starts the all-gather.
  void gather();

  // Returns the work that is done when the all-gather is done.
  const Work& work() const { return work_; }
  // Returns the sum: `count` elements in memory of this object. REQUIRES: the all-gather is done.
  BufferView sum() const { return view(0, count_); }

 private:
  struct Phases;
  // Returns `count` elements of sent_ from `offset` on; sent_ has the rows and, after gather(), the sum.
  BufferView view(std::int64_t offset, std::int64_t count) const;

  std::shared_ptr<ProcessGroup> group_;
  StreamView side_;
  NodeOrder order_;
  DeviceRuntime& runtime_;
  std::int64_t count_;
  std::int64_t share_;  // the number of elements of a row that each rank adds up, in whole cache lines
  DType dtype_;
  std::shared_ptr<void> sent_;      // each rank's parts of this rank's rows
  std::shared_ptr<void> received_;  // this rank's parts of each rank's rows
  std::shared_ptr<Phases> phases_;
  Work work_;
};

}  // namespace lockstep
