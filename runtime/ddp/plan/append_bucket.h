// SPDX-License-Identifier: Apache-2.0
// Appends a bucket for data that travels with the gradients.
#pragma once

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

// Adds a bucket behind the others that holds `spec` alone: parameter `index`, the next of those that have a slot. The
// arena is as large as if plan_buckets() had been given it.
void append_bucket(BucketPlan& plan, const ParameterSpec& spec, int index);

}  // namespace lockstep
