// SPDX-License-Identifier: Apache-2.0
// append_buckets() appends to a BucketPlan buckets for data that are not gradients but travel with the gradients.
#pragma once

#include <span>

#include "lockstep/ddp/bucket_plan.h"

namespace lockstep {

// Appends to `plan` a bucket for each dtype among the last of `specs`, those that have no slot in `plan` yet. The
// plan's arena becomes as large as if plan_buckets() had got all `specs`.
void append_buckets(BucketPlan& plan, std::span<const ParameterSpec> specs);

}  // namespace lockstep
