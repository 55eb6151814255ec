// SPDX-License-Identifier: Apache-2.0
// The same training where kernels of CUDA write the gradients.
#pragma once

#include <memory>

#include <lockstep/comm/process_group.h>
#include <lockstep/ddp/bucket_plan.h>

// The program's exit code. BackendUnavailable where this was built without the CUDA toolkit.
int train_on_gpu(const std::shared_ptr<lockstep::ProcessGroup>& group, unsigned steps, lockstep::Shard shard);
