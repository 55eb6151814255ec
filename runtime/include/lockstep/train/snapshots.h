// SPDX-License-Identifier: Apache-2.0
// Snapshots saves and restores a job with lockstep's own engine: the model, its optimizers, its place in its data, and
// values of the program's own. lockstep/snapshot/snapshots.h has the contract.
//
// Files are PyTorch's, as save_weights() writes them: model.safetensors is a state_dict, and an optimizer's tensors
// have names such as "state.PARAMETER.exp_avg", as in torch.distributed.checkpoint.
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
  // Adds another network that is trained, such as a GAN's second one: its model, and its steps as NAME.steps.
  void add(std::string_view name, DistributedDataParallel& ddp);
  // Adds an optimizer of parameters of "model", or of a network that was added before. The snapshot's learning rate
  // replaces the program's; a program changes it after restore() with set_learning_rate(). Weight decays and the
  // optimizer's own settings are the program's, and a snapshot with different ones is refused. InvalidArgument if the
  // optimizer has another parameter.
  void add(std::string_view name, optim::Optimizer& optimizer);

 private:
  static Steps steps_of(DistributedDataParallel& ddp);

  std::vector<DistributedDataParallel*> networks_;
};

}  // namespace lockstep
