// SPDX-License-Identifier: Apache-2.0
// append_bucket() appends to a BucketPlan a bucket for data that is no gradient but travels with the gradients.
#pragma once

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

// Appends to `plan` a bucket that holds only `spec`, as the parameter with index `index`. `index` is the number of
// parameters that have a slot in `plan` before the call. The plan's arena becomes as large as if plan_buckets() had
// also got `spec`.
void append_bucket(BucketPlan& plan, const ParameterSpec& spec, int index);

}  // namespace lockstep
