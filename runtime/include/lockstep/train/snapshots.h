// SPDX-License-Identifier: Apache-2.0
// Snapshots of a job with lockstep's own engine: the model, its optimizers, where it is in its data, and values of the
// program's own. lockstep/snapshot/snapshots.h has the contract.
//
// Files are PyTorch's, as save_weights() writes them: model.safetensors is a state_dict, and an optimizer's tensors lie
// under "state.PARAMETER.exp_avg" and the like, as torch.distributed.checkpoint names them.
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
  // `ddp` outlives this object; its model is the item "model". InvalidArgument for an empty name, and for options that
  // are out of their range.
  Snapshots(std::filesystem::path folder, DistributedDataParallel& ddp, const SnapshotOptions& options = {});
  using BasicSnapshots::add;
  // Another network that is trained, as the second of a GAN: its model, and its steps as NAME.steps.
  void add(std::string_view name, DistributedDataParallel& ddp);
  // Adds an optimizer of parameters of "model", or of a network that was added before. The learning rate is the
  // snapshot's: a program that changes it after restore() does so with set_learning_rate(). Weight decays and the
  // optimizer's own settings are the program's, and a snapshot with others is refused. InvalidArgument if it has
  // another parameter.
  void add(std::string_view name, optim::Optimizer& optimizer);

 private:
  static Steps steps_of(DistributedDataParallel& ddp);

  std::vector<DistributedDataParallel*> networks_;
};

}  // namespace lockstep
