// SPDX-License-Identifier: Apache-2.0
// Data parallelism with c10d alone. On the CPU PyTorch's own DDP engine, c10d::Reducer over gloo, driven from C++ as
// Python's DistributedDataParallel drives it; on GPUs what a C++ user would write over c10d::ProcessGroupNCCL.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "benchmarks/libtorch_ddp/models.h"

namespace lockstep::benchmark {

class C10dPeer {
 public:
  virtual ~C10dPeer() = default;
  // Forward of the model, with what the engine wants before forward and backward.
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  // Behind backward; .grad has the mean over the ranks then.
  virtual void after_backward() {}
};

// Collective; the ranks meet at `file`. Null where this build has no peer for the device of the model's parameters.
std::unique_ptr<C10dPeer> make_c10d_peer(const std::shared_ptr<Model>& model, const std::string& file, int rank,
                                         int world);

}  // namespace lockstep::benchmark
