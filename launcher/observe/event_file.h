// SPDX-License-Identifier: Apache-2.0
// A report's curves in TensorBoard's format: records of TensorFlow's event.proto, framed as in TFRecord files.
//
// https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
// https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "launcher/observe/run_report.h"

namespace lockstep::launcher {

// Below the report's folder.
inline constexpr std::string_view kEventFolder = "tensorboard";

// Writes the report's scalars under their names, and "own ms/rank 2" and "waited ms/rank 2" for each rank, to
// events.out.tfevents.TIME.lockstep in `folder`. The step numbers count finished steps, over all starts. Throws
// SystemError.
//
// A TensorBoard that has read the file of an earlier report reads the next one by its name, which sorts later. The
// earlier one is emptied: TensorBoard stays with a file that is gone. It is removed after an hour.
void write_event_file(const std::filesystem::path& folder, const RunReport& report);

// The file's content. It begins with a restart, at which TensorBoard drops what it has read.
std::string as_event_file(const RunReport& report);

// Returns the CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep::launcher
