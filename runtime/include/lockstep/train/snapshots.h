// SPDX-License-Identifier: Apache-2.0
// Snapshots saves and restores a training job that uses lockstep's own engine: the model, the optimizers, the position
// in the data, and values of the program. The contract is in lockstep/snapshot/snapshots.h.
//
// The files of a snapshot use PyTorch's names and layouts, like the files of save_weights(). The file model.safetensors
// is a state_dict, and an optimizer's tensors have names such as "state.PARAMETER.exp_avg",
// as in torch.distributed.checkpoint.
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
  // Makes an object that saves ddp's model in snapshots, as the item named "model". `ddp` must outlive this object.
  // Throws InvalidArgument if `folder` is empty, or if an option is out of its range.
  Snapshots(std::filesystem::path folder, DistributedDataParallel& ddp, const SnapshotOptions& options = {});
  using BasicSnapshots::add;
  // Adds another network that the program trains, such as a GAN's second network. The snapshot stores the network's
  // model under `name`, and the network's number of steps under `name` + ".steps".
  void add(std::string_view name, DistributedDataParallel& ddp);
  // Adds an optimizer whose parameters belong to the constructor's `ddp` or to networks that were added before. A
  // restore() replaces the optimizer's learning rate by the snapshot's learning rate; a program may change the rate
  // after restore() with set_learning_rate(). A restore() throws if the optimizer's weight decays or other settings in
  // the snapshot differ from the optimizer's settings in the program. Throws InvalidArgument if the optimizer has a
  // parameter that belongs neither to `ddp` nor to an added network.
  void add(std::string_view name, optim::Optimizer& optimizer);

 private:
  static Steps steps_of(DistributedDataParallel& ddp);

  std::vector<DistributedDataParallel*> networks_;
};

}  // namespace lockstep
