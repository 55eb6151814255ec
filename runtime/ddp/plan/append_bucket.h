// SPDX-License-Identifier: Apache-2.0
// append_bucket() appends a bucket for data that travels with the gradients.
#pragma once

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

// Appends a bucket that holds only `spec`, as parameter `index`. `index` is the number of parameters that have a slot.
// The arena becomes as large as if plan_buckets() had got `spec`.
void append_bucket(BucketPlan& plan, const ParameterSpec& spec, int index);

}  // namespace lockstep
