// SPDX-License-Identifier: Apache-2.0
// Appends a bucket for data that travels with the gradients.
#pragma once

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

// Appends a bucket that holds only `spec`: parameter `index`, the next after those that have a slot. The arena is as
// large as if plan_buckets() had got it.
void append_bucket(BucketPlan& plan, const ParameterSpec& spec, int index);

}  // namespace lockstep
