// SPDX-License-Identifier: Apache-2.0
// A report's curves in TensorBoard's format: records of TensorFlow's event.proto, framed as in TFRecord files. Pure.
//
// https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
// https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/observe/run_report.h"

namespace lockstep::launcher {

// Path below the report's folder. TensorBoard reads files with "tfevents" in their names.
inline constexpr std::string_view kEventFile = "tensorboard/events.out.tfevents.0.lockstep";

// Returns the report's scalars under their names, and "own ms/rank 2" and "waited ms/rank 2" for each rank. The step
// numbers count finished steps, over all starts.
std::string as_event_file(const RunReport& report);

// Returns the CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep::launcher
