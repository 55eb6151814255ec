// SPDX-License-Identifier: Apache-2.0
// A report's curves as TensorBoard reads them: records of TensorFlow's event.proto, framed as its TFRecord files. Pure.
//
// https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
// https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/observe/run_report.h"

namespace lockstep::launcher {

// Below the report's folder. TensorBoard takes files with "tfevents" in their names.
inline constexpr std::string_view kEventFile = "tensorboard/events.out.tfevents.0.lockstep";

// The report's scalars by their names; "own ms/rank 2" and "waited ms/rank 2" of each rank. Steps are those done, over
// all starts.
std::string as_event_file(const RunReport& report);

// CRC-32C, of Castagnoli.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep::launcher
