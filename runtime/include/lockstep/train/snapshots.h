// SPDX-License-Identifier: Apache-2.0
// Snapshots saves and restores a job with lockstep's own engine: the model, the optimizers, the place in the data, and
// values of the program. lockstep/snapshot/snapshots.h has the contract.
//
// The files use PyTorch's names and layouts, as save_weights() does: model.safetensors is a state_dict, and an
// optimizer's tensors have names such as "state.PARAMETER.exp_avg", as in torch.distributed.checkpoint.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/snapshot/snapshots.h"
#include "lockstep/train/distributed_data_parallel.h"

namespace lockstep {

class LOCKSTEP_API Snapshots final : public BasicSnapshots {
 public:
  // Makes snapshots of `ddp`, whose model is the item "model"; `ddp` outlives this object. Throws InvalidArgument if
  // `folder` is empty, and for options that are out of their range.
  Snapshots(std::filesystem::path folder, DistributedDataParallel& ddp, const SnapshotOptions& options = {});
  using BasicSnapshots::add;
  // Adds the model of another network that is trained, such as a GAN's second network, and its number of steps
  // as NAME.steps.
  void add(std::string_view name, DistributedDataParallel& ddp);
  // Adds an optimizer of parameters of "model", or of a network that was added before. restore() replaces the
  // optimizer's learning rate by the snapshot's; programs may change the rate after restore() with set_learning_rate().
  // restore() refuses a snapshot whose weight decays or optimizer settings differ from the program's. Throws
  // InvalidArgument if the optimizer has a parameter of no added network.
  void add(std::string_view name, optim::Optimizer& optimizer);

 private:
  static Steps steps_of(DistributedDataParallel& ddp);

  std::vector<DistributedDataParallel*> networks_;
};

}  // namespace lockstep
